"""Quiet gossip: every agent adds noise to its clipped gradient, and sends the model after it."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from dpaudit.defense import (
    Bracket,
    ConfigError,
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


class State(NamedTuple):
    V: Tensor  # [..., n_agents, d], each agent's mixture of the models it received


class QuietGossip(Defense):
    """Rows of V, Z [..., n_agents, d] are agents. With S the sum over the batch of per-record
    gradients at V, clipped to norm C, round k with a doubly stochastic W is
        1.  Z = V - eta (S + N(0, sigma^2 C^2)) / B, sent to the neighbours
        2.  V <- W Z
    """

    paper: ClassVar[str] = "an example"
    claims: ClassVar[str] = "(epsilon, delta)-DP over the run, one record"
    messages: ClassVar[Mapping[str, str]] = {
        "z": "the model after the local step; holds the sender's clipped gradient under Gaussian "
        "noise of standard deviation eta sigma C / B, and all messages before"
    }
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "the mean of the batch's clipped gradients, without noise"
    }

    learning_rate: PositiveFloat = 0.1  # eta
    clip_norm: PositiveFloat = 1.0  # C
    epsilon: PositiveFloat | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    noise_multiplier: Annotated[float, Field(ge=0)] | None = None  # sigma; from epsilon if absent

    @model_validator(mode="after")
    def _noise_is_given_once(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either epsilon or noise_multiplier")
        return self

    def clip_norm_in(self, k: int) -> float:
        return self.clip_norm

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X)

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        V, B, C = state.V, gradient.batch_size, self.clip_norm
        S = gradient.clipped_sum(V, C)
        Z = V - self.learning_rate * (S + noise.gaussian("z", self._sigma * C, S)) / B  # 1
        return Round(State(graph.mix(Z)), {"z": broadcast(graph, Z)}, {"gradient": S / B})  # 2

    def models(self, state: State) -> Tensor:
        return state.V

    def calibrate(self, setting: Setting) -> Self:
        """sigma = q sqrt(T ln(1/delta)) / epsilon, with q = B / D of the agent with fewest records.

        Raises:
            ConfigError: a mixing matrix is not doubly stochastic.
        """
        if not all(graph.doubly_stochastic for graph in setting.network.graphs):
            raise ConfigError(
                "DPA039", "graph: quiet gossip needs a doubly stochastic W in every round"
            )
        if self.epsilon is None:
            return self
        q = min(1.0, self.batch_size / min(setting.sizes))
        sigma = q * math.sqrt(self.n_rounds * math.log(1 / self.delta)) / self.epsilon
        return self.model_copy(update={"noise_multiplier": sigma, "epsilon": None})

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_multiplier": 0.0, "epsilon": None})

    @property
    def _sigma(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError("the noise is not set yet: call calibrate first")
        return self.noise_multiplier

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Whoever reads the z of a round and of the one before knows S under its noise."""
        return gaussian_rounds(self, setting, threat_model, victim, self._sigma)

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> Mapping[str, float]:
        """eta C / B, in L2 norm."""
        return {"z": self.learning_rate * self.clip_norm / self.batch_size}

    observables: ClassVar[Mapping[str, Observable]] = {
        "noisy-gradient": step_seen("z", lambda self, k, n: self.learning_rate)
    }
