"""Rounds in which the record's agent takes no step: rounding there is no message without noise."""

import numpy as np

from dpaudit.defense import GaussianDefense, Round, Setting, broadcast
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph

from .test_local_steps import State


class Pairwise(GaussianDefense):
    """Two agents average; the active one takes a step after it."""

    paper = claims = "none"
    messages = {"x": "the model before the step"}

    def start(self, X, setting):
        return State(X)

    def step(self, state, k, graph, gradient, noise):
        X, C = state.X, self.clip_norm
        S = gradient.clipped_sum(X, C)
        N = noise.gaussian("gradient", self.sigma * C, S)
        after = graph.mix(X) - graph.acting(X) * (S + N)
        return Round(State(after), {"x": broadcast(graph, X)})

    def models(self, state):
        return state.X


def test_an_agent_that_waits_shows_nothing_new() -> None:
    rounds, n = 12, 4
    options = graph_options("pairwise", among="ring")
    network = build_graph(options, n, np.random.default_rng(0), rounds)
    setting = Setting(network, (100,) * n, d=50)
    defense = Pairwise(noise_multiplier=2.0, n_rounds=rounds, batch_size=10, sampling="poisson")
    game = Game.of(defense, setting, 0, "add-remove")
    for kind, agents in (("external", ()), ("curious", (1,))):
        leak = Adversary(game, ThreatModel(name="a", kind=kind, agents=agents), rounds).leak
        acting = [network.at(k).active == (0,) for k in range(1, rounds + 1)]
        mus = leak.by_round.tolist()
        assert all(mu == 0 for mu, acts in zip(mus, acting, strict=True) if not acts)
        assert all(mu <= 0.5 * (1 + 1e-9) for mu in mus)
        assert not leak.noiseless
    assert sum(acting) > 0
