"""Which pairs a search measures, draws and plays, and with how many runs: with moves that are given."""

from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism import search as module
from dpaudit.mechanism.neighbours import BEYOND, Pair
from dpaudit.mechanism.search import OutputMove, Search, _rank, _spread
from dpaudit.mechanism.shifts import (
    LEFT,
    MOST_REPLAYED,
    MOST_SLOW,
    RANK,
    ROUNDING,
    ULP,
    DrawFunction,
    OutputNoise,
    shift,
)
from dpaudit.statistics.bounds import from_scores


def options(**asked: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:b", **{"shape": (2,), **asked}})


def noise(scale: Any = (1.0, 1.0), family: str = "gaussian", mix: Any = None) -> OutputNoise:
    draw = DrawFunction("z", family, "numpy.random", lambda *_: None)  # type: ignore[arg-type]
    return OutputNoise(draw, np.array(scale, float), mix)


def pair(at: float) -> Pair:
    return Pair(f"pair {at:g}", (np.zeros(2),), (np.array([at, 0.0]),))


def move(size: float, known: bool = True) -> OutputMove:
    return OutputMove(pair(size), np.array([size, 0.0]) if known else None, size if known else inf)


def search(**of: Any) -> Search:
    """With these attributes in the place of what would be computed."""
    o = of.pop("options", None) or options()
    function: Any = SimpleNamespace(options=o, calls=of.pop("calls", 1), seed=lambda seed: None)
    neighbours: Any = SimpleNamespace(
        finds_clip=of.pop("finds_clip", True), zero=(np.zeros(2),), fixed=lambda: [pair(1.0)]
    )
    found = Search(function, neighbours, 1e-5, 3)
    about = {"start": np.zeros((4, 2)), "noise": noise(), **of}
    for name, value in about.items():
        object.__setattr__(found, name, value)
    return found


@pytest.mark.parametrize(
    ("of", "n"),
    [
        ({"_at_corners": [move(1.0)]}, 400),
        ({"_at_corners": [move(1.0)], "noise": None}, 0),
        ({"_at_corners": [move(1.0), move(1.0, known=False)]}, 0),
        ({"_at_corners": [move(1.0)], "start": np.zeros((4, 10**5 - 2))}, 80),
        ({"_at_corners": [move(1.0)], "start": np.zeros((4, 10**6 - 2))}, 20),
    ],
)
def test_pairs_are_drawn_where_moves_are_known(of: Any, n: int) -> None:
    """As many as 8 million numbers of outputs and inputs are, within 20 and 400."""
    found = search(**of)
    assert found.n_drawn == n
    assert found.n_pairs == n + len(of["_at_corners"])
    assert (module.DRAWN, module.NUMBERS) == ((20, 400), 8 * 10**6)


class Drawn:
    """In the place of drawn pairs: the i-th moves the output by sizes[i]; None: by what is drawn."""

    def __init__(self, sizes: list[float | None]) -> None:
        self.sizes, self.asked = iter(sizes), list[Any]()

    def first(self) -> Any:
        self.asked.append("first")
        return next(self.sizes)

    def near(self, best: Any) -> Any:
        self.asked.append(best)
        return next(self.sizes)

    def pair(self, one: Any) -> Any:
        return one


def between(monkeypatch: pytest.MonkeyPatch, sizes: list[float | None]) -> tuple[Any, Any]:
    drawn = Drawn(sizes)
    monkeypatch.setattr(module, "DrawnPairs", lambda neighbours, seed: drawn)
    monkeypatch.setattr(
        Search, "_measured", lambda self, one: move(0.0, False) if one is None else move(one)
    )
    found = search(n_drawn=len(sizes))._between
    return [one.size for one in found], drawn.asked


def test_pairs_that_move_further_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = between(monkeypatch, [1.0, 3.0, 2.0, 3.0, 4.0, 5.0, 4.5])
    assert found == [1.0, 3.0, 4.0, 5.0]
    assert asked == ["first"] * 3 + [3.0, 3.0, 4.0, 5.0]
    assert between(monkeypatch, [0.0, 0.0]) == ([], ["first", "first"])


def test_moves_that_depend_on_draws_end_the_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = between(monkeypatch, [None] * 40)
    assert len(found) == 20
    assert len(asked) == 21
    rising: list[float | None] = [float(i) for i in range(1, 31)]
    found, asked = between(monkeypatch, [*rising, None, *rising])
    assert found == rising
    assert len(asked) == 31


def test_all_pairs_are_ranked_by_their_moves() -> None:
    corners = [move(1.0), move(1.0, False), move(5.0 - 1e-7)]
    found = search(_at_corners=corners, _between=[move(5.0), move(2.0)])
    assert [one.size for one in found.moves] == [5.0 - 1e-7, 5.0, 2.0, 1.0, inf]
    assert not found.is_additive
    assert search(_at_corners=corners[:1], _between=[]).is_additive
    assert _rank(move(1.0, False), 3.0) == (True, 0.0)
    assert _rank(move(3.0 * (1 - 2e-6)), 3.0) == (False, -3.0 * (1 - 2e-6))
    assert _rank(move(3.0 * (1 - 5e-7)), 3.0) == (False, -3.0)


@pytest.mark.parametrize(
    ("longest", "of", "follows"),
    [
        (0.5e6, {}, False),
        (0.51e6, {}, True),
        (0.51e6, {"finds_clip": False}, False),
        (0.51e6, {"is_additive": False}, False),
        (1.0, {}, False),
    ],
)
def test_an_output_follows_beyond_half_of_the_lengths(longest, of, follows) -> None:
    found = search(moves=[move(2.0), move(longest), move(1.0, known=False)], **of)
    if "is_additive" not in of:
        object.__setattr__(found, "is_additive", True)
    assert found.follows == follows


@pytest.mark.parametrize(
    ("of", "moved", "size"),
    [
        ({}, [3.0, 4.0], 5.0),
        ({"noise": noise((2.0, -4.0))}, [2.0, 4.0], sqrt(2)),
        ({"noise": noise(family="laplace")}, [3.0, -4.0], 7.0),
        ({"noise": noise((1.0, 0.0))}, [3.0, 0.0], 3.0),
        ({"noise": noise((1.0, 0.0))}, [3.0, 1e-9], 3.0),  # rounding
        ({"noise": noise((1.0, 0.0))}, [3.0, 1e-8], inf),
        ({"noise": None, "unit": np.array([1.0, 2.0])}, [3.0, 8.0], 5.0),
        ({}, [0.0, 0.0], 0.0),
        ({"noise": noise((1, 1), mix=np.array([[1.0, 1.0], [0.0, 2.0]]))}, [1.0, 0.0], 1.0),
        ({"noise": noise((1, 1), mix=np.array([[1.0], [1.0]]))}, [1.0, 0.0], inf),
    ],
)
def test_a_move_is_in_units_of_the_noise(of: Any, moved: list[float], size: float) -> None:
    assert search(**of).size(np.array(moved)) == pytest.approx(size)


def test_what_noise_hides_is_rounded_as_the_output_is() -> None:
    """A direction with 1e-5 of the noise is one in double precision, and none in single."""
    found = noise((1, 1), mix=np.array([[1.0, 0.0], [0.0, 1e-5]]))
    moved = np.array([1.0, 1e-5])
    assert search(noise=found).size(moved) == pytest.approx(sqrt(2))
    single = search(noise=found, options=options(output_dtype="float32"))
    assert single.size(moved) == pytest.approx(1.0)
    assert search(noise=found, options=options(dtype="float32")).size(moved) == pytest.approx(1.0)
    assert (RANK, LEFT) == (
        {"float64": 1e-9, "float32": 1e-3},
        {"float64": 1e-12, "float32": 1e-5},
    )


@pytest.mark.parametrize(("left", "hidden"), [(5e-7, True), (5e-6, False)])
def test_rounding_of_a_move_is_that_of_the_largest_noise(left: float, hidden: bool) -> None:
    """1e-12 of a scale of 1e6, in a direction in which there is no noise of its own."""
    found = noise((1e6, 1.0), mix=np.array([[1e6], [1.0]]))
    assert (found.hides(np.array([0.0, left]), "float64") < inf) is hidden


def test_an_unknown_unit_is_estimated_from_some_calls() -> None:
    asked: list[Any] = []
    rows = np.arange(64.0).reshape(32, 1, 2) ** 2
    found = search(noise=None)
    found.function.seed = asked.append  # type: ignore[method-assign]
    found.function.in_turn = lambda values, n: asked.append(n) or rows[:n]  # type: ignore
    assert found.unit == pytest.approx(rows[:, 0].std(axis=0))
    assert asked == [3, 32]
    assert search(noise=noise((-2.0, 3.0))).unit.tolist() == [2.0, 3.0]


def test_a_pair_moves_the_output_by_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[float, Any] = {0.0: np.array([1.0, 0.0]), 4.0: np.array([4.0, 4.0]), 5.0: None}

    def of(function: Any, start: Any, value: Any) -> Any:
        if value[0][0] == 6:
            raise ValueError("shapes")
        return given[value[0][0]]

    monkeypatch.setattr(module, "shift", of)
    found = search()._measured(pair(4.0))
    assert found.moved is not None
    assert (found.moved.tolist(), found.size) == ([3.0, 4.0], 5.0)
    for other in (pair(5.0), pair(5.0)._replace(without=(np.array([4.0, 0]),)), pair(6.0)):
        assert search()._measured(other)[1:] == (None, inf)


def lengths(monkeypatch: pytest.MonkeyPatch, clip: float, dtype: str = "float64") -> list[float]:
    """Those that are tried in one direction where outputs stop moving at a clip; 0: unknown."""

    def of(function: Any, start: Any, value: Any) -> Any:
        return np.array([min(value, clip)]) if clip else None

    monkeypatch.setattr(module, "shift", of)
    monkeypatch.setattr(Search, "_measured", lambda self, one: one)
    found = search(options=options(dtype=dtype))
    found.neighbours.directions = ["d"]  # type: ignore[list-item]
    found.neighbours.at = lambda direction, length: length  # type: ignore
    found.neighbours.along = lambda direction, some: some  # type: ignore
    return list(found._of_lengths())  # type: ignore[arg-type]


def test_lengths_are_of_every_size_and_around_a_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    powers = [10.0**k for k in range(-3, 7)]
    assert lengths(monkeypatch, 3.0) == pytest.approx([*powers, 1.5, 2.997, 3.003, 6.0])
    assert lengths(monkeypatch, 1e6) == pytest.approx(powers)
    assert lengths(monkeypatch, 0.0) == [1.0, 1e3]
    assert lengths(monkeypatch, 1e9) == pytest.approx(powers)
    assert BEYOND == {"float64": (1e12, 1e22, 1e40, 1e160), "float32": (1e12, 1e22, 1e37)}


def playing(monkeypatch: pytest.MonkeyPatch, runs: int, **of: Any) -> tuple[Any, list[Any]]:
    """What is played, where the pair of 2 promises most and that of 3 certifies most."""
    asked: list[Any] = []

    def chosen(self: Any, one: OutputMove, fit: int, choose: int, merit: Any) -> Any:
        asked.append((one.size, fit, choose, merit.__name__))
        name = SimpleNamespace(name=f"of {one.size:g}", of=lambda x: x)
        return name, {"_promised": -abs(one.size - 2), "_certified": -abs(one.size - 3)}[
            merit.__name__
        ]

    def scored(self: Any, one: Pair, score: Any, n: int, on_run: Any) -> Any:
        asked.append((score.name, n))
        return np.zeros(n), np.ones(n)

    monkeypatch.setattr(Search, "_chosen", chosen)
    monkeypatch.setattr(Search, "_scored", scored)
    moves = [move(float(i)) for i in (5, 4, 3, 2, 1)]
    found = search(options=options(runs=runs), moves=moves, **of)
    found.function.seed = asked.append  # type: ignore[method-assign]
    return found.played(lambda done, n: None), asked


def test_the_worst_pair_is_played_where_noise_is_known(monkeypatch) -> None:
    found, asked = playing(monkeypatch, 1_000, is_additive=True, calls=3)
    fit, choose = 500, 500
    assert asked[:2] == [4, (5.0, fit, choose, "_certified")]
    assert asked[2:] == [("of 5", choose), ("of 5", 1_000)]
    assert found.move.size == 5.0
    assert found.n_calls == 2 * 3 * (fit + choose + choose + 1_000)


@pytest.mark.parametrize(
    ("runs", "pilot", "fit"), [(1_000, 100, 500), (400, 60, 200), (8_000, 200, 2_000)]
)
def test_pairs_are_played_in_short_where_it_is_not(monkeypatch, runs, pilot, fit) -> None:
    """Each by what it promises; of three finalists the one that certifies most in full."""
    for of in ({"is_additive": False}, {"is_additive": True, "noise": None}):
        found, asked = playing(monkeypatch, runs, **of)
        assert asked[1:6] == [(float(i), pilot, pilot, "_promised") for i in (5, 4, 3, 2, 1)]
        assert {one[0] for one in asked[6:9]} == {1.0, 2.0, 3.0}
        assert {one[1] for one in asked[6:9]} == {fit}
        assert found.move.size == 3.0
        choose = max(min(1_000, runs // 2), runs // 4)
        assert asked[9:] == [("of 3", choose), ("of 3", runs)]


def test_a_merit_is_what_is_certified_and_a_little_promised(monkeypatch) -> None:
    monkeypatch.setattr(Search, "_promised", lambda self, one, other: 7.0)
    one, other = np.zeros(50), np.append(np.ones(45), np.zeros(5))
    bound = from_scores(one, other, 1e-5, 0.05, (one, other)).value
    assert bound > 0
    assert search()._certified(one, other) == pytest.approx(bound + 7e-3)
    bad = np.append(one, np.inf)
    assert search()._certified(bad, other) == search()._certified(other, bad) == 0.0


def test_scores_are_made_block_by_block() -> None:
    """Of at most 1,000 runs, or as many as are held at once."""
    steps: list[Any] = []
    found, n = search(), iter(range(10))

    def outputs(of: Pair, some: int) -> Any:
        side = np.full(some, float(next(n)))
        return side, side + 100

    object.__setattr__(found, "outputs", outputs)
    object.__setattr__(found, "few", lambda n: min(n, 4))
    name: Any = SimpleNamespace(of=lambda x: 2 * x)
    without, having = found._scored(pair(1.0), name, 10, lambda *step: steps.append(step))
    assert without.tolist() == [0, 0, 0, 0, 2, 2, 2, 2, 4, 4]
    assert having.tolist() == [200] * 4 + [202] * 4 + [204] * 2
    assert steps == [(0, 10), (4, 10), (8, 10), (10, 10)]


def test_pairs_are_spread_from_the_first_to_the_last() -> None:
    moves: Any = [*range(100)]
    found = _spread(moves, 64)
    assert (len(found), found[0], found[-1]) == (64, 0, 99)
    assert _spread(moves[:1], 64) == [0]


def shifted(rows: Any, start: Any, **asked: Any) -> Any:
    function: Any = SimpleNamespace(
        options=options(**asked), in_turn=lambda v, n, seeds: np.array(rows, float)[:, None]
    )
    found = shift(function, np.array(start, float), ())
    return None if found is None else found.tolist()


def test_a_shift_is_one_up_to_rounding_of_the_noise() -> None:
    """By 1e-9 of the noise, which is 10, or of a thousandth of the move."""
    start = np.array([[0.0], [20.0], [0.0], [20.0]]) + 1000
    off = np.array([[0.0], [0.0], [0.0], [1.0]])
    assert shifted(start + 3 + 0.9e-8 * off, start) == pytest.approx([3.0])
    assert shifted(start + 3 + 1.1e-8 * off, start) is None
    assert shifted(start + 3 + 0.9e-3 * off, start, dtype="float32") == pytest.approx([3.0], 1e-3)
    assert shifted(start + 3 + 1.1e-3 * off, start, dtype="float32") is None
    assert shifted(start + 3 + 0.9e-3 * off, start, output_dtype="float32") is not None
    assert shifted(start + 1e5 + 0.9e-7 * off, start) == pytest.approx([1e5])
    assert shifted(start + 1e5 + 1.2e-7 * off, start) is None
    assert shifted(start + 3, start, dtype="int64") == [3.0]
    assert shifted(start + 3 + off, start, dtype="int64") is None
    assert ROUNDING == {"float64": 1e-9, "float32": 1e-4, "float16": 5e-2, "bfloat16": 3e-1}
    assert ULP == {"float64": 4e-16, "float32": 4e-7}
    assert (MOST_REPLAYED, MOST_SLOW) == (10**7, 250)
