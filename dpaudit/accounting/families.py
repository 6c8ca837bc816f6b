"""Families of mechanisms with one parameter, and the errors that any test must make on them.

A family's trade-off curve gives the smallest false negative rate of any test that has a given
false positive rate, when it separates a release without the record (H0) from one with it (H1).
Where the mechanism is of that family, it says far more about epsilon than two error rates alone.

Sources: Dong, Roth and Su 2019, arXiv:1905.02383; Nasr et al. 2023, arXiv:2302.07956.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from .gaussian import gaussian_epsilon
from .privacy_loss import Array


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
