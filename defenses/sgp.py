"""SGP: stochastic gradient push, without any privacy."""

from typing import Annotated, NamedTuple

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], biased by the push-sum weights
    w: Tensor  # [..., n_agents, 1], push-sum weights
    V: Tensor  # [..., n_agents, d], momentum, never sent


class SGP(dp.NoiselessDefense):
    """Assran, Loizou, Ballas and Rabbat, Algorithm 1; rows of X, U [..., n_agents, d] are agents.

    From w = 1, round k with a column-stochastic P is
        1.  G = grad F(X / w)
        2.  U = X - gamma G, sent with w to the out-neighbours
        3.  X <- P U,  w <- P w;  the models are X / w
    With ``momentum`` m, as in the public code, V <- m V + G and U = X - gamma (G + m V).
    """

    paper = "Assran, Loizou, Ballas, Rabbat: SGP"
    messages = {
        "u": "the biased model after the local step; holds the sender's gradient without noise",
        "w": "push-sum weight; depends on the graph alone",
    }
    private = {"gradient": "the mean gradient of the batch of the round, without noise"}

    needs_graph = dp.column_stochastic("SGP")

    learning_rate: PositiveFloat = 0.05  # gamma
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # Nesterov's

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.ones_like(X[..., :1]), torch.zeros_like(X))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, w, V = state
        G = gradient(X / w)  # 1
        V = self.momentum * V + G
        U = X - self.learning_rate * (G + self.momentum * V)  # 2
        sent = {"u": dp.broadcast(graph, U), "w": dp.broadcast(graph, w)}
        return Round(State(graph.mix(U), graph.mix(w), V), sent, {"gradient": G})  # 3

    def models(self, state: State) -> Tensor:
        return state.X / state.w

    observables = {  # where there is momentum m, the gradient plus m V
        "gradient": dp.step_seen("u", weight="w")
    }
