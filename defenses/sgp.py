"""SGP: stochastic gradient push, without any privacy."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from dpaudit.defense import (
    Bracket,
    Defense,
    Gradient,
    Graph,
    Noise,
    Observable,
    ObservedGradient,
    Round,
    Setting,
    Target,
    ThreatModel,
    View,
    broadcast,
    known_rounds,
    refuse_unless_column_stochastic,
    replayed,
    start_and_step,
)


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], biased by the push-sum weights
    w: Tensor  # [..., n_agents, 1], push-sum weights
    V: Tensor  # [..., n_agents, d], momentum, never sent


class SGP(Defense):
    """Assran, Loizou, Ballas and Rabbat, Algorithm 1; rows of X, U [..., n_agents, d] are agents.

    From w = 1, round k with a column-stochastic P is
        1.  G = grad F(X / w)
        2.  U = X - gamma G, sent with w to the out-neighbours
        3.  X <- P U,  w <- P w;  the models are X / w
    With ``momentum`` m, as in the public code, V <- m V + G and U = X - gamma (G + m V).
    """

    paper: ClassVar[str] = "Assran, Loizou, Ballas, Rabbat: SGP"
    claims: ClassVar[str] = "none"
    messages: ClassVar[Mapping[str, str]] = {
        "u": "the biased model after the local step; holds the sender's gradient without noise",
        "w": "push-sum weight; depends on the graph alone",
    }
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "the mean gradient of the batch of the round, without noise",
    }

    learning_rate: PositiveFloat = 0.05  # gamma
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # Nesterov's

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.ones_like(X[..., :1]), torch.zeros_like(X))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, w, V = state
        G = gradient(X / w)  # 1
        V = self.momentum * V + G
        U = X - self.learning_rate * (G + self.momentum * V)  # 2
        sent = {"u": broadcast(graph, U), "w": broadcast(graph, w)}
        return Round(State(graph.mix(U), graph.mix(w), V), sent, {"gradient": G})  # 3

    def models(self, state: State) -> Tensor:
        return state.X / state.w

    def calibrate(self, setting: Setting) -> Self:
        """There is no noise to set.

        Raises:
            ConfigError: a mixing matrix is not column-stochastic.
        """
        refuse_unless_column_stochastic(setting.network, "SGP")
        return self

    def without_noise(self) -> Self:
        return self

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's gradient as it is."""
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        return replayed(self, setting, victim, np.zeros(self.n_rounds), known)

    def _gradient(self, view: View, setting: Setting, target: Target) -> ObservedGradient:
        X, step = start_and_step(view, setting.network.at, "u", target)
        w = view.sent_by("w", target.round, target.victim)
        return ObservedGradient(step / self.learning_rate, X / w)

    observables: ClassVar[Mapping[str, Observable]] = {
        "gradient": Observable(
            "(x_i - u_i) / gamma with x_i mixed from the messages of the round before: the "
            "gradient, plus m V where there is momentum m",
            {"u": (-1, 0), "w": (0,)},
            "u",
            False,
            _gradient,
        )
    }
