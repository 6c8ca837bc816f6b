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
    past_U: Tensor  # [..., n_agents, delay, d], what was sent in the last rounds
    past_w: Tensor  # [..., n_agents, delay, 1]


class SGP(dp.NoiselessDefense):
    """Assran, Loizou, Ballas and Rabbat, Algorithm 1; rows of X, U [..., n_agents, d] are agents.

    From w = 1, round k with a column-stochastic P is
        1.  G = grad F(X / w)
        2.  U = X - gamma G, sent with w to the out-neighbours
        3.  X <- P U,  w <- P w;  the models are X / w
    With ``momentum`` m, as in the public code, V <- m V + G and U = X - gamma (G + m V).
    """

    waits = True
    delays = True
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
        w = torch.ones_like(X[..., :1])
        late = dp.in_flight(X, setting), dp.in_flight(w, setting)
        return State(X, w, torch.zeros_like(X), *late)

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, w, V, past_U, past_w = state
        G = dp.of_acting(graph, X / w, gradient)  # 1
        V = torch.where(graph.acting(V) > 0, self.momentum * V + G, V)
        U = X - self.learning_rate * dp.stepping(graph, G + self.momentum * V)  # 2
        sent = {"u": dp.broadcast(graph, U), "w": dp.broadcast(graph, w)}
        X, past_U = dp.arrived(graph, U, past_U)  # 3
        w, past_w = dp.arrived(graph, w, past_w)
        return Round(State(X, w, V, past_U, past_w), sent, {"gradient": G})

    def models(self, state: State) -> Tensor:
        return state.X / state.w

    observables = {  # where there is momentum m, the gradient plus m V
        "gradient": dp.step_seen("u", weight="w")
    }
