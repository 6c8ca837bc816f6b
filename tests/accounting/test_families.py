"""Trade-off curves of families: against direct tests of the two worlds, and their inverses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import laplace, norm

from dpaudit.accounting.families import GAUSSIAN, LAPLACE, TradeoffFamily
from dpaudit.accounting.releases import Release, epsilon

NOISE = {"gaussian": norm, "laplace": laplace}
FAMILIES = [GAUSSIAN, LAPLACE, TradeoffFamily("gaussian", 0.2), TradeoffFamily("laplace", 0.4)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shift", [0.3, 1.0, 2.5])
def test_curve_is_that_of_the_threshold_test(family: TradeoffFamily, shift: float) -> None:
    threshold, noise = np.linspace(-4, 6, 101), NOISE[family.noise]
    missed = family.rate * noise.cdf(threshold - shift) + (1 - family.rate) * noise.cdf(threshold)
    assert family.false_negative_rate(shift, noise.sf(threshold)) == pytest.approx(
        missed, abs=1e-12
    )


@given(st.sampled_from(FAMILIES), st.floats(0.05, 4.0), st.floats(1e-4, 0.999))
def test_shift_between_inverts_the_curve(family: TradeoffFamily, shift: float, rate: float) -> None:
    missed = family.false_negative_rate(shift, np.array(rate))
    assert family.shift_between(rate, missed) == pytest.approx(shift, rel=1e-5, abs=1e-6)


def test_fewer_errors_than_sampling_allows_have_no_shift() -> None:
    assert TradeoffFamily("gaussian", 0.2).shift_between(0.1, 0.5) == np.inf
    assert TradeoffFamily("laplace", 0.2).shift_between(0.6, 0.1) == np.inf


@pytest.mark.parametrize("family", FAMILIES)
def test_epsilon_is_the_accountants(family: TradeoffFamily) -> None:
    release = Release(
        family=family.noise,
        noise_multiplier=1 / 1.7,
        sampling="poisson",
        sampling_rate=family.rate,
    )
    low, high = epsilon([release], 1e-3)
    assert low - 1e-9 <= family.epsilon(1.7, 1e-3) <= high + 1e-9


def test_epsilon_is_0_where_delta_covers_every_sampled_record() -> None:
    assert TradeoffFamily("gaussian", 0.01).epsilon(5.0, 0.02) == 0.0
