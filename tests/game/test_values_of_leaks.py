"""What uses of a record reveal together, and which record and game is the worst, by hand."""

from dataclasses import replace
from math import exp, inf, log, nan, sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import Interval, epsilon
from dpaudit.defense import Message
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.leak import (
    NEGLIGIBLE,
    Leak,
    Met,
    RoundReading,
    Together,
    certified,
    grams,
    met,
    parts,
    worst_directions,
)
from dpaudit.game.game import LENGTH, Game
from dpaudit.game.network.accounting import _refuse_strategy, bytes_needed, mu_of
from dpaudit.game.network.gossip import Participation
from dpaudit.game.runs.noise_law import PILOT, RepeatedRound
from dpaudit.game.runs.round_shape import ALGEBRA, COPIES, FIRST, MOST_ROUNDS, GameShape
from dpaudit.game.worst_case import record
from dpaudit.release import Release


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


OPPOSED = matrix([1.0, -0.5], [-0.5, 1.0])  # of two uses: directions apart by a half turn


@pytest.mark.parametrize(
    ("H", "d", "low", "high"),
    [
        (matrix([1.0, 0.5], [0.5, 1.0]), 1, 3.0, 3.0),
        (OPPOSED, 2, 3.0, 3.0),
        (OPPOSED, 1, 1.0, 3.0),
        (torch.zeros(0, 0), 3, 0.0, 0.0),
        (matrix([4.0]), 1, 4.0, 4.0),
    ],
)
def test_worst_directions_turn_what_is_opposed(H: Tensor, d: int, low: float, high: float) -> None:
    found = worst_directions(H, d)
    assert found.low == pytest.approx(low, rel=1e-5)
    assert found.high == pytest.approx(high, rel=1e-5)


def test_three_opposed_uses_need_a_plane() -> None:
    """H = 3 I - 1 1': in a line 8 at most (two against one), in a plane and beyond 9 = 3 * 3."""
    H = 3 * torch.eye(3).double() - 1
    assert worst_directions(H, 2).low == pytest.approx(9.0, rel=1e-6)
    assert worst_directions(H, 1) == Interval(0.0, pytest.approx(9.0, rel=1e-5))
    found = certified(H)
    assert found.low <= 9.0 + 1e-9 <= found.high + 2e-9
    assert found.high == pytest.approx(9.0, rel=1e-5)
    assert torch.linalg.eigvalsh(torch.diag(found.y) - H).min() >= 0
    with pytest.raises(ValueError, match="not finite"):
        certified(matrix([nan]))


@pytest.mark.parametrize(
    ("G", "expected"),
    [
        (matrix([4.0]), Met(2.0, 1)),
        (matrix([1.0, 1.0], [1.0, 1.0]), Met(1.0, 2)),
        (matrix([1.0, 0.0], [0.0, 1.0]), Met(1 / sqrt(2), 2)),
        (matrix([9.0, 0.0], [0.0, 1.0]), Met(9 / sqrt(10), 1)),
        (matrix([0.0]), Met(0.0, 0)),
        (torch.zeros(0, 0), Met(0.0, 0)),
        (matrix([1.0, -1.0], [-1.0, 1.0]), Met(0.0, 0)),
    ],
)
def test_a_number_shows_the_most_inclusions_at_once(G: Tensor, expected: Met) -> None:
    assert met(G) == (pytest.approx(expected.shift), expected.n)


def test_inclusions_hang_together_by_large_entries() -> None:
    G = matrix([1.0, 0.0, -0.3], [0.0, 1.0, 0.1], [-0.3, 0.1, 1.0])
    assert [p.tolist() for p in parts(G, 0.2)] == [[0, 2], [1]]
    assert [p.tolist() for p in parts(G, 0.05)] == [[0, 1, 2]]
    assert [p.tolist() for p in parts(G, 0.3)] == [[0], [1], [2]]


ROUNDS: Any = [
    {(1, 1, 0): matrix([1.0, 0.0])[0], (2, 1, 0): matrix([1.0, 1.0])[0]},
    {(1, 1, 0): matrix([2.0])[0], (1, 2, 0): matrix([3.0])[0]},
]


def test_gram_matrices_add_up_over_rounds() -> None:
    found = grams(ROUNDS, lambda use: use[0])
    assert found[1][0] == [(1, 1, 0), (1, 2, 0)]
    assert found[1][1].tolist() == [[1 + 4, 6], [6, 9]]
    assert found[2][1].tolist() == [[2]]
    together = Together.of(ROUNDS)
    assert together.H.tolist() == [[5, 1, 6], [1, 2, 0], [6, 0, 9]]
    assert together.inclusions(2).tolist() == [[5 + 6 + 6 + 9, 1], [1, 2]]
    assert together.independent() == {1: pytest.approx(12 + 15), 2: pytest.approx(3)}
    assert len(Together.of([]).uses) == 0


def reading(has_laplace: bool, **of: Any) -> Any:
    draws = matrix([1.0, 0.0], [0.0, 2.0]).numpy()
    about: dict[str, Any] = {
        "columns": {(1, 1, 0): None, (2, 2, 0): None, (3, 2, 0): None},
        "shifts": {1: matrix([3.0, 4.0])[0], 2: matrix([1.0, 0.0])[0], 3: matrix([0.0, 2.0])[0]},
        "noiseless": {}, "draws": draws, "laplace": torch.tensor([True, False]),
        "has_laplace": has_laplace,
    }  # fmt: skip
    names = {name: None for name in RoundReading._fields}
    return RoundReading(**{**names, **about, **of})


def test_a_round_reveals_batches_by_the_largest_use() -> None:
    assert reading(False).reveals() == {1: 5.0, 2: 2.0}
    assert reading(False, noiseless={3: "x"}).reveals() == {1: 5.0, 2: inf}
    assert reading(True).reveals() == {1: pytest.approx(3 * sqrt(2)), 2: pytest.approx(sqrt(2))}
    small = {j: matrix([size, 0.0])[0] for j, size in ((1, 0.9), (2, 1.1), (3, 0.0))}
    tiny = {j: NEGLIGIBLE * shift for j, shift in small.items()}
    assert reading(False, shifts=tiny).reveals() == {2: pytest.approx(1.1 * NEGLIGIBLE)}


def leak(*squares: float, **of: Any) -> Leak:
    uses = tuple(Interval(s, 4 * s) for s in squares)
    about: dict[str, Any] = {
        "noiseless": {}, "pure": torch.full((len(squares),), nan), "parts": (), "separate": True,
        "has_laplace": False,
    }  # fmt: skip
    return Leak(uses, **{**about, **of})


def test_mu_of_a_round_is_that_of_its_worst_batch() -> None:
    assert leak(1.0, 4.0, 9.0, 0.0, batches=2).by_round.tolist() == [2.0, 3.0]
    assert leak(1.0, 4.0).by_round.tolist() == [1.0, 2.0]
    assert leak(4.0, batches=2).by_round.tolist() == [2.0]
    assert leak().by_round.tolist() == []


@pytest.mark.parametrize(
    ("noiseless", "batches", "shown"),
    [
        ({}, 1, None),
        ({3: "x", 5: "y"}, 1, (3, "x")),
        ({3: "x"}, 2, (2, "x")),
        ({4: "x"}, 2, (2, "x")),
        ({0: "x"}, 2, (1, "x")),
    ],
)
def test_the_round_of_a_noiseless_use_is_that_of_its_batch(noiseless, batches, shown) -> None:
    assert leak(1.0, noiseless=noiseless, batches=batches).shown == shown


@pytest.mark.parametrize(
    ("pure", "has_laplace", "is_pure", "is_proven"),
    [
        ([1.0, 2.0], True, True, True),
        ([1.0, nan], True, False, False),
        ([], True, False, False),
        ([], False, False, True),
        ([nan], False, False, True),
    ],
)
def test_a_leak_is_pure_if_each_draw_is_recovered(pure, has_laplace, is_pure, is_proven) -> None:
    found = leak(pure=torch.tensor(pure), has_laplace=has_laplace)
    assert (found.is_pure, found.is_proven) == (is_pure, is_proven)


def released(found: Leak, in_round: int | None = None, high: bool = False) -> Any:
    game = SimpleNamespace(releases=lambda shifts, family: (family, shifts))
    return found.mechanism(game, in_round, high)  # type: ignore[arg-type]


def test_releases_of_a_leak_are_of_its_uses() -> None:
    some = leak(1.0, 4.0, 0.0, 9.0, batches=2)
    assert released(some) == ("gaussian", [1.0, 2.0, 3.0])
    assert released(some, high=True) == ("gaussian", [2.0, 4.0, 6.0])
    assert released(some, 1) == ("gaussian", [1.0, 2.0])
    assert released(some, 2) == ("gaussian", [3.0])
    apart = replace(some, apart=(16.0, 25.0))
    assert released(apart, high=True) == ("gaussian", [4.0, 5.0])
    assert released(apart) == released(some)
    assert released(leak(0.0)) == ()
    pure = leak(1.0, 4.0, pure=torch.tensor([0.5, 0.25]), has_laplace=True)
    assert released(pure) == ("laplace", [0.5, 0.25])
    (one, other) = released(replace(pure, parts=(0.5, 0.25)))
    assert (one.family, one.noise_multiplier, other.noise_multiplier) == ("laplace", 2.0, 4.0)
    shown = replace(pure, parts=(0.5, 0.25), noiseless={1: "x"})
    assert released(shown) == ("laplace", [0.5, 0.25])


class OfDefense:
    """What of a defense a game is made of."""

    model_fields = ("clip_norm",)
    clip_norm: float | None = None

    def __init__(self, **of: Any) -> None:
        about = {"sampling": "poisson", "cyclic": False, "batch_size": 4, "distance": None}
        vars(self).update({**about, "batches_per_round": 1, **of})

    def function_distance(self) -> float | None:
        return self.__dict__["distance"]

    def clip_norm_in(self, k: int) -> float | None:
        return self.__dict__.get("of_rounds")


def game_of(adjacency: Any = "add-remove", sizes: tuple[int, ...] = (10, 16), **of: Any) -> Game:
    setting: Any = SimpleNamespace(sizes=sizes, d=7, layers=(("a", 3), ("b", 4)))
    setting.stand_in = lambda d: setting
    return Game.of(OfDefense(**of), setting, 1, adjacency)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("adjacency", "of", "expected"),
    [
        ("add-remove", {}, (LENGTH, 0.25, "poisson", 1, 1, None)),
        ("add-remove", {"batch_size": 40}, (LENGTH, 1.0, "poisson", 1, 1, None)),
        ("add-remove", {"sampling": "fixed"}, (LENGTH, 0.25, "fixed", 1, 1, None)),
        ("add-remove", {"clip_norm": 1e-6}, (LENGTH, 0.25, "poisson", 1, 1, None)),
        ("add-remove", {"clip_norm": 1e5}, (1e7, 0.25, "poisson", 1, 1, None)),
        ("add-remove", {"of_rounds": 500.0}, (5e4, 0.25, "poisson", 1, 1, None)),
        ("function", {"distance": 3}, (3.0, 1.0, "none", 1, 1, None)),
        ("user", {}, (LENGTH, 1.0, "none", 1, 4, 16)),
        ("user", {"sampling": "fixed"}, (LENGTH, 1.0, "none", 1, 4, None)),
        ("add-remove", {"cyclic": True}, (LENGTH, 1.0, "poisson", 4, 1, None)),
        ("add-remove", {"cyclic": True, "batch_size": 5}, (LENGTH, 1.0, "poisson", 3, 1, None)),
        ("add-remove", {"cyclic": True, "batch_size": 99}, (LENGTH, 1.0, "poisson", 1, 1, None)),
    ],
)
def test_a_game_is_of_what_the_defense_protects(adjacency, of, expected) -> None:
    game = game_of(adjacency, **of)
    found = game.length, game.sampling_rate, game.sampling, game.cycle, game.records, game.held
    assert found == expected
    assert (game.coordinates, game.layers) == (7, (("a", 3), ("b", 4)))


@pytest.mark.parametrize(
    ("adjacency", "sampling", "displacement"),
    [
        ("add-remove", "poisson", 1.0),
        ("add-remove", "fixed", 2.0),
        ("replace-one", "fixed", 1.0),
        ("replace-one", "poisson", 1.0),
    ],
)
def test_a_record_of_a_fixed_batch_takes_another_s_place(adjacency, sampling, displacement) -> None:
    game = replace(game_of(adjacency, sampling=sampling), records=3)
    assert (game.displacement, game.effect) == (displacement, 3 * displacement)
    (one,) = game.releases([0.5])
    assert one.noise_multiplier == displacement / 0.5
    assert (one.sampling, one.sampling_rate) == (sampling, 0.25)
    (none,) = game.releases([inf])
    assert none.noise_multiplier == 0.0
    (certain,) = replace(game, sampling_rate=1.0).releases([0.5], "laplace")
    assert (certain.sampling, certain.family) == ("none", "laplace")


def test_a_batch_of_all_records_holds_one_beside_the_others() -> None:
    game = game_of(sampling="fixed", batch_size=16)
    assert (game.sampling_rate, game.displacement, game.effect) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("first", "cycle", "uses"),
    [(1, 1, [1, 2, 3, 4, 5, 6]), (1, 3, [1, 4]), (2, 3, [2, 5]), (4, 1, [4, 5, 6]), (6, 3, [6])],
)
def test_a_record_is_used_once_a_cycle(first: int, cycle: int, uses: list[int]) -> None:
    game = replace(game_of(), first=first, cycle=cycle)
    assert [k for k in range(1, 7) if game.uses(k)] == uses


def test_a_game_plays_as_many_coordinates_as_it_fills() -> None:
    game = game_of()
    assert (game.played, game.directions) == (1, 7)
    wide = replace(game, spread=3, filled=2)
    assert (wide.played, wide.directions) == (6, 3)
    assert replace(wide, width=5).played == 5
    values = torch.tensor([[1.0, 2.0, 6.0]])
    assert game.along_record(values).tolist() == [[1.0]]
    assert wide.along_record(values).tolist() == [[3.0]]
    assert not game.is_lasting
    lasting = replace(game, sampling_rate=1.0)
    assert lasting.is_lasting
    assert not replace(lasting, in_one_round=True).is_lasting


def test_a_user_s_batch_holds_a_binomial_number_of_records() -> None:
    """16 records at rate 1/4 each, in units of a batch of 4: mean 1, variance 3 / 16."""
    drawn = game_of("user").draw(20_000, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert float(drawn.mean()) == pytest.approx(1.0, abs=6 * sqrt(3 / 16 / 20_000))
    assert float(drawn.var()) == pytest.approx(3 / 16, rel=0.06)
    once = game_of().draw(20_000, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert float(once.mean()) == pytest.approx(0.25, abs=6 * sqrt(3 / 16 / 20_000))
    assert set(once.tolist()) == {0.0, 1.0}


def of_noise(multiplier: float, family: Any = "gaussian", rate: float = 1.0, n: int = 1) -> Release:
    how: Any = "none" if rate == 1 else "poisson"
    return Release(
        family=family, noise_multiplier=multiplier, sampling=how, sampling_rate=rate, count=n
    )


def test_a_record_in_many_coordinates_moves_each_by_less() -> None:
    mechanism = (of_noise(2.0, n=3),)
    assert record.played_mechanism(mechanism, 1) == mechanism
    assert record.played_mechanism(mechanism, 4) == (of_noise(4.0, n=12),)
    sampled = (of_noise(2.0, rate=0.5), of_noise(2.0))
    assert record.played_mechanism(sampled, 4) == sampled


LAPLACE = of_noise(2.0, "laplace", n=3)


def test_the_worst_record_under_laplace_noise_fills_the_ball() -> None:
    """Of d = 4 coordinates the pure loss is sqrt(4) times that of one, release by release."""
    assert record.worst_epsilon((), 4, 1e-5, "add-remove") == Interval(0.0, 0.0)
    pure = record.worst_epsilon((LAPLACE,), 4, 0.0, "add-remove")
    assert pure == Interval(pytest.approx(3 * 2 / 2), pytest.approx(3 * 2 / 2))
    one = epsilon((LAPLACE,), 1e-2, "add-remove")
    assert record.worst_epsilon((LAPLACE,), 1, 1e-2, "add-remove") == one
    spread = epsilon((of_noise(4.0, "laplace", n=12),), 1e-2, "add-remove")
    both = record.worst_epsilon((LAPLACE,), 4, 1e-2, "add-remove")
    assert both == Interval(max(one.low, spread.low), max(one.high, spread.high))
    gaussian = (of_noise(2.0),)
    assert record.worst_epsilon(gaussian, 4, 1e-2, "add-remove") == epsilon(
        gaussian, 1e-2, "add-remove"
    )
    sampled = (of_noise(2.0, "laplace", 0.5),)
    found = record.worst_epsilon(sampled, 4, 1e-3, "add-remove")
    assert found.high == epsilon((of_noise(1.0, "laplace", 0.5),), 0.0, "add-remove").high
    assert found.low >= epsilon(sampled, 1e-3, "add-remove").low
    assert found.low >= record._of_a_round(sampled[0], 4, 1e-3)


def test_a_sampled_round_is_amplified_by_its_rate() -> None:
    """log(1 - q + q e^e) at delta / q of the whole (Balle, Barthe and Gaboardi 2018)."""
    whole = epsilon((of_noise(4.0, "laplace", n=4),), 1e-3 / 0.5).low
    expected = log(0.5 + 0.5 * exp(whole))
    sampled = of_noise(2.0, "laplace", 0.5, n=7)
    assert record._of_a_round(sampled, 4, 1e-3) == pytest.approx(expected)
    assert record._of_a_round(sampled, 4, 0.5) == 0.0
    fixed = sampled.model_copy(update={"sampling": "fixed"})
    assert record._of_a_round(fixed, 4, 1e-3) == 0.0
    alone = of_noise(2.0, "laplace", n=7)
    assert record._of_a_round(alone, 4, 1e-3) == epsilon(
        (of_noise(4.0, "laplace", n=4),), 1e-3
    ).low  # fmt: skip


@pytest.mark.parametrize(
    ("sampling", "rate", "multipliers"),
    [
        ("poisson", 1.0, [1 / sqrt(2 * 7.0)]),
        ("fixed", 1.0, [1 / sqrt(2 * 7.0)]),
        ("poisson", 0.5, [1 / sqrt(2 * 4.0), 1 / sqrt(2 * 1.0)]),
        ("fixed", 0.5, [2 / sqrt(2 * 4.0), 2 / sqrt(2 * 1.0)]),
    ],
)
def test_the_leak_of_first_rounds_is_of_uses_or_of_all(sampling, rate, multipliers) -> None:
    """A draw of a fixed batch moves twice what its release states, which accounting knows."""
    game = replace(game_of(sampling=sampling), filled=2, sampling_rate=rate)
    found = record._leaked(game, matrix([1.0, 1.0, 0.0], [1.0, 4.0, 0.0], [0.0, 0.0, 0.0]))
    assert [r.noise_multiplier for r in found] == pytest.approx(sorted(multipliers), rel=1e-5)
    assert {r.sampling for r in found} == {"none" if rate == 1 else sampling}


def test_declared_releases_of_some_rounds_are_the_loudest(monkeypatch) -> None:
    monkeypatch.setattr(record, "_epsilon", lambda mechanism, *_: Interval(0.0, mechanism))
    declared = SimpleNamespace(most=(of_noise(4.0, n=6), of_noise(1.0, n=2)))
    defense = SimpleNamespace(n_rounds=4, mechanism=lambda *_: declared)
    game: Any = SimpleNamespace(defense=defense, setting=None, victim=0)
    for rounds, found in ((1, [1.0, 1.0]), (2, [1.0, 1.0, 4.0, 4.0]), (9, [1.0] * 2 + [4.0] * 6)):
        several: Any = record._declared(game, None, 1e-5, "add-remove", rounds)  # type: ignore[arg-type]
        assert [r.noise_multiplier for r in several] == found
        assert {r.count for r in several} == {1}


def test_as_many_runs_compare_agents_as_memory_holds(monkeypatch) -> None:
    graph = SimpleNamespace(n_edges=6, n_agents=4)
    network = SimpleNamespace(at=lambda k: graph)
    game: Any = SimpleNamespace(setting=SimpleNamespace(network=network))
    for name, value in (("NUMBERS", 1000), ("FEWEST", 5), ("MOST", 50), ("TOO_MANY", 1000)):
        monkeypatch.setattr(record, name, value)
    assert [record._runs(game, d) for d in (1, 2, 3, 20, 21)] == [50, 50, 33, 5, 0]


def shape(**of: Any) -> GameShape:
    about = {
        "footprint": None, "observed": 10, "draws": 20, "width": 30, "points": 1, "n_agents": 5,
        "entries": None,
    }  # fmt: skip
    return GameShape(**{**about, **of})


def test_rounds_are_followed_as_the_algebra_allows() -> None:
    assert shape().products == 10 * 50 * 10
    assert shape(observed=100).products == 100 * 50 * 50
    assert shape().affordable == ALGEBRA // 5000
    assert shape(observed=0).affordable == ALGEBRA
    assert shape().followed(10**6) == MOST_ROUNDS
    assert shape().followed(7) == 7
    assert shape(observed=10**5, width=10**4).followed(9) == FIRST
    sparse = shape(entries=1000, observed=10**5, draws=10**5, n_agents=10**4)
    assert sparse.products == COPIES * 1000


def test_mu_is_that_of_the_worst_run_of_uses() -> None:
    """Of two uses in a row: of rounds 1, 2 (1 + 1 + 2 * 0.5) and 2, 3 (1 + 4, opposed by 1)."""
    H = matrix([1.0, 0.5, 0.0], [0.5, 1.0, -1.0], [0.0, -1.0, 4.0])
    low, high = mu_of([torch.stack([H, matrix([1, 0, 0], [0, 0, 0], [0, 0, 0])])], 2)
    assert low.tolist() == [pytest.approx(sqrt(7), rel=1e-5), 1.0]
    assert high.tolist() == [pytest.approx(sqrt(7), rel=1e-5), 1.0]
    once, _ = mu_of([H[None, :1, :1], H[None, 2:, 2:]], 1)
    assert once.tolist() == [2.0]


def test_network_accounting_takes_halves_and_grams() -> None:
    schema = Participation.of((3, 2), 7)
    assert (schema.times, schema.every) == (3, 2)
    assert bytes_needed(5, 7, schema) == 8 * (3 * 5 * 2 * 4 * 4 + 6 * 7 * 25)


@pytest.mark.parametrize(
    ("M", "said"),
    [
        (matrix([1.0, 0.0], [2.0, 3.0]), None),
        (matrix([1.0, 0.0]), "finite numbers"),
        (matrix([1.0, 0.0], [nan, 3.0]), "finite numbers"),
        (matrix([1.0, 0.0], [inf, 3.0]), "finite numbers"),
        (matrix([1.0, 0.1], [2.0, 3.0]), "later rounds"),
        (matrix([1.0, 0.0], [2.0, 0.0]), "singular"),
    ],
)
def test_a_strategy_is_a_lower_triangle_of_numbers(M: Tensor, said: str | None) -> None:
    if said is None:
        _refuse_strategy(M, 2)
    else:
        with pytest.raises(ConfigError, match=said):
            _refuse_strategy(M, 2)


@pytest.mark.parametrize(
    ("plays", "left_out", "rows"),
    [(PILOT, (), [0, 2]), (PILOT - 1, (), []), (PILOT, ("x",), [])],
)
def test_rows_carry_noise_if_they_move_in_some_play(plays: int, left_out: Any, rows: Any) -> None:
    """Of two agents with two rows each one row of the first is still; one of each is named."""
    payload = torch.zeros(plays, 4, 3)
    payload[-1, 0, 2] = payload[-1, 3, 0] = 1.0
    every = torch.arange(4)
    message = Message(payload, torch.tensor([0, 0, 1, 1]), 2 + every, torch.tensor([0, 1, 2, 3]))
    payload[-1, 2, 1] = 2.0
    own: Any = SimpleNamespace(_left_out=frozenset(left_out))
    found = RepeatedRound._noisy(own, "x", {"x": message}, [ThreatModel(name="all")])
    assert [place.row for place in found] == rows
    assert all((place.sender, place.width) == (place.row // 2, 3) for place in found)
    assert RepeatedRound._noisy(own, "x", {"x": message}, []) == []
