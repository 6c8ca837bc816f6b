"""Many agents of which each step reaches few others: the same figures as by dense algebra."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import dpaudit.game.filtering.adversary as adversary_module
from dpaudit.defense.contract import Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.matrices import NotLocal
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.sparse_probe import steps_of
from dpaudit.game.runs.play import play
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

from .test_adversary import Gossip, State

ALL_LINKS = ThreatModel(name="eavesdropper", kind="external")
ONE_AGENT = ThreatModel(name="agent 3", kind="curious", agents=(3,))
SOME_LINKS = ThreatModel(name="taps", kind="external", links=((1, 2), (5, 6), (6, 5)))
ALL_AGENTS_KNOWN, NONE_KNOWN = 0, 10**9  # agents from which on steps are probed together

NOISE = {"noise_multiplier": 1.0}
OUTSIDE = {"allow_outside_theory": True}
DEFENSES: list[tuple[str, str, dict[str, Any]]] = [
    ("dp-dpsgd", "ring", NOISE),
    ("dp-dpsgd", "k-regular", NOISE),
    ("dp-dpsgd", "exponential", NOISE | OUTSIDE),
    ("dp-dpsgd", "path", {**NOISE, "perturb": "model"}),
    ("d-psgd", "ring", {}),
    ("dgd", "ring", {}),
    ("dp-dgd", "ring", {}),
    ("dp-dgd", "exponential", {**OUTSIDE, "variant": "true-consensus"}),
    ("dp-dfedsam", "ring", NOISE),
    ("dp-netfleet", "exponential", NOISE | OUTSIDE),
    ("dpdl", "ring", NOISE),
    ("dpop", "k-regular", {}),
    ("dyn-d2p", "exponential", NOISE),
    ("fed-cdp", "ring", NOISE),
    ("feddpa", "exponential", NOISE | OUTSIDE),
    ("gradient-tracking", "k-regular", {}),
    ("mafalda", "ring", NOISE),
    ("mapa", "exponential", NOISE),
    ("net-fleet", "ring", {}),
    ("ppsgd", "exponential", NOISE),
    ("sensitivity-reduced", "ring", OUTSIDE),
    ("sgp", "exponential", {}),
    ("decor", "ring", NOISE),
    ("zip-dl", "ring", NOISE),
]


def game_of(name: str, graph: str, n: int = 20, victim: int = 2, **options: Any) -> Game:
    network = build_graph(graph_options(graph), n, np.random.default_rng(0))
    setting = Setting(network, (40,) * n, 1)
    defense = load_plugin("defenses", name)(batch_size=8, **options).calibrate(setting)
    return Game.of(defense, setting, victim, "add-remove", "poisson")


def both(
    monkeypatch: pytest.MonkeyPatch, game: Game, model: ThreatModel, n_rounds: int, **how: Any
) -> tuple[Adversary, Adversary]:
    """By parts and by dense matrices."""
    found = []
    for first in (ALL_AGENTS_KNOWN, NONE_KNOWN):
        monkeypatch.setattr(adversary_module, "SPARSE_FROM", first)
        found.append(Adversary(game, model, n_rounds, **how))
    return found[0], found[1]


def assert_same(one: Adversary, other: Adversary) -> None:
    a, b = one.leak, other.leak
    for x, y in zip(a.by_use, b.by_use, strict=True):
        assert x == pytest.approx(y, rel=1e-9, abs=1e-12)
    assert a.noiseless == b.noiseless
    assert (a.is_proven, a.has_laplace) == (b.is_proven, b.has_laplace)
    if not a.noiseless:
        torch.testing.assert_close(a.pure, b.pure, equal_nan=True, rtol=1e-9, atol=1e-12)
        assert sorted(a.parts) == pytest.approx(sorted(b.parts), rel=1e-9)
        assert a.separate == b.separate


VIEWS = (ALL_LINKS, ONE_AGENT, SOME_LINKS)


@pytest.mark.parametrize(
    ("name", "graph", "options", "reader"),
    [
        pytest.param(*defense, view, marks=[] if (i + j) % 3 == 0 else pytest.mark.slow)
        for i, defense in enumerate(DEFENSES)
        for j, view in enumerate(VIEWS)
    ],
)
def test_by_parts_a_view_leaks_what_it_leaks_by_dense_algebra(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    graph: str,
    options: dict[str, Any],
    reader: ThreatModel,
) -> None:
    game = game_of(name, graph, n_rounds=4, **options)
    steps_of(Observer(game, reader), 4)  # raises where it is not done by parts
    parts, dense = both(monkeypatch, game, reader, 4)
    assert_same(parts, dense)
    if reader is ALL_LINKS or graph == "ring":  # nothing is too far away to be relayed in time
        assert (parts.reacts is None) == (dense.reacts is None)


@pytest.mark.parametrize("reader", [ALL_LINKS, ONE_AGENT], ids=lambda r: r.kind)
@pytest.mark.parametrize("perturb", ["gradient", "model"])
def test_runs_have_the_scores_that_dense_algebra_gives_them(
    monkeypatch: pytest.MonkeyPatch, reader: ThreatModel, perturb: str
) -> None:
    game = game_of("dp-dpsgd", "ring", n_rounds=3, noise_multiplier=1.0, perturb=perturb)
    played = [play(a, 60, Streams(7)).scores for a in both(monkeypatch, game, reader, 3)]
    for parts, dense in zip(*played, strict=True):
        np.testing.assert_allclose(parts, dense, rtol=1e-8, atol=1e-9)
        assert np.ptp(parts) > 0


def test_the_most_telling_message_is_the_one_of_dense_algebra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    game = game_of("dp-dpsgd", "ring", n_rounds=2, noise_multiplier=1.0)
    parts, dense = both(monkeypatch, game, ONE_AGENT, 2, one_message=True)
    assert parts.rounds[1].messages == dense.rounds[1].messages
    assert_same(parts, dense)


class FarGossip(Gossip):
    """Beside its neighbours' an agent gets what stands half-way around the ring."""

    far: ClassVar[float] = 0.1

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        after, sent, *_ = super().step(state, k, graph, gradient, noise)
        X = after.X + self.far * sent["y"].payload.roll(graph.n_agents // 2, dims=-2)
        return Round(State(X), sent)


class SquaredGossip(Gossip):
    """A little of the square of what is sent stays."""

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        after, sent, *_ = super().step(state, k, graph, gradient, noise)
        return Round(State(after.X + 1e-3 * sent["y"].payload.square()), sent)


def toy_game(toy: type[Gossip], n: int = 24) -> Game:
    setting = Setting(build_graph("ring", n), (10,) * n, 1)
    return Game(toy(n_rounds=4, batch_size=1), setting, 2, "add-remove", 1.0, 1.0, "none")


@pytest.mark.parametrize("toy", [FarGossip, SquaredGossip])
def test_a_step_that_reaches_further_is_done_densely(
    monkeypatch: pytest.MonkeyPatch, toy: type[Gossip]
) -> None:
    game = toy_game(toy)
    with pytest.raises(NotLocal, match="reaches further"):
        steps_of(Observer(game, ONE_AGENT), 2)
    parts, dense = both(monkeypatch, game, ONE_AGENT, 4)
    assert_same(parts, dense)
    assert steps_of(Observer(toy_game(Gossip), ONE_AGENT), 2)


def test_a_far_step_of_many_agents_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="4000 at most where all depends on all .*reaches"):
        Adversary(toy_game(FarGossip, 4100), ONE_AGENT, 1)


def test_of_two_thousand_agents_one_learns_the_closed_form() -> None:
    """In one round agent 3 reads x + z of agent 2 alone: mu = 1; two hops away 0.3349 by 40."""
    n = 2000
    near = Adversary(toy_game(Gossip, n), ONE_AGENT, 1)
    assert near.leak.by_use[0].low == pytest.approx(1.0)
    game = Game(toy_game(Gossip, n).defense, toy_game(Gossip, n).setting, 5, "add-remove",
                1.0, 0.1, "poisson")  # fmt: skip
    far = Adversary(game, ONE_AGENT, 4).leak.by_round[0].item()
    small = Game(toy_game(Gossip).defense, toy_game(Gossip).setting, 5, "add-remove",
                 1.0, 0.1, "poisson")  # fmt: skip
    assert far == pytest.approx(Adversary(small, ONE_AGENT, 4).leak.by_round[0].item(), rel=1e-9)
    assert 0.2 < far < 0.34
