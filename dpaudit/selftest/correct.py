"""The correct defenses of the self-test, and how a mechanism that differs in one line is made."""

from collections.abc import Callable, Mapping
from copy import copy
from math import sqrt
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from dpaudit.defense import (
    Adjacency,
    Bracket,
    Defense,
    Gradient,
    Graph,
    Messages,
    Noise,
    Round,
    Setting,
    Stated,
    ThreatModel,
    batch_releases,
    broadcast,
    known_rounds,
    unicast,
)


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times what was sent last


class PrivateGossip(Defense):
    """Decentralized SGD with a private gradient; rows of X, V [..., n_agents, d] are agents.

    With S the sum over a Poisson batch of gradients clipped to norm C (L2, or L1 for Laplace noise)
        1.  G = (S + noise of scale sigma C) / B
        2.  X <- V - eta G, sent to the neighbours
        3.  V <- W X
    """

    paper: ClassVar[str] = "Lian et al. 2017 with the gradient of Abadi et al. 2016"
    claims: ClassVar[str] = "(epsilon, delta)-DP over the run, one record"
    messages: ClassVar[Mapping[str, str]] = {"x": "the model after a step along a noisy gradient"}
    private: ClassVar[Mapping[str, str]] = {"gradient": "S / B, without noise"}

    n_rounds: int = 4
    batch_size: int = 4
    sampling: Literal["fixed", "poisson"] = "poisson"
    family: Literal["gaussian", "laplace"] = "gaussian"
    learning_rate: PositiveFloat = 0.5  # eta
    clip_norm: PositiveFloat = 0.5  # C
    noise_multiplier: NonNegativeFloat = 1.0  # sigma

    def clip_norm_in(self, k: int) -> float | None:
        return self.clip_norm if self.family == "gaussian" else None

    def start(self, X: Tensor, setting: Setting) -> Any:
        return State(X, setting.network.at(1).mix(X))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = self.averaged(S, state.X, k, gradient, noise)  # 1
        X = state.V - self.learning_rate * G  # 2
        return self.after(S, X, graph)  # 3

    def averaged(self, S: Tensor, X: Tensor, k: int, gradient: Gradient, noise: Noise) -> Tensor:
        """G."""
        return self.noised(S, k, noise) / self.batch_size

    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        """What sending X leaves behind."""
        mean = S / self.batch_size
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)}, {"gradient": mean})

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        """S."""
        return gradient.clipped_sum(X, self.clip_norm, norm=self.moved_norm)

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        """S under noise."""
        return S + self.noise(S, k, noise)

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        """Noise in the shape of ``like``."""
        draw = noise.gaussian if self.family == "gaussian" else noise.laplace
        return draw("gradient", self._scale, like)

    def models(self, state: Any) -> Tensor:
        return state.X

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_multiplier": 0.0})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        size = setting.sizes[victim]
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        z = np.full(self.n_rounds, self.noise_multiplier)
        least, most = (batch_releases(self, size, s, self.family) for s in (z[known], z))
        return Bracket(least, most, ())

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> Mapping[str, float]:
        return {"x": self.learning_rate * self.clip_norm / self.batch_size}

    def noise_scales(self) -> Mapping[str, float]:
        """By message: the scale of the noise that each of its entries is said to carry afresh."""
        return {"x": self.learning_rate * self._scale / self.batch_size}

    @property
    def moved_norm(self) -> Literal[1, 2]:
        return 2 if self.family == "gaussian" else 1

    @property
    def _scale(self) -> float:
        return self.noise_multiplier * self.clip_norm


class Memory(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times the models sent last
    M: Tensor  # [..., n_agents, d], what is remembered of the rounds before


class Remembering(PrivateGossip):
    """The same, with a memory of the rounds before; this one does not use it."""

    def start(self, X: Tensor, setting: Setting) -> Any:
        return Memory(X, setting.network.at(1).mix(X), torch.zeros_like(X))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        T, M = self.remembered(S, state, k, gradient, noise)
        return self.stepping(S, T, M, state, graph)

    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """What the step goes along, B times, and the next memory."""
        return self.noised(S, k, noise), state.M

    def stepping(self, S: Tensor, T: Tensor, M: Tensor, state: Any, graph: Graph) -> Round:
        """The round that steps along T / B and remembers M."""
        X = state.V - self.learning_rate * T / self.batch_size
        sent = {"x": broadcast(graph, X)}
        return Round(Memory(X, graph.mix(X), M), sent, {"gradient": S / self.batch_size})


class PrivateMomentum(Remembering):
    """The same, and M <- beta M + G is sent too, which adds nothing to what X reveals."""

    messages: ClassVar[Mapping[str, str]] = {**PrivateGossip.messages, "m": "the momentum"}

    momentum: NonNegativeFloat = 0.9  # beta

    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        T = self.noised(S, k, noise)
        G = self.entering(S / self.batch_size, T / self.batch_size)
        return T, self.momentum * state.M + G

    def stepping(self, S: Tensor, T: Tensor, M: Tensor, state: Any, graph: Graph) -> Round:
        round = super().stepping(S, T, M, state, graph)
        return round._replace(sent={**round.sent, "m": broadcast(graph, M)})

    def entering(self, clean: Tensor, noisy: Tensor) -> Tensor:
        """The mean gradient that the momentum is made of."""
        return noisy


class PrivateShares(PrivateGossip):
    """Every neighbour i gets its share w_ij S_j / B of the gradient, under noise of its own."""

    messages: ClassVar[Mapping[str, str]] = {"share": "a weighted gradient under fresh noise"}

    def start(self, X: Tensor, setting: Setting) -> Any:
        return State(X, X)

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S, j, i = self.summed(gradient, state.X), graph.senders, graph.receivers
        shares = graph.W.to(S)[i, j, None] * S[..., j, :]
        noisy = (shares + self.on_links(shares, graph, noise)) / self.batch_size
        X = state.X - self.learning_rate * torch.zeros_like(S).index_add(-2, i, noisy)
        mean = S / self.batch_size
        return Round(State(X, X), {"share": unicast(graph, noisy)}, {"gradient": mean})

    def on_links(self, shares: Tensor, graph: Graph, noise: Noise) -> Tensor:
        """Noise for each link, [..., n_edges, d]."""
        return noise.gaussian("share", self._scale, shares)

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        graph = setting.network.at(1)
        ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
        seen = [i for j, i in ends if j == victim and threat_model.sees(j, i)]
        shares = sqrt(sum(graph.W[i, victim].item() ** 2 for i in seen))
        z = np.full(self.n_rounds, self.noise_multiplier / shares) if seen else np.zeros(0)
        same = batch_releases(self, setting.sizes[victim], z)
        return Bracket(same, same, ())

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> Mapping[str, float]:
        graph = setting.network.at(k)
        largest = graph.W[graph.receivers[graph.senders == victim], victim].max().item()
        return {"share": largest * self.clip_norm / self.batch_size}

    def noise_scales(self) -> Mapping[str, float]:
        return {"share": self._scale / self.batch_size}


class Snapped(PrivateGossip):
    """The noisy sum is computed in float64 and rounded to a grid before it becomes float32.

    Rounding adds one step of the grid at most to the sum's sensitivity in each coordinate. The
    scale is wider by 2^-10, which pays for that up to d = 1000 and sigma = 1.
    """

    GRID: ClassVar[float] = 2.0**-20  # of sigma C: 24 bits hold 16 sigma C

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        if self.noise_multiplier == 0:
            return S
        grid = self.GRID * self._scale
        T = S.double() + noise.laplace("gradient", self._scale, S.double())
        return ((T / grid).round() * grid).to(S)

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        steps = setting.d * self.GRID * self.noise_scales()["x"]
        stated = super().sensitivity(k, setting, adjacency, victim, sent)
        return {name: Stated(norm, value + steps) for name, (norm, value) in stated.items()}

    @property
    def _scale(self) -> float:
        return super()._scale * (1 + 2.0**-10)


class Mechanism(NamedTuple):
    """A defense, and whether the claim that is made for it is true."""

    name: str
    defense: PrivateGossip
    is_correct: bool
    leaks: float | None = None  # mu of all messages over the declared one, if it is known
    graph: str = "ring"

    @property
    def kind(self) -> str:
        return "correct" if self.is_correct else "fault"


class At(NamedTuple):
    """Where noise is changed, or a sum with its noise."""

    defense: Any
    S: Tensor  # [..., n_agents, d], the sum
    k: int  # the round
    source: Noise  # of further noise

    @property
    def C(self) -> float:
        clip_norm: float = self.defense.clip_norm
        return clip_norm

    @property
    def scale(self) -> float:
        """Scale of the noise, sigma C."""
        scale: float = self.defense._scale
        return scale


Change = Callable[[Tensor, At], Tensor]
NoiseOf = Callable[[Any, Tensor, int, Noise], Tensor]  # as ``PrivateGossip.noise``
Sends = Callable[[Any, Round, Any, int, Gradient, Noise], Mapping[str, Tensor]]
drawn, noisy, clipped = PrivateGossip.noise, PrivateGossip.noised, PrivateGossip.summed


def variant(
    base: type[PrivateGossip] = PrivateGossip,
    of_noise: Change | None = None,
    of_noisy: Change | None = None,
    sent: Sends | None = None,
    messages: Mapping[str, str] | None = None,
    **changes: Any,
) -> PrivateGossip:
    """A correct defense with something changed; it declares what the correct one does.

    Args:
        of_noise: what becomes of the base's noise [..., n_agents, d] before it is added.
        of_noisy: what becomes of its noisy sum [..., n_agents, d].
        sent: messages [..., n_agents, *] to all neighbours, over those that the base sends; it is
            given the defense, the base's round, the state before it, k, the gradient and the noise.
        messages: what messages beside those of the base are.
        changes: options of the defense, and methods in the place of the base's: ``noise``,
            ``noised``, ``summed``, ``averaged``, ``after``, ``step``, ``remembered`` and others.
    """
    options = {name: changes.pop(name) for name in base.model_fields.keys() & changes.keys()}
    own: dict[str, Any] = dict(changes)
    if messages is not None:
        own["messages"] = {**base.messages, **messages}
    if of_noise is not None:
        own["noise"] = lambda d, S, k, z: of_noise(base.noise(d, S, k, z), At(d, S, k, z))
    if of_noisy is not None:
        own["noised"] = lambda d, S, k, z: of_noisy(base.noised(d, S, k, z), At(d, S, k, z))
    if sent is not None:

        def step(
            self: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise
        ) -> Round:
            round = base.step(self, state, k, graph, gradient, noise)
            more = sent(self, round, state, k, gradient, noise)
            return round._replace(
                sent={**round.sent, **{name: broadcast(graph, X) for name, X in more.items()}}
            )

        own["step"] = step
    if not own:
        return base(**options)
    made: type[PrivateGossip] = type(base.__name__, (base,), {"__module__": __name__, **own})
    return made(**options)


def fault(name: str, leaks: float | None = None, **changes: Any) -> Mechanism:
    """A faulty ``variant``, and how much it leaks."""
    return Mechanism(name, variant(**changes), False, leaks)


def correct(name: str, leaks: float = 1.0, graph: str = "ring", **changes: Any) -> Mechanism:
    """A correct ``variant``, and how much it leaks."""
    return Mechanism(name, variant(**changes), True, leaks, graph)


def seeded_as_in_round(k: int, noise: Noise) -> Noise:
    """The same source of noise, seeded for another round."""
    other = copy(noise)
    other._round = k
    return other


def unclipped(defense: PrivateGossip, gradient: Gradient, X: Tensor) -> Tensor:
    """S without any clipping."""
    return gradient(X) * defense.batch_size


def public(seed: int, d: int) -> Tensor:
    """A random vector [d] that everybody knows."""
    return torch.randn(d, generator=torch.Generator().manual_seed(seed))


def basis(seed: int, d: int) -> Tensor:
    """A random orthogonal matrix [d, d] that everybody knows."""
    made: Tensor = torch.linalg.qr(
        torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )[0]
    return made


def length(vectors: Tensor) -> Tensor:
    """L2 norms of [..., d], [..., 1]."""
    return vectors.norm(dim=-1, keepdim=True)
