"""Noise of a declared shape, bounded through the accountant: closed forms, and simulations."""

import numpy as np
import pytest

from dpaudit.accounting.families import GAUSSIAN, LAPLACE, TradeoffFamily
from dpaudit.accounting.releases import Release, false_negative_rate
from dpaudit.statistics.bounds import (
    LEAST,
    MOST,
    STEPS,
    _first_above,
    clopper_pearson,
    family_from_scores,
    family_lower_bound,
    mu_p_value,
    noise_factor_bound,
    noise_p_value,
    with_noise_times,
)

ALPHA = 0.05


@pytest.mark.parametrize(
    "family", [GAUSSIAN, LAPLACE, TradeoffFamily("gaussian", 0.3), TradeoffFamily("laplace", 0.6)]
)
def test_curve_of_the_accountant_is_the_familys(family: TradeoffFamily) -> None:
    release = Release(
        family=family.noise,
        noise_multiplier=0.8,
        sampling="poisson",
        sampling_rate=family.rate,
    )
    rates = np.array([[1e-3, 0.02], [0.3, 0.9]])
    exact = family.false_negative_rate(1 / 0.8, rates)
    found = false_negative_rate([release], rates)
    assert found.shape == rates.shape
    assert np.all(found <= exact + 1e-12)
    assert found == pytest.approx(exact, abs=2e-3)  # between the epsilons that it looks at


def test_a_release_without_noise_has_a_perfect_test() -> None:
    release = Release(family="gaussian", noise_multiplier=0.0)
    assert false_negative_rate([release], 0.1) == 0.0


def test_noise_of_one_release_is_bounded_as_by_its_family() -> None:
    declared = [Release(family="gaussian", noise_multiplier=2.0, count=4)]
    factor, epsilon = noise_factor_bound(310, 310, 1000, 1000, 1e-5, ALPHA, declared)
    mu = float(family_lower_bound(310, 310, 1000, 1000, ALPHA))
    assert factor == pytest.approx(1 / mu, rel=2e-3)
    assert epsilon == pytest.approx(GAUSSIAN.epsilon(mu, 1e-5), rel=2e-3)
    assert epsilon <= GAUSSIAN.epsilon(mu, 1e-5)


def test_half_of_the_noise_is_refuted_through_sampling() -> None:
    """Two sampled rounds; over fresh seeds the correct one would fail at most 1 time in 20."""
    rng, n, rate, scale = np.random.default_rng(6), 4_000, 0.5, 1.0
    declared = Release(
        family="gaussian", noise_multiplier=scale, sampling="poisson", sampling_rate=rate, count=2
    )

    def evidence(with_it: bool, noise: float) -> np.ndarray:
        present = with_it * (rng.random((n, 2)) < rate)
        seen = noise * rng.normal(size=(n, 2)) + present
        return np.log1p(rate * np.expm1((seen - 0.5) / noise**2)).sum(axis=1)

    for noise, refuted in ((scale, False), (scale / 2, True)):
        test = family_from_scores(evidence(False, noise), evidence(True, noise), ALPHA, rng)
        counts = test.fp, test.fn, test.n0, test.n1
        bound = noise_factor_bound(*counts, 1e-5, ALPHA, [declared])
        assert (bound.noise_factor < 1) is refuted
        assert bound.epsilon > 0


def test_useless_scores_bound_nothing() -> None:
    declared = [Release(family="gaussian", noise_multiplier=1.0)]
    bound = noise_factor_bound(500, 500, 1000, 1000, 1e-5, ALPHA, declared)
    assert bound == (np.inf, 0.0)


@pytest.mark.parametrize("errors", [(310, 310), (300, 450), (20, 500), (0, 0), (500, 500)])
def test_the_p_value_of_declared_noise_is_that_of_its_family(errors: tuple[int, int]) -> None:
    """Four releases at sigma = 2 are one of mu = 1; a bound at that level has just no factor of 1."""
    declared = [Release(family="gaussian", noise_multiplier=2.0, count=4)]
    p = noise_p_value(*errors, 1000, 1000, declared)
    assert p == pytest.approx(mu_p_value(*errors, 1000, 1000, 1.0), rel=1e-3)
    if 0 < p < 1:
        above, below = (
            noise_factor_bound(*errors, 1000, 1000, 1e-5, level, declared).noise_factor
            for level in (min(1.0, 1.2 * p), p / 1.2)
        )
        assert above <= 1 + 1e-3
        assert below >= 1 - 1e-3


@pytest.mark.parametrize("rate", [1.0, 0.05])
def test_the_factor_is_the_first_of_its_steps_that_is_refuted(rate: float) -> None:
    """Whatever search finds it: at one step less, the rates are no more than noise allows."""
    sampled = {} if rate == 1 else {"sampling": "poisson", "sampling_rate": rate}
    declared = [Release(family="laplace", noise_multiplier=1.0, count=20, **sampled)]
    factor = noise_factor_bound(40, 300, 500, 500, 1e-5, ALPHA, declared).noise_factor
    fpr, fnr = clopper_pearson(40, 500, ALPHA / 2), clopper_pearson(300, 500, ALPHA / 2)
    at, before = (
        false_negative_rate(with_noise_times(declared, x), fpr)
        for x in (factor, factor * (LEAST / MOST) ** (1 / STEPS))
    )
    assert before <= fnr < at


def test_a_search_finds_steps_that_no_secant_comes_near() -> None:
    """Of rates that jump, and that say nothing of a shift."""
    for first in (1, 2, 77, 6_144, 6_145, STEPS - 1, STEPS):
        jump = _first_above(lambda step, first=first: float(step >= first), 0.1, 0.5)
        assert jump == first
