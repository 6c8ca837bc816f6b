"""What holds of noise of the declared family: by errors of a test, and by sums of canaries.

Errors that declared releases do not allow say how much less noise there is. A canary's score is the
sum of ln(1 - q + q e^(a z - a^2 / 2)) over its uses of sizes a in batches at rate q; z is noise
N(0, s^2), and c a more where it was used. The mean score of the canaries that are there, less that
of the others, bounds c; s is bounded by the noise of the others.
"""

from collections.abc import Mapping, Sequence
from math import pi, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaincinv, ndtri

from .accountant import WORST, Array, Counted, LossPair, composed, counted, scaled, total_mu

CHECKED = 1e-4  # probability of a wrong law or scale of the noise, which is added to p-values
MOST_NOISE = 1000.0  # times the declared; more is said to be infinite
FINE = 1e-9  # a delta that errors of tests do not show
REACH = 9.0  # standard deviations of noise
STEP, STEPS = 0.1, 256  # step of frequencies, over the deviation of the sum
FAR = 30.0  # deviations, beyond which a sum is hardly ever


def allow(releases: Any, adjacency: str, noise: float, rates: Sequence[float]) -> bool:
    """Whether releases with so many times the noise allow a test of such FPR and FNR."""
    there, other = (scaled(counted(releases, adjacency, x), min(noise, MOST_NOISE)) for x in WORST)
    if (mu := total_mu(there)) is not None:
        return -float(ndtri(rates).sum()) <= mu
    allowed = composed(there, FINE).allows, composed(other, FINE).allows
    return allowed[0](*rates) and allowed[1](*rates[::-1])


class CanaryLaw(NamedTuple):
    """The statistic of one run's canaries, and what its law for a factor c rests on."""

    value: float
    sizes: Array
    uses: Array  # uses of a canary, by size
    rate: float
    present: float
    absent: float
    scales: Sequence[float]  # range of s

    @classmethod
    def of(cls, evidence: Mapping[str, Sequence[Any]], n: int) -> "CanaryLaw":
        """From the evidence of a finding on n canaries."""
        sizes, uses = (np.array(evidence[x], float) for x in ("sizes of uses", "uses of each size"))
        names = ("sum", "rate of uses", "canaries there", "mean square")
        value, rate, there, square = (float(evidence[name][0]) for name in names)
        half = (n - there) * uses.sum() / 2  # half of the degrees of freedom
        ends = gammaincinv(half, [1 - CHECKED / 4, CHECKED / 4])
        return cls(value, sizes, uses, rate, there, n - there, np.sqrt(square * half / ends))

    def pairs(self, factor: float) -> Counted:
        """Loss pairs of a canary whose uses are ``factor`` times as large."""
        scales = 1 / np.maximum(factor * self.sizes, 1e-300)
        pairs = [LossPair("gaussian", scale, self.rate, "remove") for scale in scales]
        return tuple(zip(pairs, self.uses, strict=True))

    def p(self, factor: float) -> float:
        """The probability of such a sum if no use is more than so many times as large."""
        return max(self._beyond(factor, scale) for scale in self.scales)

    def _beyond(self, factor: float, scale: float) -> float:
        """By the characteristic function: Gil-Pelaez 1951, with the midpoint rule."""
        mean, variance, laws = 0.0, 0.0, []
        for n, sign, c in ((self.present, 1, factor), (self.absent, -1, 0.0)):
            for size, uses in zip(self.sizes, self.uses, strict=True):
                step = 1 / max(8.0, 4 * size * scale)
                z = np.arange(-REACH, REACH + c * size + step, step)
                used, unused = np.exp(-((z - c * size) ** 2) / 2), np.exp(-(z**2) / 2)
                mass = self.rate * used + (1 - self.rate) * unused
                mass /= mass.sum()
                with np.errstate(all="ignore"):
                    ratio = np.log(self.rate) + size * scale * z - size**2 / 2
                    score = sign / n * np.logaddexp(np.log1p(-self.rate), ratio)
                centre = score @ mass
                mean += n * uses * centre
                variance += n * uses * ((score - centre) ** 2 @ mass)
                laws.append((n * uses, score - centre, mass))
        deviation = sqrt(variance)
        w = (np.arange(STEPS) + 0.5) * STEP / deviation
        phi = sum(n * np.log(np.exp(1j * np.outer(w, x)) @ mass) for n, x, mass in laws)
        away = np.clip(self.value - mean, -FAR * deviation, FAR * deviation)
        waves = np.imag(np.exp(phi - 1j * w * away)) / w
        return float(np.clip(0.5 + waves.sum() * STEP / deviation / pi, 0.0, 1.0))
