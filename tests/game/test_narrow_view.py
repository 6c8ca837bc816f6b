"""Few observations of many agents, found from the messages backwards: the figures of the filter."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dpaudit.game.filtering.adversary as adversary_module
import dpaudit.game.filtering.narrow_view as narrow_module
from dpaudit.defense.contract import Setting
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.narrow_view import NarrowView, is_narrow
from dpaudit.game.game import Game
from dpaudit.game.network.local import local_mu
from dpaudit.game.runs.play import play
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams

from .test_adversary import Gossip
from .test_local_filter import (
    ALL_AGENTS_KNOWN,
    ALL_LINKS,
    DEFENSES,
    NONE_KNOWN,
    ONE_AGENT,
    SOME_LINKS,
    assert_same,
    game_of,
)

SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def _all_views_are_narrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "large" not in request.fixturenames:
        monkeypatch.setattr(narrow_module, "NARROW", 0)


def both(
    monkeypatch: pytest.MonkeyPatch, game: Game, model: ThreatModel, n_rounds: int, **how: Any
) -> tuple[Adversary, Adversary]:
    """As a narrow view, and by dense matrices."""
    taken = []
    of = NarrowView.of.__func__  # type: ignore[attr-defined]

    def noted(cls: type[NarrowView], *args: Any) -> NarrowView | None:
        taken.append(of(cls, *args))
        return taken[-1]

    monkeypatch.setattr(NarrowView, "of", classmethod(noted))
    monkeypatch.setattr(adversary_module, "SPARSE_FROM", ALL_AGENTS_KNOWN)
    narrow = Adversary(game, model, n_rounds, **how)
    assert isinstance(taken[-1], NarrowView)
    monkeypatch.setattr(adversary_module, "SPARSE_FROM", NONE_KNOWN)
    return narrow, Adversary(game, model, n_rounds, **how)


def assert_same_reaction(one: Adversary, other: Adversary) -> None:
    assert (one.reacts is None) == (other.reacts is None)
    if one.reacts is not None and other.reacts is not None:
        assert one.reacts.round == other.reacts.round


@pytest.mark.parametrize(
    ("name", "graph", "options", "reader", "one_message"),
    [
        pytest.param(*defense, view, one, marks=[] if (i + j + 6 * one) % 12 == 0 else SLOW)
        for i, defense in enumerate(DEFENSES)
        for j, view in enumerate((ONE_AGENT, SOME_LINKS, ALL_LINKS))
        for one in (False, True)
    ],
)
def test_a_narrow_view_leaks_what_it_leaks_by_dense_algebra(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    graph: str,
    options: dict[str, Any],
    reader: ThreatModel,
    one_message: bool,
) -> None:
    game = game_of(name, graph, n_rounds=4, **options)
    narrow, dense = both(monkeypatch, game, reader, 4, one_message=one_message)
    if reader is ALL_LINKS:  # of which the filter may recover all Laplace draws; this does not
        for one, other in zip(narrow.leak.by_use, dense.leak.by_use, strict=True):
            assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
        return
    assert_same(narrow, dense)
    if graph == "ring":  # nothing is too far away to be relayed in time
        assert_same_reaction(narrow, dense)


@pytest.mark.parametrize("reader", [SOME_LINKS, ONE_AGENT], ids=lambda r: r.kind)
@pytest.mark.parametrize("graph", ["ring", "k-regular"])
def test_runs_have_the_scores_that_dense_algebra_gives_them(
    monkeypatch: pytest.MonkeyPatch, reader: ThreatModel, graph: str
) -> None:
    game = game_of("dp-dpsgd", graph, n_rounds=4, noise_multiplier=1.0, perturb="model")
    played = [play(a, 60, Streams(7)).scores for a in both(monkeypatch, game, reader, 4)]
    for narrow, dense in zip(*played, strict=True):
        np.testing.assert_allclose(narrow, dense, rtol=1e-8, atol=1e-9)
        assert np.ptp(narrow) > 0


def gossip_game(graph: str, n: int, reader: int, n_rounds: int, **options: Any) -> Game:
    """x <- W (x + g + z), the record of a neighbour of ``reader`` in every round."""
    network = build_graph(graph_options(graph, **options), n, np.random.default_rng(0))
    victim = network.at(1).neighbours(reader)[0]
    defense = Gossip(n_rounds=n_rounds, batch_size=1)
    game = Game(defense, Setting(network, (10,) * n, 1), victim, "add-remove", 1.0, 1.0, "none")
    return replace(game, coordinates=64)  # a direction for each use


GRAPHS: list[tuple[str, dict[str, Any]]] = [
    ("ring", {}),
    ("k-regular", {"k": 10}),
    ("power-law", {}),
]


def region(game: Game, agent: int, n_receivers: int) -> ThreatModel:
    """Who reads every link into an agent and some of those around it."""
    graph = game.setting.network.at(1)
    into = {agent, *sorted(graph.neighbours(agent))[: n_receivers - 1]}
    return ThreatModel(name="region", links=tuple(a for a in graph.links if a[1] in into))


def assert_as_by_rows_of_W(game: Game, reader: ThreatModel, n_rounds: int) -> None:
    adversary = Adversary(game, reader, n_rounds)
    W = game.setting.network.at(1).sparse
    expected = local_mu(W, n_rounds, reader, [game.victim])
    (found,) = adversary.leak.by_use
    assert found.low**0.5 == pytest.approx(float(expected.low[0]), rel=1e-6)
    assert found.high**0.5 == pytest.approx(float(expected.high[0]), rel=1e-6)


@pytest.mark.parametrize(("graph", "options"), GRAPHS)
@pytest.mark.usefixtures("large")
def test_three_hundred_agents_leak_what_rows_of_W_say(graph: str, options: dict[str, Any]) -> None:
    game = gossip_game(graph, 300, 150, 5, **options)
    curious = ThreatModel(name="agent 150", kind="curious", agents=(150,))
    assert_as_by_rows_of_W(game, curious, 5)
    assert_as_by_rows_of_W(game, region(game, 150, 2), 5)


@pytest.mark.slow
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("graph", "options"), GRAPHS)
def test_ten_thousand_agents_leak_what_rows_of_W_say(graph: str, options: dict[str, Any]) -> None:
    game = gossip_game(graph, 10_000, 5_000, 8, **options)
    curious = ThreatModel(name="agent 5000", kind="curious", agents=(5_000,))
    assert_as_by_rows_of_W(game, curious, 8)
    assert_as_by_rows_of_W(game, region(game, 5_000, 4), 8)


@pytest.fixture
def large() -> None:
    """Views are narrow where they are in an audit."""


@pytest.mark.usefixtures("large")
def test_rounds_are_followed_as_far_as_they_are_factored() -> None:
    game = gossip_game("k-regular", 300, 150, 1_000, k=10)
    shape = GameShape.of(game, ThreatModel(name="one", kind="curious", agents=(150,)))
    followed = shape.followed(1_000)
    assert is_narrow(shape.observed, shape.draws, 300, followed)
    assert shape.affordable >= followed > 20
    assert not is_narrow(shape.observed, shape.draws, 300, 10 * shape.affordable)


@pytest.mark.usefixtures("large")
def test_what_is_read_by_half_of_all_agents_is_no_narrow_view() -> None:
    assert is_narrow(12, 100, 100, 5)
    assert not is_narrow(50, 100, 100, 5)
    assert not is_narrow(12, 100, 100, 10_000)
