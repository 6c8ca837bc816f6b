"""The correct defenses of the self-test; each planted bug spoils one line of one of them."""

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from dpaudit.defense import (
    CHANGED_RECORDS,
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
    broadcast,
    known_rounds,
    releases,
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
        G = self.noised(S, k, noise) / self.batch_size  # 1
        X = state.V - self.learning_rate * G  # 2
        return self.after(S, X, graph)  # 3

    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        """What sending X leaves behind."""
        mean = S / self.batch_size
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)}, {"gradient": mean})

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        """S."""
        return gradient.clipped_sum(X, self.clip_norm, norm=self._norm)

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
        rate = min(1.0, self.batch_size / setting.sizes[victim])
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        z = np.full(self.n_rounds, self.noise_multiplier)
        least, most = (releases(s, self.sampling, rate, self.family) for s in (z[known], z))
        return Bracket(least, most, ())

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        if adjacency not in CHANGED_RECORDS:
            return {}
        moved = CHANGED_RECORDS[adjacency] * self.learning_rate * self.clip_norm / self.batch_size
        return {"x": Stated(self._norm, moved)}

    def noise_scales(self) -> Mapping[str, float]:
        """By message: the scale of the noise that each of its entries is said to carry afresh."""
        return {"x": self.learning_rate * self._scale / self.batch_size}

    @property
    def _norm(self) -> Literal[1, 2]:
        return 2 if self.family == "gaussian" else 1

    @property
    def _scale(self) -> float:
        return self.noise_multiplier * self.clip_norm


class MomentumState(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times the models sent last
    M: Tensor  # [..., n_agents, d], momenta


class PrivateMomentum(PrivateGossip):
    """The same, and M <- beta M + G is sent too, which adds nothing to what X tells."""

    messages: ClassVar[Mapping[str, str]] = {**PrivateGossip.messages, "m": "the momentum"}

    momentum: NonNegativeFloat = 0.9  # beta

    def start(self, X: Tensor, setting: Setting) -> Any:
        return MomentumState(X, setting.network.at(1).mix(X), torch.zeros_like(X))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = self.noised(S, k, noise) / self.batch_size
        M = self.momentum * state.M + self.entering(S / self.batch_size, G)
        X = state.V - self.learning_rate * G
        sent = {"x": broadcast(graph, X), "m": broadcast(graph, M)}
        return Round(MomentumState(X, graph.mix(X), M), sent, {"gradient": S / self.batch_size})

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
        rate = min(1.0, self.batch_size / setting.sizes[victim])
        graph = setting.network.at(1)
        ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
        seen = [i for j, i in ends if j == victim and threat_model.sees(j, i)]
        shares = sqrt(sum(graph.W[i, victim].item() ** 2 for i in seen))
        z = np.full(self.n_rounds, self.noise_multiplier / shares) if seen else np.zeros(0)
        same = releases(z, self.sampling, rate)
        return Bracket(same, same, ())

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        if adjacency not in CHANGED_RECORDS:
            return {}
        graph = setting.network.at(k)
        largest = graph.W[graph.receivers[graph.senders == victim], victim].max().item()
        moved = CHANGED_RECORDS[adjacency] * largest * self.clip_norm / self.batch_size
        return {"share": Stated(2, moved)}

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
