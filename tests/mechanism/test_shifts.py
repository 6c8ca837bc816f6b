"""Distances and noise, measured by calls that share their draws: exact, up to rounding."""

import random

import numpy as np
import pytest
import torch

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism.function import FunctionHere
from dpaudit.mechanism.neighbours import NeighbouringInputs, directions
from dpaudit.mechanism.rare_outputs import far_seeds, other_draws
from dpaudit.mechanism.search import Search
from dpaudit.mechanism.shifts import recognised
from tests.mechanism.functions import clipped, gaussian, given, laplace, of_torch

pytestmark = pytest.mark.usefixtures("few_pairs")
TORCH = {"library": "torch", "dtype": "float32"}


def normalvariate(x: np.ndarray) -> np.ndarray:
    noise = [random.normalvariate(0, 1.5) for _ in range(x.size)]
    return clipped(x) + np.reshape(noise, x.shape)


def single(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return clipped(x) + 0.25 * rng.standard_normal(x.shape, dtype=np.float32)


KNOWN = {
    "normalvariate": (normalvariate, {}, "random.normalvariate"),
    "single": (single, {}, "numpy.random.Generator.normal"),
    "numpy": (gaussian(1.25), {}, "numpy.random.normal"),
    "Laplace": (laplace(0.75), {}, "numpy.random.laplace"),
    "generator": (given(2.0), {}, "numpy.random.Generator.normal"),
    "torch": (of_torch(0.5), TORCH, "torch.randn"),
}
SCALES = {"numpy": 1.25, "Laplace": 0.75, "generator": 2.0, "torch": 0.5}
SCALES |= {"normalvariate": 1.5, "single": 0.25}


def searched(function, shape=(5, 3), adjacency="replace-one", **options) -> Search:
    asked = MechanismOptions(function="a:b", shape=shape, **options)
    called = FunctionHere(function, asked)
    return Search(called, NeighbouringInputs(asked, adjacency, 0), 1e-5, 0)


@pytest.mark.parametrize("name", KNOWN)
def test_noise_of_a_known_function_is_recognised(name: str) -> None:
    function, options, source = KNOWN[name]
    search = searched(function, **options)
    assert search.noise is not None
    assert search.noise.draw.name == source
    assert search.unit == pytest.approx(SCALES[name], rel=1e-6)
    assert search.noise.exceptions(search.function, search.neighbours.zero, range(50)) == 0


@pytest.mark.parametrize("decimals", [3, 5, 7])
def test_rounded_noise_is_not_recognised(decimals: int) -> None:
    """The digits of a value beyond those of its noise stand bare: two values are told apart."""

    def rounded(x: np.ndarray) -> np.ndarray:
        return clipped(x) + np.round(np.random.normal(0, 2.0, x.shape), decimals)

    def mixed(x: np.ndarray) -> np.ndarray:
        return clipped(x) + np.round(np.cumsum(np.random.normal(0, 2.0, x.shape)), decimals)

    assert searched(rounded).noise is None
    assert searched(mixed, shape=(6,)).noise is None


def test_noise_of_half_precision_hides_no_single_one() -> None:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        return clipped(x) + (2 * torch.randn(x.shape)).half().float()

    assert searched(rounded, **TORCH).noise is None


RARE = ("normalvariate", "single", "generator")  # found as numpy's and torch's are


@pytest.mark.parametrize(
    ("name", "adjacency", "diameters"),
    [
        *((name, "replace-one", 2.0) for name in KNOWN),
        *(
            pytest.param(name, "add-remove", 1.0, marks=[pytest.mark.slow] if name in RARE else [])
            for name in KNOWN
        ),
    ],
)
def test_the_search_finds_the_width_of_the_clip(name, adjacency, diameters) -> None:
    function, options, _ = KNOWN[name]
    worst = searched(function, adjacency=adjacency, **options).moves[0]
    if name == "Laplace":  # the L1 length of an L2 ball of 15 numbers is sqrt(15) times as large
        assert worst.size == pytest.approx(diameters * 15**0.5 / SCALES[name], rel=1e-6)
        assert worst.pair.name.startswith("all coordinates alike")
    else:
        assert worst.size == pytest.approx(diameters / SCALES[name], rel=1e-5)


def test_a_clip_that_lets_through_just_above_it_is_found() -> None:
    def wrong(x: np.ndarray) -> np.ndarray:
        norm = np.linalg.norm(x)
        return (x if norm < 2.5 else clipped(x)) + np.random.normal(0, 1.0, x.shape)

    assert 4.0 <= searched(wrong).moves[0].size <= 5.0  # twice the clip is among what is tried


def test_noise_that_sometimes_is_missing_counts_as_exceptions() -> None:
    def rarely(x: np.ndarray) -> np.ndarray:
        noisy = clipped(x) + np.random.normal(0, 1.0, x.shape)
        return x if np.random.random() > 0.99 else noisy

    search = searched(rarely)
    assert search.noise is not None
    value = search.moves[0].pair.having
    n = search.noise.exceptions(search.function, value, range(1000, 2000))
    assert 0 < n < 40  # of binomial(1000, 0.01): false with probability 1e-4


def test_noise_drawn_for_all_tensors_at_once_is_recognised() -> None:
    """torch draws other numbers for 20 at once than for 10 twice."""

    def at_once(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        flat = torch.cat([x.ravel() for x in xs])
        flat = flat / flat.norm().clamp(min=1.0) + 0.5 * torch.randn(flat.shape)
        return [flat[:10], flat[10:].reshape(2, 5)]

    search = searched(at_once, shape=((10,), (2, 5)), **TORCH)
    assert search.noise is not None
    assert search.unit == pytest.approx(0.5, rel=1e-6)


def test_other_noise_is_not_recognised() -> None:
    def uniform(x: np.ndarray) -> np.ndarray:
        return clipped(x) + np.random.uniform(-1, 1, x.shape)

    search = searched(uniform)
    assert search.noise is None
    assert search.is_additive


def test_a_number_without_noise_is_infinitely_far() -> None:
    def tail(x: np.ndarray) -> np.ndarray:
        noise = np.random.normal(0, 1.0, x.shape)
        noise.flat[-1] = 0.0
        return clipped(x) + noise

    search = searched(tail)
    assert recognised(search.function, search.neighbours.zero) is not None
    assert search.moves[0].size == np.inf


def test_directions_of_one_number_are_one() -> None:
    assert len(directions([(1,)], 0)) == 1
    several = directions([(2, 2), (3,)], 0)
    assert {"tensor 1 alone", "tensor 2 alone"} <= {one.name for one in several}


def test_neighbours_at_a_distance_are_that_far_apart() -> None:
    for norm, order in (("l1", 1), ("l2", 2), ("linf", np.inf)):
        options = MechanismOptions(function="a:b", shape=(4,), sensitivity=0.5, norm=norm)
        for pair in NeighbouringInputs(options, "replace-one", 0).fixed():
            gap = np.linalg.norm(pair.having[0] - pair.without[0], order)
            assert gap == pytest.approx(0.5 / 3 if pair.name.endswith("0.166667") else 0.5)


def test_removed_records_are_fewer_rows() -> None:
    options = MechanismOptions(function="a:b", shape=(5, 2), records=True, output_shape=(2,))
    for pair in NeighbouringInputs(options, "add-remove", 0).fixed():
        assert (pair.without[0].shape, pair.having[0].shape) == ((4, 2), (5, 2))
        assert np.array_equal(pair.without[0], pair.having[0][1:])


@pytest.mark.parametrize("ends", [{"low": 1.0}, {"high": -1.0}])
def test_a_range_with_one_end_has_several_lengths(ends: dict) -> None:
    options = MechanismOptions(function="a:b", shape=(2,), **ends)
    values = [
        v[0] for pair in NeighbouringInputs(options, "replace-one", 0).fixed() for v in pair[1:]
    ]
    (end,) = ends.values()
    lengths = {abs(float(x) - end) for value in values for x in value}
    assert {0.0, 1.0, 1000.0} <= lengths
    assert max(lengths) == 1000.0


def test_numbers_stay_in_their_range_and_on_their_grid() -> None:
    options = MechanismOptions(function="a:b", shape=(5,), low=0.0, high=3.0, dtype="int8")
    for pair in NeighbouringInputs(options, "replace-one", 0).fixed():
        for value in pair[1:]:
            assert value[0].dtype == np.int64
            assert value[0].min() >= 0
            assert value[0].max() <= 3


N = 8
LATER = np.tril(np.ones((N, N)))  # sums of all numbers so far, whose inverse is differences
SUMS = {  # what is done to a value and to draws of scale 2, and the mu of a move along each axis
    "sums of noised numbers": (LATER, LATER, np.full(N, 0.5)),
    "noise of sums alone": (np.eye(N), LATER, np.array([*[np.sqrt(2) / 2] * (N - 1), 0.5])),
    "half of the directions": (np.eye(N)[:4], np.eye(N)[:4], np.array([*[0.5] * 4, *[0.0] * 4])),
    "noise for the sum": (np.eye(N), np.ones((N, N)), np.full(N, np.inf)),
    "a trace without noise": (np.eye(N) - 0.999 / N, np.eye(N) - 1 / N, np.full(N, np.inf)),
    "noise that sums to zero": (np.eye(N), np.eye(N) - 1 / N, np.full(N, np.inf)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_draws_hide_as_much_as_computed(name: str, dtype: str) -> None:
    A, B, mu = SUMS[name]

    def function(x: np.ndarray) -> np.ndarray:
        return (A @ x + B @ np.random.normal(0, 2.0, N)).astype(dtype)

    search = searched(function, (N,), sensitivity=1.0, dtype=dtype, output_shape=(len(A),))
    assert search.noise is not None
    assert search.noise.exceptions(search.function, search.neighbours.zero, range(50)) == 0
    axes = [search.size(A @ axis) for axis in np.eye(N)]
    assert axes == pytest.approx(mu, rel=1e-3 if dtype == "float32" else 1e-6)


def test_noise_in_shares_is_recognised_with_its_draws() -> None:
    """Of torch, whose draws depend on the shape that is asked for."""

    def shares(x: torch.Tensor) -> torch.Tensor:
        return x + torch.stack([torch.randn_like(x) for _ in range(4)]).sum(dim=0)

    search = searched(shares, (5, 3), sensitivity=1.0, **TORCH)
    assert search.noise is not None
    assert search.noise.n_drawn == 60
    assert search.moves[0].size == pytest.approx(0.5, rel=1e-3)
    assert other_draws(search.function, search.noise, search.neighbours.zero) == ""


def test_a_draw_that_is_in_no_sum_is_named() -> None:
    """It may decide whether there is noise."""

    def discarding(x: np.ndarray) -> np.ndarray:
        np.random.normal()
        return x + np.random.normal(0, 2.0, x.shape)

    search = searched(discarding, (N,), sensitivity=1.0)
    assert search.noise is not None
    other = other_draws(search.function, search.noise, search.neighbours.zero)
    assert other == "a call draws numbers from numpy.random that are not in its noise"


@pytest.mark.usefixtures("few_far_seeds")
def test_noise_cut_off_in_a_sum_is_found_far_out() -> None:
    def cut(x: np.ndarray) -> np.ndarray:
        return x + np.clip(np.random.normal(size=(2, N)).sum(axis=0), -5.6, 5.6)

    search = searched(cut, (N,), sensitivity=1.0)
    zero = search.neighbours.zero
    assert search.noise is not None  # none of the calls that were fitted was cut off
    assert search.noise.exceptions(search.function, zero, range(50)) == 0
    far = far_seeds(search.function, search.noise, zero)
    assert search.noise.exceptions(search.function, zero, [1, *far]) > 0


def test_a_clip_left_out_where_the_norm_overflows_is_found() -> None:
    def overflowing(x: np.ndarray) -> np.ndarray:
        norm = np.sqrt(np.square(x.astype(np.float32)).sum())
        return (clipped(x) if np.isfinite(norm) else x) + np.random.normal(0, 2.0, x.shape)

    assert searched(overflowing).moves[0].size > 1e20


def test_a_value_far_out_at_which_a_function_fails_is_left_out() -> None:
    def failing(x: np.ndarray) -> np.ndarray:
        if np.abs(x).max() > 1e20:
            raise OverflowError
        return clipped(x) + np.random.normal(0, 2.0, x.shape)

    assert searched(failing).moves[0].size == pytest.approx(1.0, rel=1e-6)
