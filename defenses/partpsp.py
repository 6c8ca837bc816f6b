"""PartPSP: DPPS for some layers of a model, while the others stay at home; SGPDP shares all."""

from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Literal, NamedTuple, Self

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import pad

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting

from .dpps import Consensus, PrivatePushSum


class State(NamedTuple):
    S: Tensor  # [..., n_agents, d_s], these four are Consensus
    a: Tensor  # [..., n_agents, 1]
    sens: Tensor  # [..., n_agents, 1]
    noise: Tensor  # [..., n_agents, 1]
    L: Tensor  # [..., n_agents, d - d_s], local parameters l, never sent
    lengths: Tensor  # [2 n + 1] of runs of coordinates in a model: local, shared, ..., local


class PartPSP(PrivatePushSum):
    """Zhou, Xue and Chen, Algorithm 2; rows of S, L, G [..., n_agents, .] are agents.

    With Y = S / a and one batch for both gradients, round t is
        4.  L <- L - gamma_l grad_l F(Y, L)
        5.  G = grad_s F(Y, L), scaled down to L1 norm at most C: the mean of the batch, not each
            record, and all shared layers together
        6.  a round of DPPS with the perturbation -gamma_s G
    ``share`` names the layers in S, by parameter or by module ("0" is "0.weight" and "0.bias").
    "all" is SGPDP. Rates decay together, as ``protocol`` says.
    """

    paper = "Zhou, Xue, Chen: PartPSP"
    private = {
        "gradient": "the mean gradient of the batch, its shared layers clipped",
        "h": "the shared parameters, perturbed, before noise",
    }

    share: Literal["all"] | tuple[str, ...] = "all"
    learning_rate: PositiveFloat = 0.1  # gamma_s
    local_learning_rate: PositiveFloat = 0.1  # gamma_l
    l1_clip_norm: PositiveFloat | None = 100.0  # C

    def start(self, X: Tensor, setting: Setting) -> State:
        lengths = lengths_of(_coordinates(self.share, setting)).to(X.device)
        shared, local = runs_of(lengths)
        return State(*self.protocol.start(joined(X, shared)), joined(X, local), lengths)

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        consensus, L, runs = Consensus(*state[:4]), state.L, runs_of(state.lengths)
        Y, factor = consensus.S / consensus.a, self.protocol.rate_factor(k)

        G_l = L
        if L.shape[-1]:
            G_l = gradient_of(gradient, whole(Y, L, runs), runs.local)
            L = L - self.local_learning_rate * factor * G_l  # 4
        G_s = gradient_of(gradient, whole(Y, L, runs), runs.shared)
        if self.l1_clip_norm is not None:
            G_s = dp.clip(G_s, self.l1_clip_norm, norm=1)  # 5
        E = -self.learning_rate * factor * G_s
        exchanged = self.protocol.exchange(consensus, E, k, graph, noise)  # 6
        private = dp.Deferred({"gradient": lambda: whole(G_s, G_l, runs), "h": lambda: exchanged.H})
        return Round(State(*exchanged.state, L, state.lengths), exchanged.sent, private)

    def models(self, state: State) -> Tensor:
        """Each agent's own Y with its own L."""
        return whole(state.S / state.a, state.L, runs_of(state.lengths))

    def evaluated(self, state: State) -> Tensor:
        """The mean of Y over agents, with each one's own L: what Algorithm 2 ends with."""
        Y = state.S / state.a
        return whole(Y.mean(dim=-2, keepdim=True).expand_as(Y), state.L, runs_of(state.lengths))

    def calibrate(self, setting: Setting) -> Self:
        """Check the shared layers. Raises ConfigError: ``share`` names a layer the model lacks."""
        _coordinates(self.share, setting)
        return super().calibrate(setting)

    def _refuse_local_layers(self, setting: Setting) -> None:
        if not _coordinates(self.share, setting).all():
            raise dp.NotObservable(
                "DPA054",
                "the local layers are never sent, so the model that the gradient belongs to is "
                "unknown",
            )


def _coordinates(share: Literal["all"] | tuple[str, ...], setting: Setting) -> Tensor:
    """Which coordinates of a model are shared, [d] bool. Raises ConfigError for unknown names."""
    if share == "all" or setting.stands_in:
        return torch.ones(setting.d, dtype=torch.bool)
    names = [name for name, _ in setting.layers]
    for layer in share:
        if not any(_is_in(name, layer) for name in names):
            raise dp.ConfigError(
                "DPA006",
                f'defense.share: the model has no layer "{layer}"; it has {", ".join(names)}',
            )
    parts = [
        torch.full((size,), any(_is_in(name, layer) for layer in share))
        for name, size in setting.layers
    ]
    return torch.cat(parts)


def _is_in(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def lengths_of(shared: Tensor) -> Tensor:
    """Lengths of the runs of local and shared coordinates in turn; first and last are local."""
    is_shared, lengths = shared.unique_consecutive(return_counts=True)
    return pad(lengths, (int(is_shared[0]), int(is_shared[-1])))


class Runs(NamedTuple):
    """Coordinates of a model in a row, in order; where there are none, one run of none."""

    shared: list[slice]
    local: list[slice]


def runs_of(lengths: Tensor) -> Runs:
    return _slices(tuple(lengths.tolist()))


@lru_cache(maxsize=8)
def _slices(lengths: tuple[int, ...]) -> Runs:
    runs = [slice(a, b) for a, b in pairwise(accumulate(lengths, initial=0))]
    shared, local = ([r for r in some if r.start < r.stop] for some in (runs[1::2], runs[::2]))
    return Runs(shared or [slice(0, 0)], local or [slice(0, 0)])


def joined(X: Tensor, runs: list[slice]) -> Tensor:
    """The coordinates of X [..., d] in these runs; what is one run is no copy."""
    if len(runs) == 1:
        return X[..., runs[0]]
    return torch.cat([X[..., run] for run in runs], dim=-1)


def gradient_of(gradient: Gradient, X: Tensor, runs: list[slice]) -> Tensor:
    """Its coordinates in these runs, of which no others are asked for but those between."""
    first = runs[0].start
    G = gradient.part(X, slice(first, runs[-1].stop))
    if len(runs) == 1:
        return G
    return joined(G, [slice(run.start - first, run.stop - first) for run in runs])


def whole(S: Tensor, L: Tensor, runs: Runs) -> Tensor:
    """Models [..., d] from their shared and their local coordinates."""
    if not L.shape[-1]:
        return S
    parts = [*_pieces(S, runs.shared), *_pieces(L, runs.local)]
    return torch.cat([X for _, X in sorted(parts, key=itemgetter(0))], dim=-1)


def _pieces(X: Tensor, runs: list[slice]) -> list[tuple[int, Tensor]]:
    """Where each run of X begins in a model, and what is in it."""
    if len(runs) == 1:
        return [(runs[0].start, X)]
    parts = X.split([run.stop - run.start for run in runs], dim=-1)
    return [(run.start, part) for run, part in zip(runs, parts, strict=True)]
