"""Pairs that are drawn, move by move: with random numbers that are given."""

from typing import Any

import numpy as np
import pytest

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism.neighbours import NeighbouringInputs
from dpaudit.mechanism.random_pairs import Candidate, DrawnPairs


class Given:
    """Random numbers in the place of a generator, each by the method that draws it."""

    def __init__(self, *drawn: tuple[str, Any]) -> None:
        self.drawn, self.asked = list(drawn), list[Any]()

    def __getattr__(self, name: str) -> Any:
        def draw(*args: Any, **of: Any) -> Any:
            expected, value = self.drawn.pop(0)
            assert name == expected, f"{name} is asked for, {expected} is given"
            self.asked.append((name, *args))
            return value(args[0]) if callable(value) else value

        return draw


def pairs(*drawn: tuple[str, Any], adjacency: Any = "replace-one", **asked: Any) -> DrawnPairs:
    o = MechanismOptions.model_validate({"function": "a:b", **{"shape": (2,), **asked}})
    found = DrawnPairs(NeighbouringInputs(o, adjacency, 3), 3)
    found._rng = Given(*drawn)  # type: ignore[assignment]
    return found


RECORDS = {"shape": (3, 2), "records": True}
ONE = Candidate(np.array([[1.0, 2.0], [3.0, -4.0], [5.0, -6.0]]), 1, np.array([7.0, -8.0]))
STEP = ("normal", np.array([1.0, -0.5])), ("uniform", -1.0)  # 0.1 of the largest: 0.8


def near(kind: int, *drawn: tuple[str, Any], kept: int = 0) -> tuple[Candidate, list[Any]]:
    found = pairs(("integers", kind), *drawn, *STEP, ("integers", kept), **RECORDS)
    found._row = lambda: np.array([9.0, 9.5])  # type: ignore[method-assign]
    one = found.near(ONE)
    assert ONE.rows.tolist() == [[1, 2], [3, -4], [5, -6]]  # a copy is changed
    return one, found._rng.asked  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "drawn", "rows", "place", "other"),
    [
        (0, [("integers", 2)], [[1, 2], [3, -4], [9, 9.5]], 1, [7, -8]),
        (1, [("normal", 2.0)], [[1, 2], [12, -16], [5, -6]], 1, [7, -8]),
        (
            2,
            [("normal", 1.0), ("uniform", -1.0)],
            [[1.3, 2.3], [3.3, -3.7], [5.3, -5.7]],
            1,
            [7, -8],
        ),
        (
            3,
            [("random", np.array([[0.4, 0.5]] * 3)), ("random", np.array([0.6, 0.1]))],
            [[1, -2], [3, 4], [5, 6]],
            1,
            [-7, -8],
        ),
        (4, [("integers", 2)], [[1, 2], [3, -4], [5, -6]], 2, [7, -8]),
        (5, [("normal", -1.0)], [[0.5, 1], [3, -4], [2.5, -3]], 1, [7, -8]),
    ],
)
def test_a_pair_near_another_differs_by_one_move(kind, drawn, rows, place, other) -> None:
    if kind == 2:
        drawn = [("normal", np.full((3, 2), 0.5)), drawn[1]]
    found, asked = near(kind, *drawn)
    assert found.rows == pytest.approx(np.array(rows, float))
    assert (found.place, found.other.tolist()) == (place, other)
    assert asked[0] == ("integers", 6)
    assert asked[-3:] == [("normal",), ("uniform", -2, 0), ("integers", 3)]
    if kind in (0, 4):
        assert asked[1] == ("integers", 3)


@pytest.mark.parametrize(("kept", "other"), [(0, [7, -8]), (1, [7.8, -8.4]), (2, [9, 9.5])])
def test_what_takes_a_rows_place_stays_steps_or_is_new(kept: int, other: list[float]) -> None:
    found, _ = near(4, ("integers", 0), kept=kept)
    assert found.other == pytest.approx(np.array(other))


def test_one_row_has_four_moves() -> None:
    one = Candidate(np.array([[1.0, 2.0]]), 0, np.array([3.0, 4.0]))
    found = pairs(("integers", 1), ("normal", 1.0), *STEP, ("integers", 0))
    found._row = lambda: np.zeros(2)  # type: ignore[method-assign]
    assert found.near(one).rows.tolist() == [[2.0, 4.0]]
    assert found._rng.asked[0] == ("integers", 4)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("dtype", "rows"), [("float64", [2.4, 4.0]), ("int64", [2.0, 4.0])])
def test_a_pair_at_a_distance_stays_at_it(dtype: str, rows: list[float]) -> None:
    """In the direction of the difference and a step: (3 - 1.2 + 0.4, 4 - 2 - 0.2), 5 long."""
    one = Candidate(np.array([[1.2, 2.0]]), 0, np.array([3.0, 4.0]))
    found = pairs(("integers", 1), ("normal", 1.0), *STEP, sensitivity=5.0, dtype=dtype)
    moved = found.near(one)
    assert moved.rows == pytest.approx(np.array([rows]))
    change = moved.other - moved.rows[0]
    if dtype == "float64":
        assert change == pytest.approx(np.array([2.2, 1.8]) * 5 / np.hypot(2.2, 1.8))
    else:
        assert change.tolist() == [4.0, 3.0]  # as long, and whole


@pytest.mark.parametrize(
    ("drawn", "rows"),
    [
        ([("integers", 0)], [[1, 1], [2, 2], [3, 3]]),
        ([("integers", 1), ("random", 0.4), ("choice", np.array([1, -1, 1]))],
         [[1, 1], [-1, -1], [1, 1]]),
        ([("integers", 1), ("random", 0.5)], [[1, 1], [1, 1], [1, 1]]),
        ([("integers", 2), ("random", np.array([[0.1], [0.6], [0.5]])), ("random", 0.5)],
         [[1, 1], [2, 2], [2, 2]]),
        ([("integers", 3)], [[1, 1], [1.5, 1.5], [2, 2]]),
    ],
)  # fmt: skip
def test_records_are_alike_apart_or_on_a_line(drawn: Any, rows: Any) -> None:
    found, n = pairs(*drawn, **RECORDS), iter((1.0, 2.0, 3.0))
    found._row = lambda: np.full(2, next(n))  # type: ignore[method-assign]
    assert found._rows().tolist() == rows
    asked = found._rng.asked  # type: ignore[attr-defined]
    assert asked[0] == ("integers", 4)
    assert asked[-1] in (asked[0], ("random",), ("choice", [-1.0, 1.0], 3))
    assert drawn[0][1] != 2 or asked[1] == ("random", (3, 1))


def test_a_single_row_is_drawn_alone() -> None:
    found = pairs(("integers", 3))
    found._row = lambda: np.array([4.0, 5.0])  # type: ignore[method-assign]
    assert found._rows().tolist() == [[4.0, 5.0]]


@pytest.mark.parametrize(
    ("drawn", "share"),
    [
        ([("integers", 0), ("integers", np.array([0, 1]))], [0, 1]),
        ([("integers", 1), ("random", np.array([0.2, 0.7]))], [0.2, 0.7]),
        ([("integers", 2), ("random", 0.3)], [0.3, 0.3]),
        ([("integers", 3), ("random", 0.3), ("random", 0.9), ("integers", 1)], [0.3, 0.9]),
    ],
)
def test_numbers_lie_anywhere_in_their_range(drawn: Any, share: list[float]) -> None:
    found = pairs(("permutation", lambda ranges: ranges[::-1]), *drawn, low=2.0, high=6.0)
    assert found._row() == pytest.approx(2 + 4 * np.array(share))
    asked = found._rng.asked  # type: ignore[attr-defined]
    assert asked[1] == ("integers", 4)
    assert share != [0, 1] or asked[2] == ("integers", 2)
    assert share != [0.3, 0.9] or asked[4] == ("integers", 2)


@pytest.mark.parametrize("ends", [{"low": 2.0}, {"high": 2.0}])
def test_a_row_has_one_of_the_ranges(ends: Any) -> None:
    drawn = ("integers", 0), ("integers", np.array([0, 1]))
    found = pairs(("permutation", lambda ranges: ranges[::-1]), *drawn, **ends)
    assert found._row().tolist() == ([2.0, 1002.0] if "low" in ends else [-998.0, 2.0])


@pytest.mark.parametrize(("dtype", "row"), [("float64", [450.0, -170.0]), ("int64", [450, -170])])
def test_values_at_a_distance_are_near_or_far(dtype: str, row: list[float]) -> None:
    normal = ("normal", np.array([3.0, -17 / 15]))
    found = pairs(("choice", 100.0), normal, sensitivity=1.5, dtype=dtype)
    assert found._row() == pytest.approx(np.array(row))
    assert found._rng.asked[0] == ("choice", [0.0, 1.0, 100.0])  # type: ignore[attr-defined]
    none = pairs(("choice", 0.0), normal, sensitivity=1.5)
    assert none._row().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("which", "flat"),
    [(0, [0, 1]), (1, [1, 0]), (2, [1, 1]), (3, [-1, 1]), (4, [3, 4])],
)
def test_a_free_row_has_any_length(which: int, flat: list[float]) -> None:
    """Along a number, some, a corner, signs or anywhere: here 100 long, and turned around."""
    found = pairs(
        ("integers", 1),
        ("permutation", np.array([0, 1])),
        ("random", 0.5),  # of two numbers floor(sqrt(2)) is not zero
        ("integers", 1),  # "all coordinates alike"
        ("choice", np.array([-1.0, 1.0])),
        ("normal", np.array([3.0, 4.0])),
        ("choice", -1.0),
        ("integers", which),
        ("uniform", 2.0),
    )
    expected = -100 * np.array(flat) / np.linalg.norm(flat)
    assert found._row() == pytest.approx(expected)
    asked = found._rng.asked  # type: ignore[attr-defined]
    assert asked[:3] == [("integers", 2), ("permutation", 2), ("random",)]
    assert asked[3] == ("integers", len(found._directions))
    assert asked[4:7] == [("choice", [-1.0, 1.0], 2), ("normal",), ("choice", [-1.0, 1.0])]
    assert asked[-2:] == [("integers", 5), ("uniform", -2.0, 4.0)]


@pytest.mark.parametrize(
    ("drawn", "change"),
    [
        ([("random", 0.4), ("normal", np.array([3.0, 4.0])), ("random", 0.6)], [6, 8]),
        ([("random", 0.6), ("choice", np.array([1.0, 1.0])), ("random", 0.6)], [50**0.5] * 2),
        ([("random", 0.4), ("normal", np.array([3.0, 4.0])), ("random", 0.4), ("integers", 1)],
         [0, 10]),
    ],
)  # fmt: skip
def test_another_row_is_at_the_stated_distance(drawn: Any, change: list[float]) -> None:
    found = pairs(*drawn, sensitivity=10.0)
    rows = np.array([[1.0, 2.0]])
    assert found._other(rows) == pytest.approx(np.array([1.0, 2.0]) + change)
    asked = found._rng.asked  # type: ignore[attr-defined]
    assert asked[1] in (("normal",), ("choice", [-1.0, 1.0], 2))
    assert len(asked) == 3 or asked[3] == ("integers", 2)
    free = pairs()
    free._row = lambda: np.array([4.0, 5.0])  # type: ignore[method-assign]
    assert free._other(rows).tolist() == [4.0, 5.0]


def test_a_pair_is_what_its_candidate_says() -> None:
    def of(adjacency: Any, one: Candidate = ONE, **asked: Any) -> tuple[str, Any, Any]:
        pair = pairs(adjacency=adjacency, **{**RECORDS, **asked}).pair(one)
        return pair.name, pair.without[0].tolist(), pair.having[0].tolist()

    rows = ONE.rows.tolist()
    name = "records that were drawn, of which number 2 differs"
    assert of("replace-one") == (name, [rows[0], [7, -8], rows[2]], rows)
    assert of("add-remove") == (name, [rows[0], rows[2]], rows)
    value = Candidate(np.array([[2e6, 2.0]]), 0, np.array([7.0, -8.0]))
    said = "two values that were drawn"
    alone = {"shape": (2,), "records": False}
    assert of("replace-one", value, **alone) == (said, [7, -8], [1e6, 2])
    assert of("add-remove", value, **alone) == (said, [0, 0], [1e6, 2])
    assert of("add-remove", value, **alone, sensitivity=1.0) == (said, [7, -8], [1e6, 2])


def test_the_first_pair_has_any_place() -> None:
    found = pairs(("integers", 3), ("integers", 2), **RECORDS)
    n = iter(range(5))
    found._row = lambda: np.full(2, float(next(n)))  # type: ignore[method-assign]
    one = found.first()
    assert (one.place, one.rows[2].tolist(), one.other.tolist()) == (2, [1, 1], [2, 2])
    assert found._rng.asked[-1] == ("integers", 3)  # type: ignore[attr-defined]
