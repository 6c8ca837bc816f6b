"""The code under check: decentralized training that answers with noise, beside its claims."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import PositiveFloat
from torch import Tensor

from dpaudit.defense import (
    Bracket,
    Defense,
    Gradient,
    Graph,
    Noise,
    Observable,
    Round,
    Setting,
    ThreatModel,
    broadcast,
    gaussian_rounds,
    step_seen,
)

NOISE = 4.0  # standard deviation of the noise, in clip norms


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], what the messages of the last round mix to


class NoisyGossip(Defense):
    """Every agent sends its model after a noisy gradient step, and mixes what it hears.

    G = (sum of clipped gradients + N(0, NOISE^2 C^2)) / B;  X <- V - eta G, sent;  V <- W X.
    """

    paper: ClassVar[str] = "our own"
    claims: ClassVar[str] = "(epsilon, delta)-DP over the run, one record"
    messages: ClassVar[Mapping[str, str]] = {"x": "the model after the round, under its noise"}

    learning_rate: PositiveFloat = 0.1  # eta
    clip_norm: PositiveFloat = 1.0  # C
    noiseless: bool = False

    def clip_norm_in(self, k: int) -> float:
        return self.clip_norm

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, setting.network.at(1).mix(X))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, V = state
        S = gradient.clipped_sum(X, self.clip_norm)
        G = (S + noise.gaussian("gradient", self._noise * self.clip_norm, S)) / gradient.batch_size
        X = V - self.learning_rate * G
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)})

    def models(self, state: Any) -> Tensor:
        return state.X

    def without_noise(self) -> "NoisyGossip":
        return self.model_copy(update={"noiseless": True})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        return gaussian_rounds(self, setting, threat_model, victim, self._noise)

    @property
    def _noise(self) -> float:
        return 0.0 if self.noiseless else NOISE

    observables: ClassVar[Mapping[str, Observable]] = {
        "noisy-gradient": step_seen("x", lambda self, k, n: self.learning_rate, at="sent")
    }
