"""Bounds from one run's guesses: published values, special cases, and how often they are wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.special import expit
from scipy.stats import binom, norm

from dpaudit.accounting.families import GAUSSIAN, LAPLACE, TradeoffFamily
from dpaudit.errors import DpauditError
from dpaudit.statistics.guesses import (
    correct_guesses,
    epsilon_from_guesses,
    mu_from_ranked_guesses,
    shift_from_guesses,
)

ALPHA = 0.05
FALSE_FAILURE = 1e-7  # probability that a correct bound fails one case, over fresh seeds


@pytest.mark.parametrize(
    "counts, pure, approximate",
    [
        ((1000, 100, 100), 3.493, 3.465),
        ((1000, 200, 190), 2.398, 2.394),
        ((5000, 500, 495), 3.846, 3.812),
    ],
)
def test_bound_for_any_mechanism_has_its_published_values(
    counts: tuple[int, int, int], pure: float, approximate: float
) -> None:
    assert epsilon_from_guesses(*counts, 0.0, ALPHA) == pytest.approx(pure, abs=6e-4)
    assert epsilon_from_guesses(*counts, 1e-5, ALPHA) == pytest.approx(approximate, abs=6e-4)


def test_ranked_bound_has_its_published_value() -> None:
    mu = mu_from_ranked_guesses(1000, 100, 90, ALPHA)
    assert GAUSSIAN.epsilon(mu, 1e-5) == pytest.approx(3.165, abs=1e-3)


def test_ranked_bound_without_abstention_is_binomial() -> None:
    mu = mu_from_ranked_guesses(1000, 1000, 700, ALPHA)
    assert binom.cdf(300, 1000, norm.cdf(-mu / 2)) == pytest.approx(ALPHA, abs=1e-5)


def test_ranked_errors_are_those_of_simulated_channels() -> None:
    """The claimed tail against 4,000 simulated runs; 5 standard errors, so wrong in 1 of 1e6."""
    rng, n, r, mu, wrong, trials = np.random.default_rng(4), 60, 15, 1.2, 2, 4_000
    included = rng.random((trials, n)) < 0.5
    y = rng.normal(size=(trials, n)) + np.where(included, mu / 2, -mu / 2)
    guessed = np.argsort(-np.abs(y), axis=1)[:, :r]
    errors = np.take_along_axis((y > 0) != included, guessed, axis=1).sum(axis=1)
    seen = np.mean(errors <= wrong)
    # the bound is mu itself where alpha is the probability of so few errors
    assert mu_from_ranked_guesses(n, r, r - wrong, seen) == pytest.approx(
        mu, abs=5 * np.sqrt(seen * (1 - seen) / trials) / 0.25
    )


class PureCurve:
    """Of pure epsilon-DP, the parameter being epsilon."""

    rate = 1.0

    def false_negative_rate(self, epsilon: float, rate: np.ndarray) -> np.ndarray:
        return np.maximum(1 - np.exp(epsilon) * rate, np.exp(-epsilon) * (1 - rate))


@pytest.mark.parametrize("counts", [(300, 300, 300), (1000, 100, 100)])
def test_curve_bound_of_pure_privacy_is_the_binomial_one(
    counts: tuple[int, int, int],
) -> None:
    curve = shift_from_guesses(*counts, ALPHA, PureCurve())  # type: ignore[arg-type]
    assert curve == pytest.approx(epsilon_from_guesses(*counts, 0.0, ALPHA), abs=1e-5)


def most_likely(epsilon: float, m: int, r: int, v: int) -> float:
    """The largest P[at least v of r guesses right] that the curve of pure privacy allows.

    A linear program over the probabilities of j right guesses: turning a canary's coin gives
    R_i <= 1 - f(H_{i-1}) for each i, and the curve f is the larger of two straight lines.
    """
    j, rows, ends = np.arange(r + 1), [], []
    for i in range(1, v + 1):
        right, wrong = np.where(j >= i, j, 0) / m, np.where(j >= i - 1, r - j, 0) / m
        rows += [right - np.exp(epsilon) * wrong, right - np.exp(-epsilon) * wrong]
        ends += [0.0, 1 - np.exp(-epsilon)]
    given = {"A_ub": rows, "b_ub": ends, "A_eq": [np.ones(r + 1)], "b_eq": [1.0], "bounds": (0, 1)}
    return -float(linprog(-(j >= v).astype(float), **given).fun)


@pytest.mark.parametrize("counts", [(10, 6, 5), (10, 6, 4), (8, 8, 6)])
@pytest.mark.parametrize("epsilon", [0.2, 0.5])
def test_curve_bound_is_the_end_of_a_linear_program(
    counts: tuple[int, int, int], epsilon: float
) -> None:
    alpha = most_likely(epsilon, *counts)
    assert alpha < 1
    found = shift_from_guesses(*counts, alpha, PureCurve())  # type: ignore[arg-type]
    assert found == pytest.approx(epsilon, abs=2e-6)


def test_ranked_bound_with_and_without_abstention_agree() -> None:
    """One abstention of 1,000 moves the bound by less than its resolution of the share."""
    all_of_them = mu_from_ranked_guesses(1000, 1000, 700, ALPHA)
    assert mu_from_ranked_guesses(1001, 1000, 700, ALPHA) == pytest.approx(all_of_them, rel=5e-3)


def test_equal_evidence_is_guessed_on_in_the_order_given() -> None:
    included = [True, False, True, True, False, False, True, False]
    assert correct_guesses(np.ones(8), np.array(included), 4) == 3
    assert correct_guesses(-np.ones(8), np.array(included), 3) == 1


@pytest.mark.parametrize(
    "counts", [(300, 300, 200), (1000, 100, 90), (50, 20, 15), (200, 200, 120)]
)
def test_curve_bound_of_pure_privacy_is_otherwise_just_below(counts: tuple[int, int, int]) -> None:
    # the binomial bound is attained by flipped coins, so that no valid bound exceeds it
    curve = shift_from_guesses(*counts, ALPHA, PureCurve())  # type: ignore[arg-type]
    tight = epsilon_from_guesses(*counts, 0.0, ALPHA)
    assert 0.85 * tight <= curve <= tight


@settings(max_examples=25)
@given(st.integers(5, 60), st.data())
def test_curve_bounds_stay_below_independent_channels(n: int, data: st.DataObject) -> None:
    r = data.draw(st.integers(1, n))
    v = data.draw(st.integers(0, r))
    curve, ranked = shift_from_guesses(n, r, v, ALPHA), mu_from_ranked_guesses(n, r, v, ALPHA)
    assert 0 <= curve <= ranked + 1e-4
    if v < r:
        assert curve <= shift_from_guesses(n, r, v + 1, ALPHA) + 1e-6
        assert ranked <= mu_from_ranked_guesses(n, r, v + 1, ALPHA) + 1e-6


def wrong_bounds(
    shift: float, family: TradeoffFamily, n: int, r: int, runs: int, seed: int
) -> list[int]:
    """In how many runs of independent channels each bound exceeds the truth."""
    rng, delta = np.random.default_rng(seed), 1e-3
    truth, found = family.epsilon(shift, delta), {}
    included = rng.random((runs, n)) < 0.5
    noise = rng.normal(size=(runs, n)) if family == GAUSSIAN else rng.laplace(size=(runs, n))
    y = noise + np.where(included, shift / 2, -shift / 2)
    wrong = np.zeros(3, int)
    for run in range(runs):
        v = correct_guesses(y[run], included[run], r)
        if v not in found:
            found[v] = (
                epsilon_from_guesses(n, r, v, delta, ALPHA) > truth,
                shift_from_guesses(n, r, v, ALPHA, family) > shift,
                family == GAUSSIAN and mu_from_ranked_guesses(n, r, v, ALPHA) > shift,
            )
        wrong += found[v]
    return wrong.tolist()


@pytest.mark.parametrize(
    "family, shift",
    [(GAUSSIAN, 0.5), pytest.param(GAUSSIAN, 2.0, marks=pytest.mark.slow), (LAPLACE, 1.0)],
)
@pytest.mark.parametrize("n, r", [pytest.param(100, 100, marks=pytest.mark.slow), (200, 30)])
def test_correct_mechanisms_are_refuted_as_seldom_as_stated(
    family: TradeoffFamily, shift: float, n: int, r: int
) -> None:
    runs = 2_000
    limit = binom.isf(FALSE_FAILURE, runs, ALPHA)
    assert max(wrong_bounds(shift, family, n, r, runs, seed=20250119)) <= limit


def test_randomised_response_is_refuted_as_seldom_as_stated() -> None:
    """Every coin flipped with the probability that epsilon allows: the bound's own worst case."""
    rng, n, runs, epsilon = np.random.default_rng(9), 200, 4_000, 1.0
    counts = rng.binomial(n, expit(epsilon), runs)
    bounds = {v: epsilon_from_guesses(n, n, int(v), 0.0, ALPHA) for v in np.unique(counts)}
    limit = binom.isf(FALSE_FAILURE, runs, ALPHA)
    assert sum(bounds[v] > epsilon for v in counts) <= limit
    assert sum(bounds[v] > epsilon for v in counts) >= runs * ALPHA / 4  # and it is nearly tight


def test_guesses_are_on_the_strongest_evidence() -> None:
    evidence = np.array([0.1, -3.0, 2.0, -0.2, 1.0])
    included = np.array([True, False, True, True, False])
    assert [correct_guesses(evidence, included, r) for r in (1, 2, 3, 4, 5)] == [1, 2, 2, 2, 3]


def test_few_right_guesses_prove_nothing() -> None:
    assert epsilon_from_guesses(100, 50, 0, 0.0, ALPHA) == 0.0
    assert shift_from_guesses(100, 50, 25, ALPHA) == 0.0
    assert mu_from_ranked_guesses(100, 50, 25, ALPHA) == 0.0


def test_impossible_input_is_refused() -> None:
    with pytest.raises(DpauditError, match="0 <= n_correct <= n_guesses <= n_canaries"):
        epsilon_from_guesses(10, 11, 5, 0.0, ALPHA)
    with pytest.raises(DpauditError, match="symmetric"):
        shift_from_guesses(10, 5, 5, ALPHA, TradeoffFamily("gaussian", 0.5))
    with pytest.raises(DpauditError, match="NaN"):
        correct_guesses(np.array([np.nan, 1.0]), np.array([True, False]), 1)
    with pytest.raises(DpauditError, match="one list each"):
        correct_guesses(np.zeros(3), np.zeros(4, bool), 1)
