"""Which record, agent and layers a game is about, and what a leak says of rounds, by hand."""

from dataclasses import replace
from math import log, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import Interval, epsilon
from dpaudit.defense.contract import Round, Setting
from dpaudit.defense.transcript import broadcast
from dpaudit.defenses.fed_cdp import FedCDP
from dpaudit.files.threat import ThreatModel
from dpaudit.game.estimating import window
from dpaudit.game.estimating.window import WindowShape
from dpaudit.game.filtering.leak import EVERY_ROUND, Leak
from dpaudit.game.game import Game
from dpaudit.game.runs import noise_law
from dpaudit.game.runs.noise_law import hiding_without
from dpaudit.game.worst_case import layers, record
from dpaudit.game.worst_case.layers import CoordinateMoves
from dpaudit.graphs.graph import build_graph
from dpaudit.release import Release
from dpaudit.rng import Streams
from tests.game.test_adversary import EAVESDROPPER, State, curious
from tests.game.test_values_of_laws import Toy, toy

NOTHING: Any = None
LAYERS = (("a", 20), ("b", 4), ("c", 30), ("d", 6))


def leak_of(*squares: float, **of: Any) -> Leak:
    n = len(squares)
    about = {
        "by_use": tuple(Interval(s, s + 1) for s in squares), "noiseless": {}, "parts": (),
        "pure": torch.full((n,), float("nan")).double(), "separate": True, "has_laplace": False,
        **of,
    }  # fmt: skip
    return Leak(**about)


def test_a_round_leaks_as_its_worst_batch() -> None:
    assert leak_of(4.0, 9.0, 1.0).by_round.tolist() == [2.0, 3.0, 1.0]
    assert leak_of(4.0, 9.0, 1.0, 16.0, batches=2).by_round.tolist() == [3.0, 4.0]
    assert leak_of(9.0, 4.0, batches=2).by_round.tolist() == [3.0]
    assert leak_of(9.0, batches=2).by_round.tolist() == [3.0]  # of all rounds


def test_the_first_round_without_noise_is_that_of_its_batch() -> None:
    assert leak_of(1.0).shown is None
    for j, batches, k in ((1, 1, 1), (3, 1, 3), (3, 2, 2), (4, 2, 2), (EVERY_ROUND, 2, 1)):
        found = leak_of(1.0, noiseless={j: "x", 9: "y"}, batches=batches)
        assert found.shown == (k, "x")


def test_a_leak_is_pure_where_every_draw_is_given() -> None:
    for pure, is_pure in (([1.0, 0.0], True), ([1.0, float("nan")], False), ([], False)):
        found = leak_of(1.0, pure=torch.tensor(pure).double())
        assert found.is_pure is is_pure


def test_releases_of_a_leak_are_of_its_shifts() -> None:
    game: Any = SimpleNamespace(releases=lambda shifts, family: (list(shifts), family))
    own = leak_of(4.0, 0.0, 9.0, 1.0)
    assert own.mechanism(game, None) == ([2.0, 3.0, 1.0], "gaussian")
    assert own.mechanism(game, None, high=True)[0] == pytest.approx(  # type: ignore[index]
        [sqrt(5), 1.0, sqrt(10), sqrt(2)]
    )
    assert own.mechanism(game, 3) == ([3.0], "gaussian")
    assert own.mechanism(game, 2) == ()
    two = leak_of(4.0, 0.0, 9.0, 1.0, batches=2)
    assert [two.mechanism(game, k)[0] for k in (1, 2)] == [[2.0], [3.0, 1.0]]  # type: ignore[index]
    apart = leak_of(4.0, 9.0, apart=(16.0, 25.0), separate=False)
    assert apart.mechanism(game, None, high=True) == ([4.0, 5.0], "gaussian")
    assert apart.mechanism(game, None) == ([2.0, 3.0], "gaussian")
    pure = leak_of(4.0, 9.0, pure=torch.tensor([0.5, 0.25]).double())
    assert pure.mechanism(game, None) == ([0.5, 0.25], "laplace")
    parts = leak_of(4.0, pure=torch.tensor([0.5]).double(), parts=(0.25, 0.125))
    found = sorted((r.noise_multiplier, r.family, r.count) for r in parts.mechanism(game, None))
    assert found == [(4.0, "laplace", 1), (8.0, "laplace", 1)]
    shown = replace(parts, noiseless={1: "x"})
    assert shown.mechanism(game, None) == ([0.5], "laplace")


def moved(record: list[float], noise: list[float]) -> CoordinateMoves:
    return CoordinateMoves(torch.tensor([record]), torch.tensor([noise]))


@pytest.mark.parametrize(
    ("several", "filled"),
    [
        ((moved([1.0] * 4, [2.0] * 4), moved([3.0] * 4, [1.0] * 4)), 4),
        ((moved([1.0] * 4, [2.0] * 4), moved([3.0, 3.0, 3.0, 2.0], [1.0] * 4)), 1),
        ((moved([1.0, 0.0, 1.0, 1.0], [2.0] * 4), moved([3.0] * 4, [1.0] * 4)), 1),
    ],
)
def test_all_messages_move_alike_in_all_layers(monkeypatch, several: Any, filled: int) -> None:
    one = {(1, "x"): moved([1.0], [2.0]), (1, "y"): moved([3.0], [1.0])}
    game = replace(toy(d=60), layers=LAYERS)
    monkeypatch.setattr(layers, "filling", lambda game: (one, dict(zip(one, several, strict=True))))
    assert layers.in_layers(game).filled == filled
    still = {at: moved([0.0], [1.0]) for at in one}
    monkeypatch.setattr(layers, "filling", lambda game: (still, still))
    assert layers.in_layers(game).filled == 1
    quiet = {**still, (1, "y"): moved([1.0], [1.0])}
    monkeypatch.setattr(layers, "filling", lambda game: (quiet, quiet))
    assert layers.in_layers(game).filled == 4
    monkeypatch.setattr(layers, "filling", lambda game: None)
    assert layers.in_layers(game) is game


def test_of_many_layers_the_first_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifteen numbers of a round for each coordinate: of 10 links and 5 agents, in as many plays."""
    setting = Setting(build_graph("ring", 5), (40,) * 5, 60, LAYERS)
    game = Game.of(FedCDP(noise_multiplier=2.0, n_rounds=1, batch_size=8), setting, 1, "add-remove")
    for entries, n in (
        (15 * 16, 4),
        (15 * 16 - 1, 3),
        (15 * 9, 3),
        (15 * 4, 2),
        (15 * 4 - 1, None),
    ):
        monkeypatch.setattr(layers, "ENTRIES", entries)
        found = layers.filling(game)
        assert (
            None if found is None else found[1][1, next(iter(found[1]))[1]].by_record.shape[-1]
        ) == n
    monkeypatch.setattr(layers, "ENTRIES", 10**7)
    assert layers.filling(replace(game, layers=LAYERS[:1])) is None


class Own(Toy):
    """It draws by itself, beside the noise that it is handed."""

    def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
        played = super().step(state, k, graph, gradient, noise)
        return played._replace(sent={"y": broadcast(graph, torch.rand_like(state.X))})


class One(Toy):
    """It has a single draw."""

    def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
        Y = state.X + gradient(state.X) + noise.gaussian("y", 1.0, state.X)
        return Round(State(0 * Y), {"y": broadcast(graph, Y)})


@pytest.mark.parametrize("defense", [Own(n_rounds=1), One(n_rounds=1)])
def test_draws_are_left_out_of_several_that_are_all(monkeypatch, defense: Any) -> None:
    monkeypatch.setattr(noise_law, "_hides", lambda *_: True)
    monkeypatch.setattr(noise_law, "_sets", lambda names: iter([names]))
    setting = toy(3).setting
    assert list(hiding_without(defense, setting, [EAVESDROPPER], 1)) == []
    [found] = hiding_without(Toy(n_rounds=1), setting, [EAVESDROPPER], 1)
    assert found.names == {"y", "w"}


def test_memory_is_no_reason_to_leave_draws_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, is_raised in ((MemoryError(), True), (ValueError("no"), False)):

        def fails(*_: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(noise_law, "_games", fails)
        if is_raised:
            with pytest.raises(MemoryError):
                list(hiding_without(Toy(), toy(3).setting, [EAVESDROPPER], 1))
        else:
            assert list(hiding_without(Toy(), toy(3).setting, [EAVESDROPPER], 1)) == []


def test_games_are_followed_as_long_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first agent's in all rounds, those of the others in so many that they add up."""
    followed: list[tuple[int, int]] = []

    def hides(game: Game, n_rounds: int, *_: Any) -> bool:
        followed.append((game.victim, n_rounds))
        return True

    monkeypatch.setattr(noise_law, "_hides", hides)
    monkeypatch.setattr(noise_law, "_sets", lambda names: iter([names]))
    monkeypatch.setattr(noise_law, "nonlinearity", lambda *_: None)
    monkeypatch.setattr(noise_law, "_asked", lambda game, n: frozenset("yw"))
    for n_rounds, asked, first, others in (
        (90, 80, 80, 75),
        (90, 200, 90, 75),
        (400, 400, 200, 75),
        (90, 9, 9, 9),
    ):
        followed.clear()
        list(hiding_without(Toy(n_rounds=n_rounds), toy(4).setting, [EAVESDROPPER], asked))
        assert followed == [(0, first), *((v, others) for v in (1, 2, 3))]
    monkeypatch.setattr(noise_law, "ROUNDS_OF_ALL", 12)
    followed.clear()
    list(hiding_without(Toy(n_rounds=90), toy(4).setting, [EAVESDROPPER], 80))
    assert followed[1] == (1, 10)


@pytest.mark.parametrize(("first", "anywhere"), [(1, []), (2, [2]), (5, [5])])
def test_a_later_window_is_counted_from_anywhere(
    monkeypatch, first: int, anywhere: list[int]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(window, "anywhere", lambda state, k: (asked.append(k), state)[1])
    game = toy(3)
    WindowShape.of(game.defense, game.setting, curious(0), range(first, first + 2))
    assert asked == anywhere


def test_the_shifts_of_agents_are_over_their_noise() -> None:
    """A record moves a message by u, whose noise has the deviation 1, in two rounds at most.

    A square of 4,000 runs is 15% off by chance with a probability below 1e-9.
    """
    one = toy(3, n_rounds=1)
    unit = one.length / 8
    runs, links = 4000, ThreatModel(name="links", links=((1, 0), (1, 2)))
    for n_rounds, rounds in ((1, 1), (2, 2), (6, 2)):
        game = replace(one, defense=Toy(n_rounds=n_rounds))
        every = record._moved(game, EAVESDROPPER, runs, Streams(2))
        most = unit**2 * (1 + (rounds - 1) / (1 + 0.5**2))  # w stays in round 2
        assert every.tolist() == pytest.approx([most] * 3, rel=0.15)
        some = record._moved(game, links, runs, Streams(2))
        assert some.tolist() == pytest.approx([0.0, every[1].item(), 0.0])


def laplace(scale: float, q: float = 1.0, count: int = 1) -> Release:
    how: Any = "none" if q == 1 else "poisson"
    return Release(
        family="laplace", noise_multiplier=scale, sampling=how, sampling_rate=q, count=count
    )


def test_a_sampled_release_among_others_is_not_spread() -> None:
    mixed = [laplace(4.0), laplace(8.0, 0.5)]
    found = record.worst_epsilon(mixed, 9, 1e-5, "add-remove")
    pure = epsilon([laplace(4.0 / 3), laplace(8.0 / 3, 0.5)], 0.0, "add-remove").high
    assert found.high == pytest.approx(pure)
    one = epsilon(mixed, 1e-5, "add-remove").low
    alone = [record._of_a_round(r, 9, 1e-5) for r in mixed]
    assert found.low == pytest.approx(max(one, *alone))
    whole = record.worst_epsilon([laplace(4.0)], 9, 1e-5, "add-remove")
    spread = epsilon(record._spread([laplace(4.0)], 9), 1e-5, "add-remove")
    assert whole.high == pytest.approx(
        max(spread.high, epsilon([laplace(4.0)], 1e-5, "add-remove").high)
    )
    assert whole.high < 9 / 3 / 4
    gaussian = Release(family="gaussian", noise_multiplier=2.0)
    for same in ([gaussian], [laplace(4.0), gaussian], [laplace(0.0)]):
        assert record.worst_epsilon(same, 9, 1e-5, "add-remove") == epsilon(
            same, 1e-5, "add-remove"
        )
    assert record.worst_epsilon([], 9, 1e-5, "add-remove") == Interval(0.0, 0.0)


def test_a_round_of_a_sample_is_amplified() -> None:
    """ln(1 - q + q e^x) of the epsilon x without sampling, at delta / q."""
    x = epsilon(record._spread([laplace(4.0)], 9), 1e-5 / 0.25, "add-remove").low
    found = record._of_a_round(laplace(4.0, 0.25, 7), 9, 1e-5)
    assert found == pytest.approx(log(0.75 + 0.25 * np.exp(x)))
    assert record._of_a_round(laplace(4.0, 0.25), 9, 0.25) == 0.0
    fixed = laplace(4.0, 0.25).model_copy(update={"sampling": "fixed"})
    assert record._of_a_round(fixed, 9, 1e-5) == 0.0
    assert record._of_a_round(laplace(4.0), 9, 1e-5) == pytest.approx(
        epsilon(record._spread([laplace(4.0)], 9), 1e-5, "add-remove").low
    )


@pytest.mark.parametrize(
    ("moved_by", "chosen", "without"),  # agent 3
    [
        ([1.0, 1.0, 1.0, 1.0], 1, 1),
        ([1.0, 1.0, 1.2, 1.0], 1, 1),  # by chance, perhaps
        ([1.0, 1.0, 1.9, 1.8], 2, 2),
        ([1.0, 1.0, 1.9, 2.0], 3, 2),
        ([9.0, 1.0, 1.0, 1.9], 3, 1),  # agent 0 is the adversary's
    ],
)
def test_the_agent_whose_messages_move_most_is_taken(
    monkeypatch, moved_by, chosen, without
) -> None:
    """Beyond six deviations of a square in 100 runs: 1.85 times as far."""
    monkeypatch.setattr(record, "_runs", lambda game, coordinates: 100)
    monkeypatch.setattr(record, "_moved", lambda *_: torch.tensor(moved_by))
    game = toy(4)
    assert record.of_most_moved_agent(game, curious(0), Streams(0)).victim == chosen
    assert record.of_most_moved_agent(replace(game, held=3), curious(0), Streams(0)).victim == 1
    monkeypatch.setattr(
        record, "_noise", lambda game, model: game.victim if game.victim == 3 else 0
    )
    other = record.of_most_moved_agent(game, curious(0), Streams(0))
    assert other.victim == without  # which declares other noise now
    monkeypatch.setattr(record, "_runs", lambda game, coordinates: 0)
    assert record.of_most_moved_agent(game, curious(0), Streams(0)) is game


@pytest.mark.parametrize(
    ("needed", "by", "found"),
    [
        (None, {"one": 1.0, "among": 1.4, "alike": 1.4}, "one"),
        (None, {"one": 1.0, "among": 1.6, "alike": 1.4}, "among"),
        (None, {"one": 1.0, "among": 1.4, "alike": 1.6}, "alike"),
        (7, {"one": 1.0, "among": 1.0, "alike": 1.2}, "alike"),
    ],
)
def test_a_record_on_many_coordinates_must_move_clearly_more(
    monkeypatch, needed, by, found
) -> None:
    game = replace(toy(4), width=needed, coordinates=9)

    def kind(each: Game) -> str:
        return "alike" if each.spread > 1 else "one" if each == game else "among"

    monkeypatch.setattr(record, "_runs", lambda game, coordinates: 100)
    monkeypatch.setattr(record, "_moved", lambda each, *_: torch.full((4,), by[kind(each)]))
    assert kind(record.most_moving(game, EAVESDROPPER, Streams(0))) == found
    monkeypatch.setattr(record, "_runs", lambda game, coordinates: 0)
    assert record.most_moving(game, EAVESDROPPER, Streams(0)) is game
