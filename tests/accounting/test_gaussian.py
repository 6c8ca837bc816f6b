"""Gaussian differential privacy: closed forms against each other and against direct integration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from dpaudit.accounting.families import clt_mu, gaussian_delta, gaussian_epsilon, gaussian_mu
from dpaudit.errors import DpauditError


@pytest.mark.parametrize(
    "mu, epsilon", [(0.1, 0.0), (0.5, 1.0), (1.0, 2.0), (3.0, 5.0), (1.0, -1.0)]
)
def test_delta_is_the_hockey_stick_divergence_of_two_normals(mu: float, epsilon: float) -> None:
    def integrand(x: float) -> float:
        return max(norm.pdf(x, mu) - np.exp(epsilon) * norm.pdf(x), 0.0)

    kink = epsilon / mu + mu / 2
    integral = quad(integrand, kink, kink + 12, epsabs=1e-13)[0]
    assert gaussian_delta(epsilon, mu) == pytest.approx(integral, abs=1e-11)


@pytest.mark.parametrize("mu, expected", [(0.5, 1.993), (1.0, 4.377)])
def test_epsilon_at_delta_1e_5_has_its_published_value(mu: float, expected: float) -> None:
    assert gaussian_epsilon(1e-5, mu) == pytest.approx(expected, abs=5e-4)


@given(st.floats(0.01, 50), st.floats(1e-12, 0.4))
def test_mu_and_epsilon_invert_each_other(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(delta, mu)
    if epsilon > 0:
        assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_delta_keeps_its_accuracy_where_both_terms_are_tiny() -> None:
    # 1 - Phi(38) alone is 3e-316; the exact value is from 60-digit arithmetic
    import mpmath as mp

    mp.mp.dps = 60
    a = mp.ncdf(mp.mpf(-30) + mp.mpf("0.5"))
    b = mp.exp(30) * mp.ncdf(mp.mpf(-30) - mp.mpf("0.5"))
    assert gaussian_delta(30.0, 1.0) == pytest.approx(float(a - b), rel=1e-10)


def test_restates_the_budget_of_dyn_d2p() -> None:
    assert gaussian_mu(0.3, 1e-4) == pytest.approx(0.1077, abs=5e-5)
    mu_bar = np.sqrt(np.log1p(2500**2 * gaussian_mu(0.3, 1e-4) ** 2 / 10_000))
    assert clt_mu(1 / 2500, np.full(10_000, mu_bar)) == pytest.approx(gaussian_mu(0.3, 1e-4))


def test_no_noise_and_infinite_noise() -> None:
    assert gaussian_epsilon(1e-5, np.inf) == np.inf
    assert gaussian_epsilon(1e-5, 0.0) == 0.0
    assert [gaussian_delta(e, 0.0) for e in (-1.0, 0.0, 1.0)] == [-np.expm1(-1.0), 0.0, 0.0]


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1])
def test_delta_outside_the_open_unit_interval_is_refused(delta: float) -> None:
    with pytest.raises(DpauditError, match="delta must lie strictly between 0 and 1"):
        gaussian_epsilon(delta, 1.0)
    with pytest.raises(DpauditError, match="delta must lie strictly between 0 and 1"):
        gaussian_mu(1.0, delta)


def test_a_parameter_below_0_is_refused() -> None:
    for refused in (lambda: gaussian_delta(1.0, -0.1), lambda: gaussian_epsilon(0.1, -0.1)):
        with pytest.raises(DpauditError, match="mu must be at least 0"):
            refused()
    with pytest.raises(DpauditError, match="epsilon must be at least 0"):
        gaussian_mu(-0.1, 1e-5)
    assert gaussian_delta(0.0, gaussian_mu(0.0, 1e-5)) == pytest.approx(1e-5)
