"""One run's canaries with a Gaussian channel each: bounds from the sum of all that speaks for them.

A canary is in the data by a fair coin. Its channel gives one number for each batch it could be in,
in standard deviations of the noise: N(c a_t, 1) where it was used, N(0, 1) else. The declared sizes
a_t are known, the factor c is not; c = 1 is what is declared, and c times less noise is the same as
c. The statistic is the mean score of the canaries that are there less that of the others, where the
score is ln(1 - q + q e^{a z - a^2/2}) summed over batches: what the strongest test of c = 1 against
nothing takes. The bounds are wrong with probability alpha at most, if

    the noise is Gaussian, of one scale, and independent from canary to canary and batch to batch.

``channel_noise_test`` tests that on canaries that are not there. The scale need not be known: it is
bounded by the same numbers (``noise_scale``), of which there are many.
"""

from functools import cached_property
from math import sqrt

import numpy as np
from scipy.special import gammaincinv, kolmogorov, ndtr, ndtri

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import Interval
from dpaudit.errors import DpauditError

from .noise_tests import lag_p_values, size_p_values, striking

MOST_FACTOR = 64.0  # considered
PRECISION = 1e-5  # relative, of the factor
REACH = 9.0  # standard deviations of noise beyond which nothing is integrated
STEP = 0.1  # step of frequencies, in 1 / (standard deviation of the statistic)
SMALL = 1e-9  # a characteristic function this small is left out
KNOWN = Interval(1.0, 1.0)  # scale of the noise


def mu_from_sums(difference: float, n_present: int, n_absent: int, alpha: float) -> float:
    """The mu that unsampled channels of known scale must exceed: max(0, D - z sqrt(1/n1 + 1/n0)).

    D is the difference of the mean standardised scores, N(mu, 1/n1 + 1/n0). It is sufficient: no
    other test of this family has more power.

    Raises:
        DpauditError: a world has no canary, or alpha is outside (0, 1).
    """
    if min(n_present, n_absent) < 1:
        raise DpauditError(
            "DPA072", f"expected canaries of both kinds, got {n_present} and {n_absent}"
        )
    if not 0 < alpha < 1:
        raise DpauditError("DPA071", f"alpha must lie strictly between 0 and 1, got {alpha}")
    error = sqrt(1 / n_present + 1 / n_absent)
    return max(0.0, difference + float(ndtri(alpha)) * error)


def noise_scale(noise: Array, level: float) -> Interval:
    """The standard deviation of independent Gaussian numbers of mean 0 lies in between.

    Either end is wrong with probability ``level``.
    """
    squares, n = float(np.square(noise).sum()), noise.size
    return Interval(*(sqrt(squares / (2 * gammaincinv(n / 2, p))) for p in (1 - level, level)))


def channel_noise_test(noise: Array, sizes: Array) -> tuple[str, float]:
    """The most striking departure of noise [n, T] from independent N(0, s^2), and its p-value.

    Of canaries that are not there: sums of squares by batch, and of the canaries' whole scores, are
    chi^2 beside the overall scale; means are normal; signs agree at no lag between batches, and at
    none between canaries; and all numbers together have the normal distribution. The smallest of
    all p-values counts as often as there are tests.
    """
    n, n_batches = noise.shape
    unit = noise / np.sqrt(np.mean(np.square(noise)) or 1.0)
    whole = unit @ sizes / np.linalg.norm(sizes)
    tests = {
        "the size of a batch's noise": size_p_values(np.square(unit).sum(axis=0), n),
        "the size of whole scores": size_p_values(np.square(whole).sum(keepdims=True), n),
        "the mean of a batch's noise": 2 * ndtr(-np.abs(unit.sum(axis=0)) / sqrt(n)),
        "signs of different canaries": lag_p_values(unit.T) if n > 1 else np.ones(1),
        "signs of different batches": lag_p_values(unit) if n_batches > 1 else np.ones(1),
        "its distribution": _normality(unit),
    }
    return striking(tests)


class CanarySum:
    """The statistic of so many canaries of either kind, and its law for every factor.

    Args:
        sizes: [T], a_t: how far a use of a canary moves its channel, as declared.
        rate: q, with which a canary that is there is used in a batch.
        scale: between whose ends the noise's standard deviation lies.

    Raises:
        DpauditError: a kind has no canary.
    """

    def __init__(
        self, sizes: Array, rate: float, n_present: int, n_absent: int, scale: Interval = KNOWN
    ) -> None:
        mu_from_sums(0.0, n_present, n_absent, 0.5)  # refuses what is impossible
        self.rate, self.n_present, self.n_absent, self.scale = rate, n_present, n_absent, scale
        kept = np.sort(sizes[sizes > 0])
        self.sizes, self.uses = np.unique(kept.round(9), return_counts=True)

    @cached_property
    def mu(self) -> float:
        """mu of a canary that is used in every batch."""
        return float(np.sqrt(self.uses @ np.square(self.sizes)))

    def statistic(self, channels: Array, sizes: Array, included: Array) -> float:
        """Mean score of included canaries minus that of the others; channels [n_canaries, T]."""
        scores, there = _score(channels, sizes, self.rate).sum(axis=1), np.asarray(included, bool)
        return float(scores[there].mean() - scores[~there].mean())

    def tail(self, value: float, factor: float) -> float:
        """The probability of at least this value, at the worst scale in between."""
        return max(self._tail(value, factor, scale) for scale in set(self.scale))

    def mean(self, factor: float = 1.0) -> float:
        """What is to be expected of the statistic, at the scale that is declared."""
        if self.rate == 1:
            return factor * self.mu**2
        return self._moments(factor, 1.0)[0]

    def largest_refuted(self, value: float, alpha: float) -> float:
        """The factor that the channels must exceed for this value; 0 if none."""
        low, high = 0.0, MOST_FACTOR
        if alpha <= 0 or self.tail(value, 0.0) > alpha:
            return 0.0
        while high - low > PRECISION * max(high, 1e-3):
            middle = (low + high) / 2
            low, high = (middle, high) if self.tail(value, middle) <= alpha else (low, middle)
        return low

    def _tail(self, value: float, factor: float, scale: float) -> float:
        if self.rate == 1:  # the statistic is mu D, and D ~ N(c s mu, s^2 (1/n1 + 1/n0))
            error = sqrt(1 / self.n_present + 1 / self.n_absent)
            return float(ndtr(-(value / (self.mu * scale) - factor * self.mu) / error))
        mean, deviation = self._moments(factor, scale)
        if abs(value - mean) > 30 * deviation:
            return 0.0 if value > mean else 1.0
        return self._beyond(value - mean, mean, deviation, factor, scale)

    def _beyond(
        self, excess: float, mean: float, deviation: float, factor: float, scale: float
    ) -> float:
        """By the characteristic function (Gil-Pelaez 1951), by the midpoint rule.

        P[S > s] = 1/2 + 1/pi int_0^inf Im(e^{-i w s} phi(w))/w dw. Steps of h add what S has beyond
        2 pi / h from its mean, over 60 standard deviations here.
        """
        step, total, done = STEP / deviation, 0.0, 0
        while True:
            w = (np.arange(done, done + 64) + 0.5) * step
            there = self._of_canary(w / self.n_present, factor, scale)
            away = self._of_canary(-w / self.n_absent, None, scale)
            phi = self.n_present * there + self.n_absent * away - 1j * w * mean
            total += float(np.sum(np.imag(np.exp(phi - 1j * w * excess)) / w)) * step
            done += 64
            if np.exp(phi[-8:].real).max() < SMALL or done >= 2**14:
                return float(np.clip(0.5 + total / np.pi, 0.0, 1.0))

    def _of_canary(self, w: Array, factor: float | None, scale: float) -> Array:
        """Log characteristic function of a canary's score; None: it is not there."""
        total = np.zeros(len(w), complex)
        for size, count in zip(self.sizes, self.uses, strict=True):
            score, mass = self._law(size, factor, scale)
            first = score @ mass
            centred = np.exp(1j * np.outer(w, score - first)) @ mass
            total += count * (np.log(centred) + 1j * w * first)
        return total

    def _moments(self, factor: float, scale: float) -> tuple[float, float]:
        mean = variance = 0.0
        for sign, n, c in ((1, self.n_present, factor), (-1, self.n_absent, None)):
            for size, count in zip(self.sizes, self.uses, strict=True):
                score, mass = self._law(size, c, scale)
                first = float(score @ mass)
                mean += sign * count * first
                variance += count * float(np.square(score - first) @ mass) / n
        return mean, sqrt(variance)

    def _law(self, size: float, factor: float | None, scale: float) -> tuple[Array, Array]:
        """Scores of one batch on a grid of its noise, and their probabilities."""
        moved = 0.0 if factor is None else factor * size  # in units of the real noise
        n = int((2 * REACH + moved) * max(8.0, 2 * size * scale)) + 1
        z, step = np.linspace(-REACH, REACH + moved, n, retstep=True)
        mass = np.exp(-np.square(z) / 2)
        if factor is not None:
            used = np.exp(-np.square(z - moved) / 2)
            mass = (1 - self.rate) * mass + self.rate * used
        return _score(scale * z, np.array(size), self.rate), mass * (step / sqrt(2 * np.pi))


def _score(z: Array, size: Array, rate: float) -> Array:
    log_ratio = size * z - size * size / 2
    if rate == 1:
        return log_ratio
    return np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio)


def _normality(unit: Array) -> Array:
    """p-value of normality by Kolmogorov's limit; conservative, as the scale is estimated."""
    ordered, n = ndtr(np.sort(unit, axis=None)), unit.size
    gap = max(np.max(ordered - np.arange(n) / n), np.max(np.arange(1, n + 1) / n - ordered))
    return np.array([float(kolmogorov(sqrt(n) * gap))])
