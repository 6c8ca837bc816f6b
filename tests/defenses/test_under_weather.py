"""What defenses declare under weather, beside the exact leak; and steps of agents that wait."""

from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.noise import Noise
from dpaudit.files.options import graph_options
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from tests.defenses.leaks import EAVESDROPPER, curious, leak_within_bracket

ROUNDS = 4
LOUD = {"noise_multiplier": 2.0, "n_rounds": ROUNDS, "batch_size": 4}
CASES = [
    ("dp-dpsgd", "ring", {}),
    ("decor", "ring", {}),
    ("zip-dl", "ring", {"self_noise": True}),
    ("muffliato", "ring", {"gossip_steps": 2}),
    ("adp2sgd", "ring", {}),
    ("adp2sgd", "pairwise", {}),
    ("dyn-d2p", "exponential", {"schedule": "const"}),
]

FAST = ("decor", "dyn-d2p")
SLOW = pytest.mark.slow


def played(name: str, **options: object) -> Defense:
    return load_plugin("defenses", name)(**LOUD, **options)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "graph", "options"),
    [pytest.param(*c, marks=[SLOW] * (c[0] not in FAST)) for c in CASES],
)
def test_declared_ends_hold_the_leak_under_weather(name, graph, options, seed) -> None:
    weather = {"loss": 0.2, "churn": 0.2, "stragglers": 0.2}
    rng, drawn = np.random.default_rng(seed), np.random.default_rng(seed)
    network = build_graph(graph_options(graph, **weather), 5, rng, ROUNDS, drawn)
    setting = Setting(network, (20,) * 5, 1)
    for view in (EAVESDROPPER, curious(0)):
        leak_within_bracket(played(name, **options), setting, view)


def held(name: str, defense: Defense, state: Any) -> torch.Tensor:
    """What an agent starts a round from; the models of D-PSGD are those that were sent."""
    return state.V if name == "dp-dpsgd" else defense.models(state)


@pytest.mark.parametrize(("name", "graph", "options"), CASES)
def test_an_absent_agent_keeps_its_model(name, graph, options) -> None:
    network = build_graph(
        graph_options(graph, churn=0.25), 5, np.random.default_rng(1), 8, np.random.default_rng(1)
    )
    setting = Setting(network, (20,) * 5, 1)
    defense = played(name, **options).model_copy(update={"n_rounds": 8})
    game = Game.of(defense, setting, 1, "add-remove", "poisson")
    state, streams = game.start(2), Streams(4)
    for k in range(1, 9):
        before = held(name, defense, state)
        state = game.step(state, k, game.drawn_alike(1.0, 2), Noise(streams, k)).state
        graph_k = network.at(k)
        linked = {agent for link in graph_k.links for agent in link}
        away = [i for i in range(5) if i not in (graph_k.active or range(5)) and i not in linked]
        assert torch.allclose(held(name, defense, state)[:, away], before[:, away])
