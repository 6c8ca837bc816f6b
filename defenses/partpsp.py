"""PartPSP: DPPS for some layers of a model, while the others stay at home; SGPDP shares all."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import pad

from dpaudit.defense import (
    Adjacency,
    Bracket,
    Capture,
    ConfigError,
    Defense,
    Derived,
    Gradient,
    Graph,
    Noise,
    NotObservable,
    Observable,
    Round,
    Setting,
    Stated,
    Target,
    ThreatModel,
    View,
    clip,
)

from .dpps import MESSAGES, Consensus, Protocol, bracket, derived, stated


class State(NamedTuple):
    S: Tensor  # [..., n_agents, d_s], these four are Consensus
    a: Tensor  # [..., n_agents, 1]
    sens: Tensor  # [..., n_agents, 1]
    noise: Tensor  # [..., n_agents, 1]
    L: Tensor  # [..., n_agents, d - d_s], local parameters l, never sent
    lengths: Tensor  # [2 n + 1] of runs of coordinates in a model: local, shared, ..., local


class PartPSP(Defense):
    """Zhou, Xue and Chen, Algorithm 2; rows of S, L, G [..., n_agents, .] are agents.

    With Y = S / a and one batch for both gradients, round t is
        4.  L <- L - gamma_l grad_l F(Y, L)
        5.  G = grad_s F(Y, L), scaled down to L1 norm at most C: the mean of the batch, not each
            record, and all shared layers together
        6.  a round of DPPS with the perturbation -gamma_s G
    ``share`` names the layers in S, by parameter or by module ("0" is "0.weight" and "0.bias").
    "all" is SGPDP. Rates decay together, as ``protocol`` says.
    """

    paper: ClassVar[str] = "Zhou, Xue, Chen: PartPSP"
    claims: ClassVar[str] = "pure b / gamma_n-DP of each round, agent identity (Theorem 1)"
    messages: ClassVar[Mapping[str, str]] = MESSAGES
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "the mean gradient of the batch, its shared layers clipped",
        "h": "the shared parameters, perturbed, before noise",
    }

    protocol: Protocol = Protocol()
    share: Literal["all"] | tuple[str, ...] = "all"
    learning_rate: PositiveFloat = 0.1  # gamma_s
    local_learning_rate: PositiveFloat = 0.1  # gamma_l
    l1_clip_norm: PositiveFloat | None = 100.0  # C

    def start(self, X: Tensor, setting: Setting) -> State:
        lengths = _lengths(_coordinates(self.share, setting)).to(X.device)
        S, L = _apart(X, lengths)
        return State(*self.protocol.start(S), L, lengths)

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        consensus, L, lengths = Consensus(*state[:4]), state.L, state.lengths
        Y, factor = consensus.S / consensus.a, self.protocol.rate_factor(k)

        G_s, G_l = _apart(gradient(_whole(Y, L, lengths)), lengths)
        if L.shape[-1]:
            L = L - self.local_learning_rate * factor * G_l  # 4
            G_s, _ = _apart(gradient(_whole(Y, L, lengths)), lengths)
        if self.l1_clip_norm is not None:
            G_s = clip(G_s, self.l1_clip_norm, norm=1)  # 5
        E = -self.learning_rate * factor * G_s
        exchanged = self.protocol.exchange(consensus, E, k, graph, noise)  # 6
        private = {"gradient": _whole(G_s, G_l, lengths), "h": exchanged.H}
        return Round(State(*exchanged.state, L, lengths), exchanged.sent, private)

    def models(self, state: State) -> Tensor:
        """Each agent's own Y with its own L."""
        return _whole(state.S / state.a, state.L, state.lengths)

    def evaluated(self, state: State) -> Tensor:
        """The mean of Y over agents, with each one's own L: what Algorithm 2 ends with."""
        Y = state.S / state.a
        return _whole(Y.mean(dim=-2, keepdim=True).expand_as(Y), state.L, state.lengths)

    def calibrate(self, setting: Setting) -> Self:
        """b = epsilon gamma_n, if a budget for each round is given (Theorem 1).

        Raises:
            ConfigError: a mixing matrix is not doubly stochastic (Definition 1), or ``share`` names
                a layer that the model has not.
        """
        _coordinates(self.share, setting)
        protocol = self.protocol.calibrated(setting.network, self.allow_outside_theory)
        return self.model_copy(update={"protocol": protocol})

    def without_noise(self) -> Self:
        return self.model_copy(update={"protocol": self.protocol.without_noise()})

    def record_epsilon(self, k: int, sensitivity: float) -> float:
        """Pure epsilon of m alone in round k, were S(t) = ``sensitivity`` public: 2 gamma_s C b /
        (gamma_n S). One record turns the clipped mean of its batch around at most, and S(t) is not
        public before it is sent, so this is no guarantee: it restates b / gamma_n for a record.
        """
        if self.l1_clip_norm is None:
            return float("inf")
        moved = 2 * self.learning_rate * self.protocol.rate_factor(k) * self.l1_clip_norm
        return moved * self.protocol.claimed_epsilon(k) / sensitivity

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Capture
    ) -> Mapping[str, Stated]:
        """S(t), as the agents estimate it (Theorem 1)."""
        return stated(adjacency, sent)

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """S_i is sent without noise."""
        return bracket(self.protocol, self, setting, threat_model, victim)

    def _noisy_gradient(self, view: View, setting: Setting, target: Target) -> Derived:
        if not _coordinates(self.share, setting).all():
            raise NotObservable(
                "the local layers are never sent, so the model that the gradient belongs to is "
                "unknown"
            )
        return derived(self.protocol, self.learning_rate, view, setting, target)

    observables: ClassVar[Mapping[str, Observable]] = {
        "noisy-gradient": Observable(
            "(s_i - m_i) / gamma_s with s_i mixed from the messages of the round before",
            {"m": (-1, 0), "a": (0,)},
            "m",
            False,
            _noisy_gradient,
        )
    }


def _coordinates(share: Literal["all"] | tuple[str, ...], setting: Setting) -> Tensor:
    """Which coordinates of a model are shared, [d] bool. Raises ConfigError for unknown names."""
    if share == "all" or setting.stands_in:
        return torch.ones(setting.d, dtype=torch.bool)
    names = [name for name, _ in setting.layers]
    for layer in share:
        if not any(_is_in(name, layer) for name in names):
            raise ConfigError(
                f'defense.share: the model has no layer "{layer}"; it has {", ".join(names)}'
            )
    parts = [
        torch.full((size,), any(_is_in(name, layer) for layer in share))
        for name, size in setting.layers
    ]
    return torch.cat(parts)


def _is_in(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def _lengths(shared: Tensor) -> Tensor:
    """Of the runs of local and shared coordinates in turn; the first and the last are local."""
    is_shared, lengths = shared.unique_consecutive(return_counts=True)
    return pad(lengths, (int(is_shared[0]), int(is_shared[-1])))


def _apart(X: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The shared and the local coordinates of models [..., d]."""
    runs = X.split(lengths.tolist(), dim=-1)
    return _joined(runs[1::2]), _joined(runs[::2])


def _whole(S: Tensor, L: Tensor, lengths: Tensor) -> Tensor:
    """Models [..., d] from their shared and their local coordinates."""
    local, *others = lengths.tolist()
    first, *behind = L.split([local, *others[1::2]], dim=-1)
    pairs = zip(S.split(others[::2], dim=-1), behind, strict=True)
    return _joined([first, *(run for pair in pairs for run in pair)])


def _joined(runs: Sequence[Tensor]) -> Tensor:
    """One after the other; what is one run is no copy."""
    filled = [run for run in runs if run.shape[-1]]
    return filled[0] if len(filled) == 1 else torch.cat([*runs], dim=-1)
