"""Gaussian differential privacy: mu, epsilon and delta from one another, and the limit theorem.

All of it after Dong, Roth and Su 2019, arXiv:1905.02383 ("DRS" below). Epsilon is in nats.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri

from dpaudit.errors import DpauditError


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The delta of mu-GDP at epsilon: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2).

    Evaluated in the log domain, so that neither factor overflows. Source: DRS, Corollary 1.
    """
    _check_mu(mu)
    if mu == 0:
        return -float(np.expm1(min(epsilon, 0.0)))
    log_power = log_ndtr(-epsilon / mu + mu / 2)
    log_false_alarm = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(-np.exp(log_power) * np.expm1(min(0.0, log_false_alarm - log_power)))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest epsilon >= 0 such that mu-GDP implies (epsilon, delta).

    Raises:
        DpauditError: delta is outside (0, 1); at delta = 0 no epsilon is enough for Gaussian noise.
    """
    _check_mu(mu)
    _check_delta(delta)
    if mu == np.inf:
        return np.inf
    if mu == 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    enough = mu * mu / 2 - mu * ndtri(delta)  # where the first of the two terms alone is delta
    enough += 1e-9 * abs(enough)
    return float(
        brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, enough, xtol=1e-13)
    )


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu such that mu-GDP implies (epsilon, delta).

    Raises:
        DpauditError: epsilon is negative, or delta is outside (0, 1).
    """
    _check_delta(delta)
    if epsilon < 0:
        raise DpauditError("DPA071", f"epsilon must be at least 0, got {epsilon}")
    mu = 1.0
    while gaussian_delta(epsilon, mu) < delta:
        mu *= 2
    return float(brentq(lambda mu: gaussian_delta(epsilon, mu) - delta, 0.0, mu, xtol=1e-14))


def clt_mu(rate: float, mus: np.ndarray) -> float:
    """The mu_tot that the central limit theorem gives rounds of mu_k-GDP, sampled at ``rate``.

    mu_tot = rate sqrt(sum_k (exp(mu_k^2) - 1)). A limit, not a bound: it is here to restate what
    papers claim, and exact accounting often gives more. Source: DRS, Corollary 4 (Bu et al. 2019).
    """
    return float(rate * np.sqrt(np.sum(np.expm1(np.square(mus)))))


def _check_mu(mu: float) -> None:
    if not mu >= 0:
        raise DpauditError("DPA071", f"mu must be at least 0, got {mu}")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise DpauditError("DPA071", f"delta must lie strictly between 0 and 1, got {delta}")
