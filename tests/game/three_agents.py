"""A defense of agents on a path, whose matrices follow by hand; every agent begins at its own."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast
from dpaudit.game.game import Game
from dpaudit.graphs.graph import Graph, build_graph
from tests.game.test_adversary import Gossip

BEGIN = (1.0, -4.0, 2.0)  # the first models, again and again
ONE = 1250.0  # what a record moves a gradient by: a length of 1e4, in a batch of 8
ROOT2 = 2**0.5


class Held(NamedTuple):
    X: Tensor  # the models
    M: Tensor  # the gradients of the round before, five times


class Trio(Gossip):
    """Round by round, with noise z ~ N(0, 3^2) and l ~ Laplace(1):

    Y = 2 X + g(X) + z and V = M + l are sent; X <- W Y + g(7 Y), M <- 5 g(X).
    """

    n_rounds: int = 2
    batch_size: int = 8

    def start(self, X: Tensor, setting: Setting) -> Any:
        n = X.shape[-2]
        begin = torch.tensor(BEGIN, dtype=X.dtype).repeat(n)[:n, None]
        return Held(X + begin, torch.zeros_like(X))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        g = gradient(state.X)
        Y = 2 * state.X + g + noise.gaussian("z", 3.0, state.X)
        V = state.M + noise.laplace("l", 1.0, state.M)
        X = graph.mix(Y) + gradient(7 * Y)
        return Round(Held(X, 5 * g), {"y": broadcast(graph, Y), "v": broadcast(graph, V)})


def trio(n_agents: int = 3, **options: Any) -> Game:
    """Agent 1 holds the record."""
    setting = Setting(build_graph("path", n_agents), (40,) * n_agents, 1)
    return Game.of(Trio(**options), setting, 1, "add-remove", "poisson")


def weights(n_agents: int = 3) -> np.ndarray:
    """W [n_agents, n_agents]."""
    return np.asarray(build_graph("path", n_agents).at(1).W.double().numpy())
