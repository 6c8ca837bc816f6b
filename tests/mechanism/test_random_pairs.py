"""What pairs of inputs that are drawn find, and that they are neighbours."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism.function import FunctionHere
from dpaudit.mechanism.neighbours import NeighbouringInputs, Pair, _length
from dpaudit.mechanism.random_pairs import DrawnPairs
from dpaudit.mechanism.search import Search

ROWS = {"shape": (12, 1), "records": True, "low": -1.0, "high": 1.0, "output_shape": (1,)}
UNIT = {"shape": (1,), "low": 0.0, "high": 1.0}
VECTOR = {"shape": (6,)}
BLOCKS = {"shape": (8, 5), "records": True, "output_shape": (5,)}


def clip(x: Any) -> Any:
    return x / max(1.0, float(np.linalg.norm(x)))


def worst(function: Any, adjacency: Any, **asked: Any) -> float:
    """How far the worst pair moves what the function returns, without its noise."""
    o = MechanismOptions.model_validate({"function": "a:b", "runs": 400, **asked})
    shape = o.output_shapes[0]
    noised = FunctionHere(lambda x: function(x) + np.random.normal(0, 1.0, shape), o)
    found = Search(noised, NeighbouringInputs(o, adjacency, 0), 1e-5, 0)
    assert found.is_additive
    return found.moves[0].size


def from_the_middle(x: Any) -> Any:
    return np.abs(x - 0.5)


def weighted_to_the_last(rows: Any) -> Any:
    return (np.linspace(0.1, 1.0, 12)[-len(rows) :, None] * rows).sum(axis=0)


def products_of_neighbours(rows: Any) -> Any:
    return (rows[1:] * rows[:-1]).sum(axis=0)


def redescending(x: Any) -> Any:
    """Tukey's biweight: |x| (1 - (|x| / 10)^2)^2 is largest, 2.86, at 10 / sqrt(5)."""
    return x * max(0.0, 1 - (np.linalg.norm(x) / 10) ** 2) ** 2


def longer_where_sparse(x: Any) -> Any:
    """A clip that lets two numbers among zeros be 2.5 long, as of an embedding's gradient."""
    return clip(x / 2.5) * 2.5 if np.count_nonzero(x) == 2 else clip(x)


def mean_of_two_blocks(rows: Any) -> Any:
    """A long record turns the clipped mean of its block around, and moves one record over."""
    return sum(clip(part.mean(axis=0)) for part in np.array_split(rows, 2))


# The exact distance, and what a search has to find of it; corners alone: 0, 0.2, 2, 1, 1.4, 1.
@pytest.mark.parametrize(
    ("function", "adjacency", "options", "exact", "found"),
    [
        (from_the_middle, "replace-one", UNIT, 0.5, 0.49),
        (weighted_to_the_last, "replace-one", ROWS, 2.0, 1.9),
        (products_of_neighbours, "replace-one", ROWS, 4.0, 3.5),
        (longer_where_sparse, "add-remove", {"shape": (20,)}, 2.5, 2.499),
        (redescending, "add-remove", VECTOR, 160 / (25 * sqrt(5)), 2.8),
        (mean_of_two_blocks, "add-remove", BLOCKS, 4.0, 1.9),
    ],
)
def test_a_distance_between_the_corners_is_found(
    function: Any, adjacency: Any, options: Any, exact: float, found: float
) -> None:
    assert found <= worst(function, adjacency, **options) <= exact + 1e-6


def drawn(adjacency: Any, **asked: Any) -> list[Pair]:
    o = MechanismOptions.model_validate({"function": "a:b", **asked})
    pairs = DrawnPairs(NeighbouringInputs(o, adjacency, 3), 3)
    one, found = pairs.first(), []
    for i in range(60):
        found.append(pairs.pair(one))
        one = pairs.near(one) if i % 3 else pairs.first()
    return found


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("dtype", ["float64", "int64"])
@pytest.mark.parametrize("distance", [1.0, 2.0, 4.5])
def test_no_pair_is_further_apart_than_stated(norm: str, dtype: str, distance: float) -> None:
    asked: dict[str, Any] = {"shape": (6,), "sensitivity": distance, "norm": norm, "dtype": dtype}
    o = MechanismOptions.model_validate({"function": "a:b", **asked})
    corners = NeighbouringInputs(o, "replace-one", 0).fixed()
    for pairs in (corners, drawn("replace-one", **asked)):
        apart = [_length(pair.having[0] - pair.without[0], norm) for pair in pairs]
        assert max(apart) <= distance * (1 + 1e-9)
        least = distance if dtype == "float64" else np.floor(distance)
        assert max(apart) >= 0.6 * least


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_drawn_records_differ_in_one_row_in_range(adjacency: str) -> None:
    for pair in drawn(adjacency, **{**ROWS, "shape": (5, 2)}):
        (having,), (without,) = pair.having, pair.without
        assert max(np.abs(having).max(), np.abs(without).max()) <= 1.0
        if adjacency == "replace-one":
            assert (having != without).any(axis=1).sum() <= 1
        else:
            left = [np.delete(having, i, axis=0) for i in range(5)]
            assert any(np.array_equal(rows, without) for rows in left)


def test_a_drawn_value_is_held_against_zero() -> None:
    pairs = drawn("add-remove", **VECTOR)
    assert all(not pair.without[0].any() for pair in pairs)
    assert len({pair.having[0].tobytes() for pair in pairs}) > 50


@pytest.mark.parametrize(("end", "sign"), [({"low": 2.0}, 1.0), ({"high": 2.0}, -1.0)])
def test_drawn_values_lie_beyond_the_one_end_that_is_given(end: Any, sign: float) -> None:
    values = [
        v
        for pair in drawn("replace-one", shape=(3,), **end)
        for v in (pair.having[0], pair.without[0])
    ]
    beyond = sign * (np.stack(values) - 2.0)
    assert beyond.min() == 0.0
    assert beyond.max() > 1.0
