"""What tests of drawn noise come to, by hand."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binomtest, chi2, norm, poisson

from dpaudit.capture import noise_tests
from dpaudit.capture.noise_tests import NormalizedDraw


def drawing(values: np.ndarray, run: int = 0, agent: int = 0, nth: int = 0) -> NormalizedDraw:
    return NormalizedDraw(run, agent, "z", nth, "gaussian", values)


def test_numbers_on_a_grid_are_seen() -> None:
    z = np.random.default_rng(1).normal(size=400)
    assert "multiples of 0.02 times" in noise_tests._on_a_grid([drawing(np.round(50 * z) / 50)])
    assert noise_tests._on_a_grid([drawing(z)]) == ""
    few = np.arange(noise_tests.FEWEST_ON_GRID - 1.0)
    assert noise_tests._on_a_grid([drawing(few)]) == ""
    assert noise_tests._on_a_grid([drawing(np.arange(1.0 * noise_tests.FEWEST_ON_GRID))]) != ""


def test_noise_that_runs_share_is_seen() -> None:
    z = np.random.default_rng(1).normal(size=(3, 4))
    assert "same in runs" in noise_tests._fixed([drawing(z[0]), drawing(z[0], run=1)])
    for other in (drawing(z[1], run=1), drawing(z[0], run=1, nth=1), drawing(z[0], run=1, agent=1)):
        assert noise_tests._fixed([drawing(z[0]), other]) == ""
    assert noise_tests._fixed([drawing(z[0]), drawing(z[0])]) == ""


def test_a_law_is_held_against_its_numbers() -> None:
    z = np.random.default_rng(2).normal(size=50)
    distance = max(abs((i + e) / 50 - norm.cdf(x)) for i, x in enumerate(sorted(z)) for e in (0, 1))
    assert noise_tests._law(ndtr(z)) == pytest.approx(min(1.0, 2 * np.exp(-2 * 50 * distance**2)))
    assert noise_tests._law(ndtr(z + 1)) < 1e-6
    one, other = z[:25], z[25:]
    p = 2 * norm.sf(abs(one @ other) / np.linalg.norm(one))
    assert noise_tests._related(one, other) == pytest.approx(p)
    assert noise_tests._related(0 * one, other) == 1.0
    assert noise_tests._standard(z, "gaussian") is z
    x = np.array([-3.0, 0.0, 0.5])
    exact = norm.ppf([np.exp(-3) / 2, 0.5, 1 - np.exp(-0.5) / 2])
    assert noise_tests._standard(x, "laplace") == pytest.approx(exact, abs=1e-12)
    level = norm.isf(noise_tests.LEVEL / 2) + norm.ppf(0.95)
    assert noise_tests._seen(1000) == pytest.approx(100 * level / sqrt(2000))
    assert noise_tests._seen(2) == 100.0


def test_equal_numbers_are_a_poisson_variable() -> None:
    z = np.random.default_rng(3).normal(size=(100, 10))
    assert noise_tests._drawn_again(z) == 1.0
    z[0, :3] = -z[50:53, 9]
    assert noise_tests._drawn_again(z) == pytest.approx(poisson.sf(2, 1e6 / 2 / 2**21))


def test_parts_of_noise_have_these_p_values() -> None:
    """Two agents, two rounds and two runs of four numbers each."""
    z = np.random.default_rng(3).normal(size=(8, 4))
    places = [(r, a, k) for r in (0, 1) for a in (0, 1) for k in (0, 1)]
    group = [drawing(z[i], r, a, k) for i, (r, a, k) in enumerate(places)]
    found = list(noise_tests._of_parts(group, z.T))
    index = {place: i for i, place in enumerate(places)}

    def of_size(total: float, n: int) -> float:
        return 2 * min(chi2.cdf(total, n), chi2.sf(total, n))

    def least(some: list[float]) -> float:
        return min(1.0, len(some) * min(some))

    squares = z**2
    expected = [
        least([of_size(sum(squares[i].sum() for p, i in index.items() if p[j] == v), 16)
               for v in (0, 1)])
        for j in (1, 2)
    ]  # fmt: skip
    expected.append(least([of_size(squares[:, c].sum(), 8) for c in range(4)]))
    expected.append(least([2 * norm.sf(abs(z[:, c].sum()) / sqrt(8)) for c in range(4)]))
    for j in (2, 1, 0):
        step = tuple(int(i == j) for i in range(3))
        pairs = [(i, index.get(tuple(np.add(p, step)))) for p, i in index.items()]
        there = [(i, other) for i, other in pairs if other is not None]
        ones, others = zip(*there, strict=True)
        expected.append(noise_tests._related(z[list(ones)], z[list(others)]))
    expected.append(1.0)  # no number is equal to another one
    expected.append(noise_tests._law(ndtr(z.ravel())))
    for size in noise_tests.TAILS:
        n = int((np.abs(z) > size).sum())
        expected.append(float(binomtest(n, 32, 2 * norm.sf(size)).pvalue))
    assert [p for _, p in found] == pytest.approx(expected)
    among = list[float]()
    among.append(noise_tests._related(z[:, [0, 2]], z[:, [1, 3]]))
    among.append(noise_tests._related(z[:, [0, 1]], z[:, [3, 2]]))
    for signs in (np.sign(z), np.sign(np.abs(z) - norm.ppf(0.75))):
        sums = [(signs[:, lag:] * signs[:, :-lag]).sum() for lag in (1, 2, 3)]
        among.append(
            least([min(1.0, 2 * np.exp(-(s**2) / (16 * (4 - i)))) for i, s in enumerate(sums, 1)])
        )
    among.append(noise_tests._law(chi2.cdf(squares.sum(axis=1), 4)))
    among.append(noise_tests._law(ndtr(z.sum(axis=1) / 2)))
    assert [p for _, p in noise_tests._among_coordinates(z.T)] == pytest.approx(among)
    assert [
        noise_tests._parity(group[i], group[j]) for i, j in ((0, 4), (0, 2), (1, 3), (1, 0))
    ] == [
        0,
        0,
        0,
        1,
    ]
    assert noise_tests._parity(group[4], drawing(z[0], run=2)) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, 1, 1), (1, 1, 1)),  # run, agent and occurrence: of what differs
        ((0, 0, 1), (0, 1, 1)),
        ((1, 1, 0), (1, 1, 1)),
    ],
)
def test_pairs_that_share_no_draw_have_one_parity(one: Any, other: Any) -> None:
    [place] = [i for i in range(3) if one[i] != other[i]]
    for n in range(5):
        places = [tuple(n + m if i == place else k for i, k in enumerate(one)) for m in (0, 1)]
        a, b = (drawing(np.zeros(1), *at) for at in places)
        assert noise_tests._parity(a, b) == n % 2
