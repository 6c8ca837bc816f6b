"""What an adversary knows of a round: whose each row of a draw is."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import unicast
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.probing.observer import Observer
from dpaudit.game.step_inputs import ChosenNoise
from dpaudit.graphs.graph import Graph, Network, build_graph
from dpaudit.registry import load_plugin
from tests.game.test_adversary import Gossip, State


def agent(i: int) -> ThreatModel:
    return ThreatModel(name=f"agent {i}", kind="curious", agents=(i,))


RING = build_graph("directed-ring", 4)


class Masked(Gossip):
    """Every link carries the sender's gradient under noise of its own, of no message's name."""

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        own = gradient(state.X)[..., graph.senders, :]
        return Round(state, {"y": unicast(graph, own + noise.gaussian("mask", 1.0, own))})


def game_of(name: str, network: Network, **options: Any) -> Game:
    setting = Setting(network, (40,) * network.n_agents, 1)
    options = {"noise_multiplier": 3.0, "batch_size": 4, "allow_outside_theory": True, **options}
    defense = Masked() if name == "masked" else load_plugin("defenses", name)(**options)
    return Game.of(defense.calibrate(setting), setting, 1, "add-remove")


def own_rows(game: Game, i: int) -> Mapping[str, list[int]]:
    """The rows of each draw of round 1 that agent i made."""
    graph, asked = game.setting.network.at(1), ChosenNoise()
    silent = game.gradient(torch.zeros(1, dtype=torch.float64))
    state = game.start(1, torch.float64, torch.device("cpu"))
    sent = game.defense.step(state, 1, graph, silent, asked).sent
    rows: dict[str, list[int]] = {name: [] for name in asked.draws}
    for name, row in Observer(game, agent(i)).named(1, sent, asked.draws):
        if name.startswith("own noise of "):
            rows[name.removeprefix("own noise of ")].append(row)
    return rows


@pytest.mark.parametrize(
    ("name", "graph"),
    [("dpdl", build_graph("complete", 2)), ("dp-cga", RING), ("masked", RING)],
)
def test_noise_of_links_is_its_senders_with_as_many_links(name: str, graph: Network) -> None:
    game = game_of(name, graph)
    senders, n_agents = graph.at(1).senders, graph.n_agents
    assert len(senders) == n_agents
    assert senders.tolist() != list(range(n_agents))
    for i in range(n_agents):
        of_links, *of_agents = own_rows(game, i).values()
        assert of_links == (senders == i).nonzero().flatten().tolist()
        assert all(rows == [i] for rows in of_agents)


@pytest.mark.parametrize("name", ["dyn-d2p", "dp-dpsgd", "dp-netfleet"])
def test_noise_of_agents_is_theirs_with_as_many_links(name: str) -> None:
    game = game_of(name, RING)
    for i in range(4):
        assert all(rows == [i] for rows in own_rows(game, i).values())


def test_one_of_two_agents_does_not_know_the_noise_of_the_other() -> None:
    """The algebra has the cross-gradient alone, of which one round is one Gaussian release."""
    game = game_of("dpdl", build_graph("complete", 2), n_rounds=1, sampling="poisson")
    leak = Adversary(game, agent(0), 1, messages=frozenset({"cross_gradient"})).leak
    declared = game.defense.mechanism(game.setting, agent(0), 1)
    low, high = (epsilon(m, 1e-5) for m in (declared.least, declared.most))
    found = epsilon(leak.mechanism(game, None), 1e-5)
    assert 0 < found.low <= high.high
    assert low.low > found.high  # what is declared counts the momentum, too
