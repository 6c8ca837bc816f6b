"""Values of bounds and p-values, worked out by hand."""

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from scipy.special import chdtr, chdtrc, gammaincc, ndtr, ndtri, stdtr, stdtrit
from scipy.stats import beta, binom

from dpaudit.accounting.releases import Release, epsilon
from dpaudit.errors import DpauditError
from dpaudit.files.finding import Metric
from dpaudit.statistics.betting import Point, bets, log_wealth
from dpaudit.statistics.bounds import (
    bound_error,
    clopper_pearson,
    epsilon_lower_bound,
    family_lower_bound,
    noise_factor_bound,
    noise_p_value,
    smallest_alpha,
    trials_needed,
)
from dpaudit.statistics.guesses import epsilon_from_guesses, mu_from_ranked_guesses
from dpaudit.statistics.noise_tests import (
    lag_p_values,
    law_p_value,
    scale_p_values,
    white_noise_p_values,
    white_noise_test,
)
from dpaudit.statistics.p_values import holm, p_beyond, p_worse
from dpaudit.statistics.successes import EpsilonPromise, Successes, needed
from dpaudit.statistics.sums import channel_noise_test, noise_scale


def test_ranks_of_coordinates_are_combined_as_by_fisher() -> None:
    """The smaller of two sizes is lowest in both rows: -ln(1/2) twice, chi^2 of 4 degrees."""
    smaller, larger = scale_p_values(np.array([[1.0, 2.0], [1.0, 2.0]]))
    assert smaller.tolist() == pytest.approx([gammaincc(2, 2 * log(2)), 1.0])
    assert larger.tolist() == pytest.approx([1.0, gammaincc(2, 2 * log(2))])


def test_signs_that_agree_have_hoeffdings_p_value_at_each_lag() -> None:
    """20 rows of 3 ones: 40 products at lag 1, 20 at lag 2."""
    found = lag_p_values(np.ones((20, 3)))
    assert found.tolist() == pytest.approx([2 * exp(-20.0), 2 * exp(-10.0)])


def test_white_noise_p_values_of_ones_are_exact() -> None:
    """Four ones: their mean is N(0, 1/4), their squares chi^2 of 4 degrees, on both sides."""
    found = white_noise_p_values(np.ones((4, 1)))
    assert found["the mean of a column"].tolist() == pytest.approx([2 * ndtr(-2.0)])
    for size in ("its size", "the size of a column"):
        assert found[size].tolist() == pytest.approx([2 * chdtrc(4, 4.0)])
    assert white_noise_test(np.ones((4, 1))) == (
        "the mean of a column",
        pytest.approx(3 * 2 * ndtr(-2.0)),
    )


def test_the_angle_of_two_columns_has_the_p_value_of_a_sphere() -> None:
    """In three dimensions cos^2 of 45 degrees is exceeded with probability 1 - sqrt(1/2)."""
    columns = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    (found,) = white_noise_p_values(columns)["correlation of two columns"]
    assert found == pytest.approx(1 - sqrt(0.5))


def test_the_mean_of_a_batch_counts_on_both_sides() -> None:
    """Noise of canaries beside -1, 1, ... is unlike a normal one only by its mean."""
    rng = np.random.default_rng(4)
    noise = rng.permutation(ndtr_grid(400)) + 0.4
    test, p = channel_noise_test(noise[:, None], np.ones(1))
    unit = noise / np.sqrt(np.mean(noise**2))
    assert test == "the mean of a batch's noise"
    n_tests = 4 + 399 + 1
    assert p == pytest.approx(n_tests * 2 * ndtr(-unit.sum() / 20.0))


def test_the_size_of_a_batch_counts_on_both_sides() -> None:
    rng = np.random.default_rng(4)
    quiet = rng.permutation(ndtr_grid(400))
    noise = np.column_stack([quiet, 0.5 * rng.permutation(ndtr_grid(400))])
    test, p = channel_noise_test(noise, np.array([1.0, 1e-9]))
    loud, soft = 400 * (noise**2 / np.mean(noise**2)).mean(axis=0)
    assert chdtr(400, soft) < chdtrc(400, loud)
    assert test == "the size of a batch's noise"
    assert p == pytest.approx((2 + 1 + 2 + 399 + 1 + 1) * 2 * chdtr(400, soft), rel=1e-6, abs=0)


def ndtr_grid(n: int) -> np.ndarray:
    """Quantiles of the normal law: as normal, and with as little mean, as n numbers can be."""
    return ndtri((np.arange(n) + 0.5) / n)


def test_either_end_of_the_scale_of_noise_has_its_own_level() -> None:
    low, high = noise_scale(np.ones((10, 10)), 0.01)
    assert chdtrc(100, 100 / low**2) == pytest.approx(0.01)
    assert 1 - chdtrc(100, 100 / high**2) == pytest.approx(0.01)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_bound_that_is_always_or_never_wrong_is_refused(alpha: float) -> None:
    with pytest.raises(DpauditError, match="strictly between 0 and 1"):
        epsilon_lower_bound(0, 0, 10, 10, 0.0, alpha)
    with pytest.raises(DpauditError, match="strictly between 0 and 1"):
        family_lower_bound(0, 0, 10, 10, alpha)


def test_a_confidence_bound_is_the_quantile_of_a_beta_law() -> None:
    assert float(clopper_pearson(3, 20, 0.05)) == pytest.approx(beta.ppf(0.95, 4, 17))


def test_both_error_rates_are_bounded_at_half_of_alpha() -> None:
    fpr, fnr = beta.ppf(0.975, 2, 99), beta.ppf(0.975, 11, 90)
    found = float(epsilon_lower_bound(1, 10, 100, 100, 1e-3, 0.05))
    assert found == pytest.approx(log((1 - 1e-3 - fnr) / fpr))


def test_the_smallest_alpha_with_a_refutation_refutes() -> None:
    found = smallest_alpha(lambda alpha: alpha >= 0.01)
    assert 0.01 <= found <= 0.01 * (1 + 1e-5)


def test_delta_counts_twice_for_each_canary() -> None:
    """One guess among ten that is right: P[right] = q and 2 m delta (1 - q) are alpha together."""
    m, delta, alpha = 10, 0.002, 0.65
    found = epsilon_from_guesses(m, 1, 1, delta, alpha)
    q = exp(found) / (1 + exp(found))
    assert q + 2 * m * delta * (1 - q) == pytest.approx(alpha, abs=1e-5)


def test_of_right_guesses_at_least_as_many_have_alpha() -> None:
    found = epsilon_from_guesses(100, 100, 80, 0.0, 0.05)
    assert binom.sf(79, 100, exp(found) / (1 + exp(found))) == pytest.approx(0.05, abs=1e-5)


def test_of_wrong_guesses_at_most_as_many_have_alpha() -> None:
    """All canaries are guessed on, each wrong with probability Phi(-mu / 2)."""
    found = mu_from_ranked_guesses(100, 100, 90, 0.05)
    assert binom.cdf(10, 100, ndtr(-found / 2)) == pytest.approx(0.05, abs=1e-5)


def test_a_bet_wins_what_the_claim_allows_less_delta() -> None:
    """All of one pair: o1 in S and o0 not, at epsilon 0 and delta 0.1: X = 0.9 of 1.1."""
    chosen = bets([Point(0.0, 0.1)], (np.zeros(50), np.ones(50)))
    path = log_wealth(chosen, (np.zeros(1), np.ones(1)))
    shares = np.array([0.9, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01])
    weights = np.exp(chosen.log_weights)
    assert weights.sum() == pytest.approx(1.0)
    assert exp(path[0]) == pytest.approx(float((weights * (1 + shares * 0.9 / 1.1)).sum()))


def test_a_noise_bound_splits_alpha_between_the_rates() -> None:
    """Unsampled Gaussian noise of mu 1: the factor is mu over what the rates' bounds show."""
    mechanism = [Release(family="gaussian", noise_multiplier=1.0)]
    found = noise_factor_bound(1, 10, 100, 100, 1e-5, 0.05, mechanism)
    fpr, fnr = beta.ppf(0.975, 2, 99), beta.ppf(0.975, 11, 90)
    shown = float(family_lower_bound(1, 10, 100, 100, 0.05))
    assert shown == pytest.approx(-ndtri(fpr) - ndtri(fnr))
    assert 1 / shown <= found.noise_factor <= 1.001 / shown
    multiplier = found.noise_factor
    exact = epsilon([Release(family="gaussian", noise_multiplier=multiplier)], 1e-5).low
    assert found.epsilon == exact
    p = noise_p_value(1, 10, 100, 100, mechanism)
    assert float(family_lower_bound(1, 10, 100, 100, p)) == pytest.approx(1.0, abs=1e-4)


def test_the_epsilon_of_a_noise_bound_is_the_lower_end() -> None:
    sampled = {"family": "gaussian", "sampling": "poisson", "sampling_rate": 0.5}
    mechanism = [Release(noise_multiplier=1.0, **sampled)]
    found = noise_factor_bound(0, 10, 1000, 1000, 1e-5, 0.05, mechanism)
    ends = epsilon([Release(noise_multiplier=found.noise_factor, **sampled)], 1e-5)
    assert ends.low < ends.high
    assert found.epsilon == ends.low


def test_holm_multiplies_by_what_is_left_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])


def test_a_mean_has_one_degree_of_freedom_less_than_cases() -> None:
    metric = Metric(value=2.0, n=3, standard_error=1.0)
    assert p_beyond(metric, 1.0, "above") == pytest.approx(float(stdtr(2, -1.0)))
    by_interval = Metric(value=2.0, low=2 - float(stdtrit(2, 0.975)), high=9.0, n=3)
    assert p_beyond(by_interval, 1.0, "above") == pytest.approx(float(stdtr(2, -1.0)))


def test_two_means_are_compared_by_both_errors() -> None:
    now, before = (Metric(value=v, n=n, standard_error=e) for v, n, e in ((5.0, 4, 3.0), (0, 9, 4)))
    assert p_worse(now, before, "above") == pytest.approx(float(stdtr(3, -1.0)))


def test_the_error_of_a_bound_is_that_of_counts_with_one_more() -> None:
    """A bound that is the count itself: binomial deviations of 1/22 of 20, by 16 quantiles."""
    found = bound_error(0, 0, 20, 20, lambda fp, fn: fp + 0 * fn)
    quantiles = binom.ppf((np.arange(16) + 0.5) / 16, 20, 1 / 22)
    assert found == pytest.approx(float(np.std(quantiles)))


def test_as_many_trials_as_are_needed_are_enough() -> None:
    found = trials_needed(1.0, lambda n: n / 1000)
    assert found is not None
    assert 1001 <= found <= 1011


def test_successes_in_one_run_are_held_against_markovs_bound() -> None:
    promise = EpsilonPromise(0.0, 0.0)  # gamma = kappa
    one_run = Successes(8, 10, 0.1, apart=False)
    assert one_run.p_value(promise) == pytest.approx(0.1 / 0.8)
    assert one_run.bound(promise, 0.5) == pytest.approx(log(0.5 * 0.8 / 0.1))
    apart = Successes(2, 10, 0.1, apart=True)
    assert apart.p_value(promise) == pytest.approx(binom.sf(1, 10, 0.1))


def test_as_many_successes_as_are_needed_refute() -> None:
    promise = EpsilonPromise(0.0, 0.0)
    n = needed(promise, 0.5, 0.05)
    assert n == 5
    assert 0.5**n < 0.05 < 0.5 ** (n - 1)
    assert needed(EpsilonPromise(50.0, 0.0), 1.0, 0.05) == inf


def test_the_law_of_noise_counts_each_of_its_six_tests() -> None:
    """Signs instead of normal numbers have one norm, and are compared with a drawn sample."""
    signs = np.repeat([[1.0], [-1.0]], 50, axis=0)
    p, what = law_p_value(signs, "gaussian", np.random.default_rng(0))
    drawn = np.random.default_rng(0).standard_normal(100)
    squares = ((drawn - drawn.mean()) / drawn.std(ddof=1)) ** 2
    below = np.mean(squares <= 0.99)
    assert what == "the norm"
    assert p == pytest.approx(6 * 2 * exp(-2 * 50 * max(below, 1 - below) ** 2), rel=1e-6, abs=0)


def test_a_coordinate_counts_as_often_as_there_are_some() -> None:
    """One of two coordinates is of signs: 2 exp(-2 n D^2), of two of them, of six tests."""
    rng = np.random.default_rng(1)
    signs = np.repeat([1.0, -1.0], 2000)
    sample = np.column_stack([signs, rng.permutation(ndtr_grid(4000))])
    p, what = law_p_value(sample, "laplace", np.random.default_rng(0))
    from_law = 1 - exp(-sqrt(2)) / 2 - 0.5  # of unit variance at its standard deviation
    one = 2 * exp(-2 * 4000 * from_law**2)
    if what == "a coordinate":
        assert p == pytest.approx(6 * 2 * one, rel=1e-6, abs=0)
    assert p <= 6 * 2 * one * (1 + 1e-6)
