"""Gradient tracking: exact convergence with a constant step size, and two messages in the clear."""

from typing import Any

from pydantic import PositiveFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, Tracking


def tracked(said: str) -> dict[str, dp.Combination]:
    """All changes of a victim's tracker, whose sum is its gradient."""

    def derive(defense: Any, view: dp.View, setting: Setting, target: dp.Target) -> Tensor:
        k, victim, _ = target
        G = view.sent_by("y", 1, victim)
        for j in range(2, k + 1):
            G = G + view.sent_by("y", j, victim)
            G = G - dp.mixed(view, setting.network.at, "y", j - 1, victim)
        return G.unsqueeze(-2)

    said = f"y_i of round 1 and the changes of y_i since{said}"
    return {"tracked": dp.Combination(said, ("y",), 0, derive)}


class GradientTracking(dp.NoiselessFunctionDefense):
    """Xie, Liu and Chai (7); rows of X, Y [..., n_agents, d] are agents, both sent in the clear.

        a.  X+ = W X - alpha Y
        b.  Y+ = W Y + grad F(X+) - grad F(X),  with Y = grad F(X) at the start

    The columns of Y keep adding up to those of grad F(X). With sampled batches a round's batch
    serves grad F(X+), and grad F(X) is the one already used.
    """

    paper = "gradient tracking, as in Xie, Liu, Chai (7)"
    needs_graph = dp.undirected("gradient tracking", " (Assumption 2)")
    state = Tracking
    messages = {
        "x": "the model before the round, without noise",
        "y": "the tracker before the round, without noise; in round 1 the gradient itself",
    }
    private = {"gradient": "grad f_i at the model that is sent"}

    step_size: PositiveFloat = 0.01  # alpha

    def step(
        self, state: Tracking, k: int, graph: Graph, gradient: Gradient, noise: Noise
    ) -> Round:
        X, Y, G = state.begun(k, gradient)
        sent = {"x": dp.broadcast(graph, X), "y": dp.broadcast(graph, Y)}
        X_next = graph.mix(X) - self.step_size * Y  # a
        G_next = gradient(X_next)
        Y_next = graph.mix(Y) + G_next - G  # b
        return Round(Tracking(X_next, Y_next, G_next), sent, {"gradient": G})

    combinations = tracked(", which add up to the gradient itself")
