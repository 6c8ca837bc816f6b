"""Values of estimates, intervals and capacities, worked out by hand."""

from math import log, log2, nan, tanh

import numpy as np
import pytest
from scipy.special import stdtrit

from dpaudit.information.best_estimate import RESAMPLES, best_estimate
from dpaudit.information.capacity import (
    of_bit_in_gaussian,
    of_number_in_gaussian,
    of_pure_epsilon,
    of_vector_in_gaussian,
)
from dpaudit.information.estimators import (
    gaussian_information,
    information_correlation,
    self_information,
)
from dpaudit.information.mnmi import intervals, maximum_information, permutation_p_value


def test_a_permutation_p_value_counts_ties() -> None:
    assert permutation_p_value(1.0, np.array([0.0, 1.0, 2.0])) == 0.75
    assert permutation_p_value(3.0, np.array([0.0, 1.0, 2.0])) == 0.25
    assert permutation_p_value(3.0, np.empty(0)) is not nan


@pytest.mark.parametrize("dims, power", [(1, 1.0), (4, 0.5)])
def test_an_interval_reaches_to_its_extrapolation(dims, power) -> None:
    """Halves of two splits are 0.2 apart and 0.1 above the whole; two rounds share the level."""
    halves = np.array([[[1.0, 1.2], [1.2, 1.0]]] * 2)
    found = intervals(np.array([1.0, 1.0]), halves, np.array([dims, dims]), 0.95)
    error = 0.1
    reach = -stdtrit(1.0, 0.05 / 4) * error
    assert found.standard_error == pytest.approx([error] * 2)
    assert found.drift == pytest.approx([0.1] * 2)
    assert found.high == pytest.approx([1.0 + reach] * 2)
    assert found.low == pytest.approx([1.0 - 0.1 / (2**power - 1) - reach] * 2)


def test_capacities_are_shannons() -> None:
    assert of_number_in_gaussian(2.0) == pytest.approx(0.5)
    assert of_vector_in_gaussian(4, 2.0) == pytest.approx(2.0)
    assert of_pure_epsilon(2.0) == pytest.approx(2 * tanh(1.0) / log(2))
    assert of_bit_in_gaussian(0.0) == pytest.approx(0.0, abs=1e-9)
    assert of_bit_in_gaussian(20.0) == pytest.approx(1.0)


def test_gaussian_information_is_that_of_the_correlation() -> None:
    x = np.array([1.0, 1.0, -1.0, -1.0] * 3)
    z = np.array([1.0, -1.0, 1.0, -1.0] * 3)
    assert gaussian_information(x, 0.6 * x + 0.8 * z) == pytest.approx(-0.5 * log2(1 - 0.36))
    assert information_correlation(-0.5 * log2(1 - 0.36)) == pytest.approx(0.6)
    assert self_information(4, 1) == pytest.approx((1 / 2 + 1 / 3) / log(2))


def test_the_maximum_over_rounds_is_held_against_maxima() -> None:
    rng = np.random.default_rng(5)
    private, view = rng.normal(size=(2, 4, 60))
    found = maximum_information(private, view, rng, n_permutations=19, n_splits=4)
    assert found.bits == found.per_round.max()
    assert (found.low, found.high) == (found.lows.max(), found.highs.max())
    assert found.highs.argmax() != found.per_round.argmax() or found.highs.min() < found.high
    assert found.baseline > found.baselines.max()
    assert found.m_nmi == pytest.approx(found.bits / found.self_information)


def test_the_interval_of_the_best_is_that_of_resampled_trials() -> None:
    rng = np.random.default_rng(1)
    private = rng.normal(size=90)
    view = (private + rng.normal(size=90))[:, None]
    found = best_estimate(private, view, np.random.default_rng(2))
    again = np.random.default_rng(2)
    again.permutation(90)
    rows = again.integers(30, size=(RESAMPLES, 30))
    truth, estimate = found.private[rows], found.estimate[rows]
    explained = 1 - ((truth - estimate) ** 2).mean(axis=1) / truth.var(axis=1)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(explained, [0.025, 0.975])))
