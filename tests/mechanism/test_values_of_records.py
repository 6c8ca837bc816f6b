"""Which records a search tries, and what a function makes of them, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism.function import (
    FunctionError,
    FunctionHere,
    _as_array,
    _shown,
    flat,
)
from dpaudit.mechanism.neighbours import Direction, NeighbouringInputs, _distinct, directions
from dpaudit.mechanism.probes import _lowest_bit, _other_shape, _unchanged, probed
from dpaudit.mechanism.search import Search

DELTA = 1e-5


def options(**asked: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:b", "shape": (4,), **asked})


def test_directions_are_these_corners() -> None:
    found = {one.name: one.flat.tolist() for one in directions([(2, 2), (1,)], 3)}
    random = np.random.default_rng([3, 7]).standard_normal(5).tolist()
    assert found == {
        "one coordinate": [1, 0, 0, 0, 0],
        "all coordinates alike": [1, 1, 1, 1, 1],
        "signs in turn": [1, -1, 1, -1, 1],
        "half of the signs": [1, 1, -1, -1, -1],
        "all signs but the last": [1, 1, 1, 1, -1],
        "the first sign alone": [1, -1, -1, -1, -1],
        "a random direction": random,
        "tensor 1 alone": [1, 1, 1, 1, 0],
        "tensor 2 alone": [0, 0, 0, 0, 1],
    }
    again = [[1.0, 1.0], [-2.0, -2.0], [0.0, 0.0], [1.0, 1.0 + 1e-4], [1.0, 1.0]]
    kept = _distinct([Direction(str(i), np.array(x)) for i, x in enumerate(again)])
    assert [one.name for one in kept] == ["0", "3"]


def test_pairs_along_a_direction_have_these_lengths() -> None:
    found = NeighbouringInputs(options(shape=(2,)), "replace-one", 0)
    one = Direction("d", np.array([3.0, 4.0]))
    pairs = list(found.along(one, [10.0]))
    assert [(p.name, p.without[0].tolist(), p.having[0].tolist()) for p in pairs] == [
        ("d, length 10, and its opposite", [-6.0, -8.0], [6.0, 8.0]),
        ("d, length 10, and zero", [0.0, 0.0], [6.0, 8.0]),
    ]
    absent = NeighbouringInputs(options(shape=(2,)), "add-remove", 0)
    assert [p.name for p in absent.along(one, [10.0])] == ["d, length 10, and zero"]
    half = NeighbouringInputs(options(shape=(2,), dtype="float16"), "replace-one", 0)
    assert half.at(one, 1e6)[0].tolist() == [60_000.0, 60_000.0]
    assert [float(np.linalg.norm(v[0])) for v in absent.examples[:3]] == [0.0, 1.0, 1e3]
    assert len(absent.examples) == 1 + 2 * len(absent.directions)
    known = NeighbouringInputs(options(shape=(2,), sensitivity=1.0), "replace-one", 0)
    assert len(known.examples) == 1 + 2 * len(known.fixed())
    assert [known.finds_clip, found.finds_clip] == [False, True]
    for asked in ({"low": 0.0}, {"high": 1.0}, {"shape": (2, 2), "records": True}):
        assert not NeighbouringInputs(options(**asked), "replace-one", 0).finds_clip


def test_records_are_of_the_largest_size_that_is_allowed() -> None:
    of = {"shape": (3, 1), "records": True}
    for ends, size in (({"low": -3.0, "high": 1.0}, "3"), ({"low": 0.0, "high": 2.0}, "2")):
        found = NeighbouringInputs(options(**of, **ends), "replace-one", 0).fixed()
        assert {f"size {size}" in pair.name for pair in found} == {True}
    free = NeighbouringInputs(options(**of), "replace-one", 0).fixed()
    rows = {p.name.split("size ")[1]: [*p.without[0][:, 0], *p.having[0][:, 0]] for p in free}
    assert rows == {
        f"{said}, among {name}": [-s, *others, s, *others]
        for said, s in (("1", 1.0), ("1000", 1e3))
        for name, others in (
            ("zeros", [0.0, 0.0]),
            ("its like", [s, s]),
            ("its opposite", [-s, -s]),
            ("its like and its opposite", [s, -s]),
        )
    }


def test_values_beside_far_ones_change_alone() -> None:
    """At 10 times the distance: a ramp, and one number."""
    found = NeighbouringInputs(options(shape=(2,), sensitivity=2.0), "replace-one", 0).fixed()
    pairs = {(p.name, *p.without[0]): p.having[0].tolist() for p in found}
    one = "one coordinate{}, at distance 2"
    assert pairs[(one.format(" of values far apart"), 0.0, 20.0)] == [2.0, 20.0]
    assert pairs[(one.format(" of values far apart"), -1.0, 20.0)] == [1.0, 20.0]
    assert pairs[(one.format(" beside a large one"), 20.0, 0.0)] == [22.0, 0.0]
    assert pairs[(one.format(" beside a large one"), 19.0, 0.0)] == [21.0, 0.0]


@pytest.mark.parametrize(
    ("number", "bit"),
    [(1.0, 0), (0.5, -1), (3.0, 0), (-6.0, 1), (0.75, -2), (0.0, 0), (1 + 2.0**-52, -52)],
)
def test_the_lowest_bit_of_a_number_is_its_exponent(number: float, bit: int) -> None:
    assert _lowest_bit(np.array([number])).tolist() == [bit]


def kept_share(function: Any, **asked: Any) -> float | None:
    o = options(**asked)
    return _unchanged(Search(FunctionHere(function, o), None, DELTA, 0), o)  # type: ignore[arg-type]


def test_numbers_that_come_back_or_stay_are_a_share() -> None:
    def half(x: np.ndarray) -> np.ndarray:
        return np.where(np.arange(4) < 2, x, x + np.random.normal(size=4))

    assert kept_share(half) == 0.5
    assert kept_share(lambda x: x + np.random.normal(size=4)) == 0.0
    assert kept_share(lambda x: 2 * x + (np.arange(4) == 0) * np.random.normal()) == 0.75
    assert kept_share(lambda x: x[:3]) is None
    assert kept_share(lambda x: x, output_shape=(3,)) is None


def noted(function: Any, **asked: Any) -> list[str]:
    o = options(runs=400, **asked)
    search = Search(FunctionHere(function, o), NeighbouringInputs(o, "replace-one", 0), DELTA, 0)
    return [f"{note.code} {note.text}" for note in probed(search)]


def test_what_a_function_does_beside_its_claim_is_noted() -> None:
    def integer(x: np.ndarray) -> np.ndarray:
        return (x + np.random.normal(0, 0.3, x.shape)).astype(x.dtype)

    found = noted(integer, sensitivity=1.0)
    assert len(found) == 1
    assert found[0].startswith("DPA139 Called with int64, the function returns")
    assert noted(integer, sensitivity=1.0, dtype="int64") == []

    def first(x: np.ndarray) -> np.ndarray:
        return x + np.random.normal(0, 9.0, x.shape) + 0 * x[0]

    assert [one[:39] for one in noted(first, sensitivity=1.0)] == [
        "DPA140 Called with a value of shape (0,"
    ]
    search: Any = SimpleNamespace(function=FunctionHere(first, options(output_shape=(4,))))
    assert list(_other_shape(search, (0,))) == []


def test_low_bits_of_naive_noise_are_noted() -> None:
    """Noise on a grid about 0 and finer bits elsewhere; and noise that has the same bits."""

    def grid(x: np.ndarray) -> np.ndarray:
        x = x / max(1.0, np.linalg.norm(x))
        return x + np.round(np.random.normal(0, 50.0, x.shape))

    def fine(x: np.ndarray) -> np.ndarray:
        return np.round(grid(x))

    assert any("DPA138" in one for one in noted(lambda x: grid(x * 0.3)))
    assert not any("DPA138" in one for one in noted(fine))


def test_what_is_returned_is_flat_and_finite() -> None:
    two = options(shape=((2,), (1, 2)))
    found = flat((np.array([1.0, 2.0]), np.array([[3.0, 4.0]])), two)
    assert (found.tolist(), found.dtype) == ([1.0, 2.0, 3.0, 4.0], np.float64)
    big = np.full(4, 1e308)
    assert flat(big, options()).tolist() == big.tolist()  # whose sum overflows
    for wrong, o in (([np.ones(2)], two), (np.array([1, 2, np.nan, np.inf]), options())):
        with pytest.raises(FunctionError):
            flat(wrong, o)
    with pytest.raises(FunctionError, match="in 2 numbers"):
        flat(np.array([1, 2, np.nan, np.inf]), options())
    assert flat(np.array(3), options(output_shape=(), output_dtype="int64")).tolist() == [3.0]
    half = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    array, name = _as_array(half)
    assert (array.tolist(), name) == ([1.5, 2.0], "bfloat16")
    assert _as_array(torch.ones(1, requires_grad=True))[1] == "float32"
    assert _as_array(np.array([True]))[1] == "bool"


def test_a_value_is_shown_by_its_range() -> None:
    assert _shown([np.array([2.0, -1.0]), np.zeros(0)]) == "shape (2,), (0,), numbers from -1 to 2"
    assert _shown([np.array([2.0]), np.array([-3.0, 1.0])]).endswith("numbers from -3 to 2")
    assert _shown(np.zeros((0, 2))) == "an empty value of shape (0, 2)"
