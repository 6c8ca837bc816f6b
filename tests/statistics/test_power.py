"""What an audit can be expected to prove: published values, and the audits that it predicts."""

import numpy as np
import pytest

from dpaudit.accounting.families import GAUSSIAN, LAPLACE
from dpaudit.errors import DpauditError
from dpaudit.statistics.bounds import (
    ceiling,
    epsilon_lower_bound,
    expected_bound,
    expected_family_bound,
    trials_needed,
)

ALPHA = 0.05


def gaussian(rates: np.ndarray) -> np.ndarray:
    return GAUSSIAN.false_negative_rate(1.0, rates)


def perfect(rates: np.ndarray) -> np.ndarray:
    return np.zeros_like(rates)


@pytest.mark.parametrize("n, expected", [(1_000, 1.44), (10_000, 2.19), (100_000, 2.82)])
def test_expected_bound_has_its_published_values(n: int, expected: float) -> None:
    assert expected_bound(n, 1e-5, ALPHA, gaussian) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("n, expected", [(1_000, 3.54), (10_000, 4.12), (100_000, 4.30)])
def test_expected_gaussian_bound_has_its_published_values(n: int, expected: float) -> None:
    mu = expected_family_bound(n, ALPHA, gaussian)
    assert GAUSSIAN.epsilon(mu, 1e-5) == pytest.approx(expected, abs=0.03)


def test_expectation_agrees_with_audits_by_the_best_test() -> None:
    rng, n, trials = np.random.default_rng(8), 1_000, 40_000
    bounds = []
    for fpr in np.geomspace(1e-3, 0.1, 12):
        fnr = float(LAPLACE.false_negative_rate(1.5, np.array(fpr)))
        counts = rng.binomial(n, fpr, trials), rng.binomial(n, fnr, trials)
        bounds.append(epsilon_lower_bound(*counts, n, n, 0.0, ALPHA).mean())
    expected = expected_bound(n, 0.0, ALPHA, lambda a: LAPLACE.false_negative_rate(1.5, a))
    assert expected == pytest.approx(max(bounds), abs=0.02)


def test_a_perfect_test_proves_the_ceiling() -> None:
    assert expected_bound(1_000, 0.0, ALPHA, perfect) == pytest.approx(ceiling(1_000, 0.0, ALPHA))


def by_a_gaussian(n: int) -> float:
    return expected_bound(n, 1e-5, ALPHA, gaussian)


def test_trials_needed_are_enough_and_not_many_more() -> None:
    n = trials_needed(2.0, by_a_gaussian)
    assert n is not None
    assert by_a_gaussian(n) > 2.0
    assert by_a_gaussian(int(0.98 * n)) <= 2.0


def test_trials_of_a_perfect_test_are_those_of_the_ceiling() -> None:
    n = trials_needed(5.6, lambda n: expected_bound(n, 0.0, ALPHA, perfect))
    assert n == pytest.approx(1_000, rel=0.01)


def test_no_number_of_trials_refutes_what_holds() -> None:
    assert trials_needed(4.4, by_a_gaussian) is None
    assert trials_needed(1.01, lambda n: expected_family_bound(n, ALPHA, gaussian)) is None


def test_a_claim_of_nothing_is_refused() -> None:
    with pytest.raises(DpauditError, match="must be positive"):
        trials_needed(0.0, by_a_gaussian)


def test_a_small_claim_needs_few_trials_of_a_perfect_attack() -> None:
    n = trials_needed(0.05, lambda n: expected_bound(n, 1e-5, ALPHA, perfect))
    assert n is not None
    assert ceiling(n, 1e-5, 0.05) > 0.05 >= ceiling(n - 1, 1e-5, 0.05)
