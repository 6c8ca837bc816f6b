"""Bets against claims: never more wealth than luck allows, and much of it against a false claim."""

from math import log

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from dpaudit.accounting.families import gaussian_delta, gaussian_epsilon
from dpaudit.errors import DpauditError
from dpaudit.statistics.betting import (
    Point,
    anytime_p_value,
    bets,
    epsilon_from_bets,
    gaussian_curve,
    log_wealth,
    packed,
)

ALPHA, DELTA, AUDITS = 0.05, 1e-5, 400
FALSE_FAILURE = 1e-6  # probability that a correct test fails one case, over fresh seeds
MOST_ALARMS = binom.isf(FALSE_FAILURE, AUDITS, ALPHA)

Worlds = tuple[np.ndarray, np.ndarray]


def response(rng: np.random.Generator, n: int, epsilon: float = 1.0, delta: float = 0.0) -> Worlds:
    """Randomised response that reveals all with probability delta: exactly (epsilon, delta)-DP."""
    answers = []
    for bit in (0, 1):
        told = np.where(rng.random(n) < expit(epsilon), bit, 1 - bit).astype(float)
        answers.append(np.where(rng.random(n) < delta, 3.0 * (2 * bit - 1), told))
    return answers[0], answers[1]


def gaussian(rng: np.random.Generator, n: int, mu: float = 1.0) -> Worlds:
    return rng.normal(size=n), rng.normal(mu, size=n)


def test_a_tight_pure_claim_is_refuted_in_5_percent() -> None:
    rng, on = np.random.default_rng(20240611), [Point(1.0, 0.0)]
    found = [log_wealth(bets(on, response(rng, 100)), response(rng, 300)) for _ in range(AUDITS)]
    assert sum(anytime_p_value(path) <= ALPHA for path in found) <= MOST_ALARMS


def test_a_tight_claim_with_delta_is_refuted_in_5_percent() -> None:
    rng, on = np.random.default_rng(1), [Point(0.5, 0.1)]

    def worlds(n: int) -> Worlds:
        return response(rng, n, 0.5, 0.1)

    found = [log_wealth(bets(on, worlds(100)), worlds(300)) for _ in range(AUDITS)]
    assert sum(anytime_p_value(path) <= ALPHA for path in found) <= MOST_ALARMS


def test_a_tight_curve_is_refuted_in_5_percent_of_histories() -> None:
    """Wealth is carried over three audits of a Gaussian, and looked at after each pair."""
    rng, on, alarms = np.random.default_rng(2), gaussian_curve(1.0), 0
    for _ in range(AUDITS):
        carried, largest = 0.0, 0.0
        for _ in range(3):
            path = carried + log_wealth(bets(on, gaussian(rng, 100)), gaussian(rng, 100))
            carried, largest = float(path[-1]), max(largest, float(path.max()))
        alarms += largest >= log(1 / ALPHA)
    assert alarms <= MOST_ALARMS


def test_a_false_claim_is_refuted_long_before_the_last_run() -> None:
    """Half of the true epsilon of randomised response: 1 in a million audits takes 2,000 pairs."""
    rng = np.random.default_rng(3)
    path = log_wealth(bets([Point(1.0, 0.0)], response(rng, 500, 2.0)), response(rng, 4_000, 2.0))
    assert np.argmax(path >= log(1 / ALPHA)) < 2_000
    assert anytime_p_value(path) < 1e-6
    assert anytime_p_value(path[:0]) == 1.0


def test_what_one_audit_cannot_refute_several_can() -> None:
    """Epsilon 2 is claimed of mu 1, whose epsilon is 4.4: wealth grows by half a nat an audit."""
    rng, on, ends = np.random.default_rng(4), [Point(2.0, DELTA)], []
    for _ in range(20):
        ends.append(log_wealth(bets(on, gaussian(rng, 1_000)), gaussian(rng, 2_000))[-1])
    assert np.median(ends) < log(1 / ALPHA) < sum(ends)


def test_a_leak_of_absence_alone_is_bet_on_too() -> None:
    """Only the world without the record has outcomes of its own: 20 in 100."""
    rng = np.random.default_rng(5)

    def worlds(n: int) -> Worlds:
        return np.where(rng.random(n) < 0.2, -1.0, 0.0), np.zeros(n)

    assert anytime_p_value(log_wealth(bets([Point(1.0, 1e-3)], worlds(200)), worlds(500))) < 1e-6


def test_the_curve_of_a_claim_on_mu_is_its_own() -> None:
    for epsilon, delta in gaussian_curve(1.5):
        assert gaussian_delta(epsilon, 1.5) == pytest.approx(delta, rel=1e-6)
    assert gaussian_curve(0.01)[0].epsilon == 0.0


@pytest.mark.slow
def test_the_bound_is_the_last_epsilon_refuted_with_all_below() -> None:
    """Of randomised response at epsilon 1: above 1 in 5% of audits at most."""
    rng = np.random.default_rng(6)
    found = [
        epsilon_from_bets(response(rng, 400), 0.0, ALPHA, response(rng, 200)) for _ in range(AUDITS)
    ]
    assert sum(bound > 1.0 for bound in found) <= MOST_ALARMS
    assert np.median(found) > 0.3


@pytest.mark.parametrize("n", [1, 5, 9])
def test_the_places_of_scores_are_digits_that_can_be_read_again(n) -> None:
    rng = np.random.default_rng(10)
    on, scores = bets([Point(1.0, DELTA)], gaussian(rng, 50)), gaussian(rng, n)
    sent, thresholds = packed([on], scores), np.unique(on.thresholds)
    digits = []
    for number in map(int, sent.places):
        while number:
            number, digit = divmod(number, sent.n_places)
            digits.append(digit)
    above = [[sum(score > thresholds) for score in pair] for pair in zip(*scores, strict=True)]
    expected = [2 * int(i) for pair in above for i in pair]
    assert digits + [0] * (2 * n - len(digits)) == expected


def test_an_enormous_claim_is_bet_against_in_finite_numbers() -> None:
    rng = np.random.default_rng(7)
    path = log_wealth(bets([Point(5_000.0, DELTA)], gaussian(rng, 50)), gaussian(rng, 50))
    assert np.isfinite(path).all()
    assert anytime_p_value(path) == pytest.approx(1.0)


def test_scores_of_no_run_and_unequal_worlds_are_refused() -> None:
    rng = np.random.default_rng(8)
    on = bets([Point(1.0, DELTA)], gaussian(rng, 50))
    with pytest.raises(DpauditError, match="expected pairs, got 3 and 2"):
        log_wealth(on, (np.zeros(3), np.zeros(2)))
    with pytest.raises(DpauditError, match="1 NaN of 2"):
        log_wealth(on, (np.array([0.0, np.nan]), np.zeros(2)))
    with pytest.raises(DpauditError, match="expected a claim"):
        bets([], gaussian(rng, 50))


def test_a_gaussians_epsilon_is_never_proven_much_beyond_truth() -> None:
    """One fixed seed, at 1e-6."""
    rng = np.random.default_rng(9)
    bound = epsilon_from_bets(gaussian(rng, 2_000), DELTA, 1e-6, gaussian(rng, 1_000))
    assert 0.3 < bound < gaussian_epsilon(DELTA, 1.0)
