"""Families of mechanisms with one parameter, and the errors that any test must make on them.

A family's trade-off curve gives the smallest false negative rate of any test that has a given
false positive rate, when it separates a release without the record (H0) from one with it (H1).
Where the mechanism is of that family, it says far more about epsilon than two error rates alone.
Of the Gaussian family mu, epsilon and delta follow from one another; so does the limit theorem.

Sources: Dong, Roth and Su 2019, arXiv:1905.02383 ("DRS" below); Nasr et al. 2023, arXiv:2302.07956.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from dpaudit.errors import DpauditError

from .privacy_loss import Array


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
    if mu * mu == np.inf:  # also of a mu whose epsilon no number can hold
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


@dataclass(frozen=True, slots=True)
class TradeoffFamily:
    """One release of a sum with the record in it at a given rate: noise M(0) or M(shift).

    The parameter of the family is the shift in units of the noise: mu for Gaussian noise, and the
    pure epsilon of the unsampled release for Laplace noise (shift over scale).
    """

    noise: Literal["gaussian", "laplace"] = "gaussian"
    rate: float = 1.0

    def false_negative_rate(self, shift: float, false_positive_rate: Array) -> Array:
        """The smallest one of any test, of the shape of the false positive rates."""
        rate = np.asarray(false_positive_rate, float)
        if self.noise == "gaussian":
            found = ndtr(-ndtri(rate) - shift)
        else:
            tail = np.exp(shift) * rate
            with np.errstate(divide="ignore"):
                middle = np.exp(-shift) / (4 * rate)
            found = np.where(rate > 0.5, np.exp(-shift) * (1 - rate), np.minimum(1 - tail, middle))
            found = np.where((rate <= 0.5) & (tail >= 0.5), middle, found)
        return (1 - self.rate) * (1 - rate) + self.rate * found

    def shift_between(self, false_positive_rate: Array, false_negative_rate: Array) -> Array:
        """The shift whose curve passes through the two rates; negative for worse than guessing.

        Infinite where no shift allows so few errors: an unsampled record is missed by any test.
        """
        fpr, fnr = np.asarray(false_positive_rate, float), np.asarray(false_negative_rate, float)
        missed = (fnr - (1 - self.rate) * (1 - fpr)) / self.rate  # of the sampled records
        missed = np.clip(missed, 0.0, 1.0)
        if self.noise == "gaussian":
            return -ndtri(fpr) - ndtri(missed)
        with np.errstate(divide="ignore"):
            odds = np.where(missed >= 0.5, (1 - missed) / fpr, 1 / (4 * fpr * missed))
            odds = np.where(fpr > 0.5, (1 - fpr) / missed, odds)
            return np.log(odds)

    def epsilon(self, shift: float, delta: float) -> float:
        """The smallest epsilon of the release at delta, when a record is added or removed."""
        if delta >= self.rate:
            return 0.0
        if self.noise == "gaussian":
            unsampled = gaussian_epsilon(delta / self.rate, shift)
        else:
            unsampled = max(shift + 2 * float(np.log1p(-delta / self.rate)), 0.0)
        if self.rate == 1:
            return unsampled
        return float(np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + unsampled))


GAUSSIAN = TradeoffFamily("gaussian")
LAPLACE = TradeoffFamily("laplace")
