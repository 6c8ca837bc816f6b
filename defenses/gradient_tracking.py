"""Gradient tracking: exact convergence with a constant step size, and two messages in the clear."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self

import torch
from pydantic import PositiveFloat
from torch import Tensor

from dpaudit.defense import (
    Bracket,
    Combination,
    Defense,
    Gradient,
    Graph,
    Noise,
    Round,
    Setting,
    Target,
    ThreatModel,
    View,
    broadcast,
    mixed,
    refuse_unless_symmetric,
)

from .dgd import noiseless_bracket


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d]
    Y: Tensor  # [..., n_agents, d], tracks the mean gradient
    G: Tensor  # [..., n_agents, d], the gradient at X


class GradientTracking(Defense):
    """Xie, Liu and Chai (7); rows of X, Y [..., n_agents, d] are agents, both sent in the clear.

        a.  X+ = W X - alpha Y
        b.  Y+ = W Y + grad F(X+) - grad F(X),  with Y = grad F(X) at the start

    The columns of Y keep adding up to those of grad F(X). With sampled batches a round's batch
    serves grad F(X+), and grad F(X) is the one already used.
    """

    paper: ClassVar[str] = "gradient tracking, as in Xie, Liu, Chai (7)"
    claims: ClassVar[str] = "none"
    messages: ClassVar[Mapping[str, str]] = {
        "x": "the model before the round, without noise",
        "y": "the tracker before the round, without noise; in round 1 the gradient itself",
    }
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "grad f_i at the model that is sent",
    }

    step_size: PositiveFloat = 0.01  # alpha

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.zeros_like(X), torch.zeros_like(X))  # round 1 sets Y and G

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, Y, G = state
        if k == 1:
            Y = G = gradient(X)
        sent = {"x": broadcast(graph, X), "y": broadcast(graph, Y)}
        X_next = graph.mix(X) - self.step_size * Y  # a
        G_next = gradient(X_next)
        Y_next = graph.mix(Y) + G_next - G  # b
        return Round(State(X_next, Y_next, G_next), sent, {"gradient": G})

    def models(self, state: State) -> Tensor:
        return state.X

    def calibrate(self, setting: Setting) -> Self:
        """Itself. Raises ConfigError: W is not fixed, symmetric and doubly stochastic."""
        refuse_unless_symmetric(setting.network, "gradient tracking", "Assumption 2")
        return self

    def without_noise(self) -> Self:
        """Itself: it draws no noise."""
        return self

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """No noise; y is the gradient from round 1 on."""
        return noiseless_bracket(self.n_rounds, setting, threat_model, victim)

    def _sum(self, view: View, setting: Setting, target: Target) -> Tensor:
        k, victim, _ = target
        G = view.sent_by("y", 1, victim)
        for j in range(2, k + 1):  # b
            G = G + view.sent_by("y", j, victim)
            G = G - mixed(view, setting.network.at, "y", j - 1, victim)
        return G.unsqueeze(-2)

    combinations: ClassVar[Mapping[str, Combination]] = {
        "tracked": Combination(
            "y_i of round 1 and the changes of y_i since, which add up to the gradient itself",
            ("y",),
            0,
            _sum,
        )
    }
