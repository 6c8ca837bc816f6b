"""Batches that meet under one noise: a lower bound, against integrals over the number they move."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import (
    Meeting,
    RecordAdjacency,
    Release,
    epsilon,
    epsilon_where_batches_meet,
    power_where_batches_meet,
)

DELTA = 1e-5
CASES = [(5, 0.08, 1.0), (10, 0.1, 2.0), (3, 0.5, 0.5), (20, 0.02, 1.0), (400, 0.001, 3.0)]


def poisson(z: float, rate: float, count: int = 1) -> Release:
    return Release(
        family="gaussian", noise_multiplier=z, sampling="poisson", sampling_rate=rate, count=count
    )


def least(delta_of: Callable[[float], float]) -> float:
    return brentq(lambda epsilon: np.log(max(delta_of(epsilon), 1e-300) / DELTA), 0.0, 200.0)


def by_integral(batches: int, rate: float, z: float, adjacency: RecordAdjacency) -> float:
    """Of the density of one number, on a grid, with the record in each way to be drawn."""
    most = min(batches, 20)  # of 400 at a rate of 0.001, more are drawn with probability 1e-28
    x = np.linspace(-most - 12 * z, most + 12 * z, 40_001)

    def world(sign: int) -> Array:
        drawn = np.arange(most + 1)
        law = binom.pmf(drawn, batches, rate)
        return sum(p * norm.pdf(x, sign * k, z) for p, k in zip(law, drawn, strict=True))

    p, q = world(1), world(-1 if adjacency == "replace-one" else 0)
    dx = x[1] - x[0]
    return least(lambda eps: np.maximum(p - np.exp(eps) * q, 0).sum() * dx)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("batches", "rate", "z"), CASES)
def test_one_meeting_is_the_mixture_over_how_often_it_is_drawn(
    batches: int, rate: float, z: float, adjacency: RecordAdjacency
) -> None:
    found = epsilon_where_batches_meet([Meeting(poisson(z, rate), batches)], DELTA, adjacency)
    really = by_integral(batches, rate, z, adjacency)
    assert found <= really * (1 + 1e-6)  # a lower bound, but for the grid of the integral
    assert found == pytest.approx(really, rel=2e-5)


def test_meetings_compose() -> None:
    """Two, in the plane; and once more as one release that counts twice."""
    z, rate, batches = 1.0, 0.2, 2
    axis = np.linspace(-8, 12, 801)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    law = binom.pmf(range(batches + 1), batches, rate)
    there = sum(
        law[i] * law[j] * norm.pdf(x, i, z) * norm.pdf(y, j, z)
        for i, j in product(range(batches + 1), repeat=2)
    )
    absent, cell = norm.pdf(x, 0, z) * norm.pdf(y, 0, z), (axis[1] - axis[0]) ** 2
    really = least(lambda eps: np.maximum(there - np.exp(eps) * absent, 0).sum() * cell)
    apart = epsilon_where_batches_meet([Meeting(poisson(z, rate), batches)] * 2, DELTA)
    counted = epsilon_where_batches_meet([Meeting(poisson(z, rate, 2), batches)], DELTA)
    assert apart == counted == pytest.approx(really, rel=1e-4)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("rounds", [1, 30, 1000])
def test_they_lie_between_single_batches_and_no_less_telling(
    rounds: int, adjacency: RecordAdjacency
) -> None:
    """Noise of variance z^2 is the sum of one for each batch, which has a share of it."""
    z, rate, batches = 2.0, 0.05, 10
    found = epsilon_where_batches_meet(
        [Meeting(poisson(z, rate, rounds), batches)], DELTA, adjacency
    )
    one_by_one = epsilon([poisson(z, rate, rounds * batches)], DELTA, adjacency).low
    shares = epsilon([poisson(z / batches**0.5, rate, rounds * batches)], DELTA, adjacency).high
    assert one_by_one < found < shares


def test_the_figures_of_the_page_on_network_accounting() -> None:
    met = epsilon_where_batches_meet([Meeting(poisson(1.0, 0.08), 5)], DELTA)
    assert f"{met:.2f}" == "8.24"
    assert f"{epsilon([poisson(1.0, 0.08, 5)], DELTA).low:.2f}" == "2.01"


def test_of_one_batch_each_and_of_batches_that_are_whole() -> None:
    """The first is what composition says; the second is a shift of all of them."""
    single = [poisson(1.5, 0.1, 7)]
    found = epsilon_where_batches_meet([Meeting(release, 1) for release in single], DELTA)
    assert found == pytest.approx(epsilon(single, DELTA).low, rel=1e-9)
    whole = Release(family="gaussian", noise_multiplier=8.0)
    four = whole.model_copy(update={"noise_multiplier": 2.0})
    together = epsilon_where_batches_meet([Meeting(whole, 4)], DELTA)
    assert together == pytest.approx(epsilon([four], DELTA).low, rel=1e-3)
    assert together <= epsilon([four], DELTA).low
    assert epsilon_where_batches_meet([], DELTA) == 0.0


def test_without_noise_the_lower_bound_is_large_and_finite() -> None:
    bare = Meeting(poisson(0.0, 0.1), 5)
    assert 500 < epsilon_where_batches_meet([bare], DELTA) < np.inf


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_power_of_a_threshold_on_the_number(adjacency: RecordAdjacency) -> None:
    """The ratio of the two worlds rises along it, so no other test of it does better."""
    batches, rate, z = 5, 0.1, 1.5
    threshold = np.linspace(-2.0, 8.0, 9)
    law = binom.pmf(range(batches + 1), batches, rate)

    def beyond(sign: int) -> Array:
        return sum(p * norm.sf(threshold, sign * k, z) for k, p in enumerate(law))

    false, true = beyond(-1 if adjacency == "replace-one" else 0), beyond(1)
    found = power_where_batches_meet([Meeting(poisson(z, rate), batches)], false, adjacency)
    assert (found <= true + 1e-9).all()
    assert found == pytest.approx(true, rel=1e-3, abs=1e-6)
    assert power_where_batches_meet([], false).tolist() == false.tolist()
