"""The most that any attacker can succeed: closed forms, compositions, check values, simulation."""

from typing import Literal

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, norm

from dpaudit.accounting.reconstruction import (
    accounted,
    least_epsilon,
    least_mu,
    matching_success,
    under_epsilon,
    under_mu,
)
from dpaudit.accounting.releases import Release, delta, true_positive_rate

KAPPA = (1e-4, 1e-3, 0.01, 0.1, 0.5)
BOUNDS: tuple[Literal["lower", "upper"], ...] = ("lower", "upper")
FALSE_FAILURE = 1e-9  # probability that a correct bound fails a statistical test, over fresh seeds


def gaussian(s: float, q: float = 1.0, count: int = 1) -> Release:
    sampling = "none" if q == 1 else "poisson"
    return Release(
        family="gaussian", noise_multiplier=s, sampling=sampling, sampling_rate=q, count=count
    )


@pytest.mark.parametrize(
    ("mu", "gamma"),
    [
        (0.5, (0.00064, 0.00480, 0.03390, 0.21724, 0.69146)),
        (1.0, (0.00327, 0.01830, 0.09236, 0.38914, 0.84134)),
        (2.0, (0.04281, 0.13781, 0.37208, 0.76376, 0.97725)),
        (4.0, (0.61064, 0.81853, 0.95290, 0.99672, 0.99997)),
    ],
)
def test_check_values_of_gaussian_noise(mu: float, gamma: tuple[float, ...]) -> None:
    assert under_mu(KAPPA, mu) == pytest.approx(gamma, abs=5.1e-6)
    rounds = [gaussian(4 / mu, count=16)]  # as many rounds as have that mu together
    assert accounted(KAPPA, rounds) == pytest.approx(gamma, abs=5.1e-6)


@pytest.mark.parametrize(
    ("epsilon", "gamma"),
    [
        (1.0, (0.00027, 0.00272, 0.02718, 0.27183, 0.81606)),
        (4.0, (0.00546, 0.05460, 0.54211, 0.95421, 0.99084)),
    ],
)
def test_check_values_of_laplace_noise(epsilon: float, gamma: tuple[float, ...]) -> None:
    release = Release(family="laplace", noise_multiplier=1 / epsilon)
    assert accounted(KAPPA, [release]) == pytest.approx(gamma, abs=5.1e-6)
    assert (under_epsilon(KAPPA, epsilon, 0.0) >= np.array(gamma) - 5.1e-6).all()


def test_pure_claims_allow_randomised_response_and_not_laplace() -> None:
    assert under_epsilon(0.01, 4.0, 0.0) == pytest.approx(0.54598, abs=5e-6)
    assert under_epsilon(0.5, 1.0, 0.0) == pytest.approx(1 - np.exp(-1) / 2)
    assert under_epsilon(0.0, 1.0, 1e-5) == pytest.approx(1e-5)
    assert under_epsilon(0.1, 1e6, 0.0) == 1.0


def test_check_values_of_one_sampled_round() -> None:
    gamma = accounted(KAPPA, [gaussian(1.0, 0.5)])
    assert gamma == pytest.approx((0.00169, 0.00965, 0.0512, 0.2446, 0.6707), abs=5.1e-5)


SAMPLED = [  # q, s, T, and between which two gamma lies at each kappa, as printed
    (
        (0.01, 0.6, 100),
        (0.0013, 0.0064, 0.0327, 0.177, 0.591),
        (0.0014, 0.0069, 0.0351, 0.191, 0.637),
    ),
    (
        (0.1, 1.0, 100),
        (0.0091, 0.0376, 0.1421, 0.459, 0.857),
        (0.0097, 0.0400, 0.1501, 0.480, 0.882),
    ),
]


@pytest.mark.parametrize(("run", "low", "high"), SAMPLED)
def test_check_values_of_many_sampled_rounds(
    run: tuple[float, float, int], low: tuple[float, ...], high: tuple[float, ...]
) -> None:
    q, s, T = run
    lower, upper = (true_positive_rate([gaussian(s, q, T)], KAPPA, side) for side in BOUNDS)
    assert (np.array(low) <= upper).all()
    assert (upper <= np.array(high)).all()
    assert (lower <= upper).all()
    assert upper == pytest.approx(lower, rel=2e-3)


def test_a_thousand_sampled_rounds_are_within_one_percent() -> None:
    """Those at small kappa were drawn, and rest on some hundred draws."""
    gamma = accounted((0.01, 0.1, 0.5), [gaussian(1.0, 0.01, 1000)])
    assert gamma == pytest.approx((0.02915, 0.1944, 0.6576), rel=0.01)


def test_the_bound_is_the_power_of_the_best_test() -> None:
    """The share of runs with the record whose loss is among the largest kappa without it."""
    q, s, T, n, kappa = 0.2, 1.0, 5, 200_000, 0.05
    rng = np.random.default_rng(3)

    def losses(record: bool) -> np.ndarray:
        seen = s * rng.standard_normal((n, T)) + (record & (rng.random((n, T)) < q))
        return np.log(1 - q + q * np.exp((seen - 0.5) / s**2)).sum(axis=1)

    threshold = np.quantile(losses(False), 1 - kappa, method="higher")
    reached = int((losses(True) > threshold).sum())
    low, high = (float(true_positive_rate([gaussian(s, q, T)], kappa, b)) for b in BOUNDS)
    spread = 7 * np.sqrt(kappa * (1 - kappa) / n) * 5  # of the threshold's level, times the slope
    assert binom.ppf(FALSE_FAILURE / 2, n, low - spread) <= reached
    assert reached <= binom.isf(FALSE_FAILURE / 2, n, high + spread)


@pytest.mark.slow
def test_gamma_lies_on_every_line_that_delta_allows() -> None:
    """min over e^t of e^t kappa + delta(t); for t below 0 of the reverse direction."""
    mechanism = [gaussian(1.0, 0.1, 20)]
    epsilons = np.linspace(0.0, 8.0, 81)
    for kappa in (1e-3, 0.05):  # there the best threshold lies above a loss of 0
        lines = [np.exp(e) * kappa + delta(mechanism, float(e)).high for e in epsilons]
        gamma = float(accounted(kappa, mechanism))
        assert gamma <= min(lines) + 1e-6
        assert gamma == pytest.approx(min(lines), rel=0.02)


def test_a_threshold_below_a_loss_of_0_matters() -> None:
    """With kappa near 1 the best of t >= 0 is kappa + delta(0), which is above 1 - f."""
    mechanism = [gaussian(1.0, 0.5, 4)]
    at_zero = 0.9 + delta(mechanism, 0.0).high
    assert accounted(0.9, mechanism) < min(at_zero, 1.0) - 0.01


def test_all_without_noise_and_nothing_without_releases() -> None:
    assert (accounted(KAPPA, [gaussian(0.0)]) == 1).all()
    assert accounted(KAPPA, ()) == pytest.approx(KAPPA)
    tiny = [gaussian(1e-8, 0.5, 3)]
    assert (accounted(KAPPA, tiny) == 1).all()


def test_a_blind_guess_may_still_succeed_by_delta() -> None:
    assert 0 <= float(accounted(0.0, [gaussian(1.0, 0.1, 20)])) < 1e-6
    assert under_mu(0.0, 1.0) == 0.0


def test_the_least_epsilon_and_mu_are_the_inverse_of_bounds() -> None:
    for success, kappa, d in ((0.3, 0.1, 0.0), (0.9, 0.1, 1e-5), (0.05, 0.001, 0.01)):
        epsilon = least_epsilon(success, kappa, d)
        assert under_epsilon(kappa, epsilon, d) == pytest.approx(success)
        assert under_mu(kappa, least_mu(success, kappa)) == pytest.approx(success)
    assert least_epsilon(0.1, 0.2, 0.0) == 0.0
    assert least_epsilon(1.0, 0.2, 0.0) == np.inf
    assert least_epsilon(1e-6, 0.01, 1e-5) == 0.0
    assert least_mu(0.1, 0.2) == 0.0


@pytest.mark.parametrize(
    ("mu", "success", "bound"),
    [(1, 0.3409, 0.3891), (2, 0.6736, 0.7638), (4, 0.9832, 0.9967)],
)
def test_matching_orthonormal_candidates(mu: float, success: float, bound: float) -> None:
    """Check values of ten candidates, and the argmax of simulated views."""
    assert matching_success(lambda rates: under_mu(rates, mu), 10) == pytest.approx(
        success, abs=5e-5
    )
    assert under_mu(0.1, mu) == pytest.approx(bound, abs=5e-5)
    n = 40_000
    views = np.random.default_rng(5).standard_normal((n, 10))
    views[:, 0] += mu
    hits = int((views.argmax(axis=1) == 0).sum())
    low, high = binom.interval(1 - FALSE_FAILURE, n, success)
    assert low <= hits <= high
    assert ndtr(mu + norm.ppf(0.1)) == pytest.approx(bound, abs=5e-5)
