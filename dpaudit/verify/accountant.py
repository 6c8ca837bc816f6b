"""What released noise adds up to, computed anew: the least epsilon, rounded up.

A release is two distributions on a line, at distance 1 under noise of scale s = noise / shift:
P = (1 - q) M(0) + q M(1) against Q = M(0), the reverse, or (1 - q) M(0) + q M(-1) in place of Q.
They are the worst ones: Zhu, Dong and Wang 2022 (arXiv:2106.08567). Losses ln dP/dQ are put on one
grid, the mass of each cell split such that P and Q keep theirs (Doroshenko et al. 2022,
arXiv:2207.04380), and added by the Fourier transform.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import exp, hypot, inf, isinf, log, log1p, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

Array = NDArray[np.float64]
PLACES, FEW = 2**15 + 1, 2**9 + 1  # on the line, of which one has no loss
REACH = 9.8  # standard deviations of Gaussian noise
ORDERS = 2.0 ** np.arange(-6, 16, 0.5)  # orders of moments, in Chernoff bounds on the window
WORST = ("remove", "add")  # sides, of which "least" is a third, for lower ends
TAIL = 1e-4  # share of delta that may lie outside of the window of the transform
MOST_EPSILON = 60.0  # largest epsilon at which errors of tests are compared with losses
ROUNDING = 1e-15  # rounding in one product of transforms, relative to all mass


class LossPair(NamedTuple):
    """Two worlds of one release: noise over shift, rate, and which mixture stands where."""

    family: str
    scale: float
    rate: float
    kind: str  # "remove", "add", "replace" or "switch"


Release = Mapping[str, Any]  # a release in audit.json
Losses = tuple[Array, Array, float]  # ascending losses, masses in P, mass of an infinite one
Counted = tuple[tuple[LossPair, int], ...]


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu): Dong, Roth and Su 2019, Corollary 1."""
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(np.exp(log_ndtr(a)) - np.exp(epsilon + log_ndtr(b)))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The least epsilon >= 0 at which mu-GDP has this delta."""
    if mu == 0 or (not isinf(mu) and gaussian_delta(0.0, mu) <= delta):
        return 0.0
    if isinf(mu):
        return inf
    top = mu * mu / 2 - mu * float(ndtri(delta)) + 1e-9
    return float(brentq(lambda e: gaussian_delta(e, mu) - delta, 0.0, top, xtol=1e-13))


def epsilon(
    releases: Sequence[Release], delta: float, adjacency: str, sides: Sequence[str] = WORST
) -> float:
    """The least epsilon of all releases together at ``delta``, rounded up by 0.1% or less.

    Of the side "least" it is that of worlds that there are, though not always the worst ones.
    """
    return max(epsilon_of(counted(releases, adjacency, side), delta) for side in sides)


def epsilon_of(pairs: Counted, delta: float) -> float:
    if (mu := total_mu(pairs)) is not None:
        return gaussian_epsilon(delta, mu)
    bounded = all(pair.family == "laplace" for pair, _ in pairs)
    pure = sum(n * float(_loss(pair, np.array([1.0]))[0]) for pair, n in pairs) if bounded else inf
    return pure if delta == 0 else min(composed(pairs, delta).epsilon(delta), pure)


def counted(releases: Iterable[Release], adjacency: str, side: str) -> Counted:
    """How often each worst pair of a side occurs in all releases."""
    total = Counter[LossPair]()
    for r in releases:
        total[worst_pair(r, adjacency, side)] += r["count"]
    return tuple(total.items())


def scaled(pairs: Counted, noise: float, rate: float = 1.0) -> Counted:
    """The same pairs with so many times the noise and the sampling rate."""
    rates = [min(1.0, rate * pair.rate) for pair, _ in pairs]
    each = zip(pairs, rates, strict=True)
    return tuple((pair._replace(scale=noise * pair.scale, rate=q), n) for (pair, n), q in each)


def total_mu(pairs: Counted) -> float | None:
    """mu of all releases together; None: they are not all Gaussian and unsampled, with noise."""
    if any(pair.scale == 0 for pair, _ in pairs):
        return inf
    if all(pair.family == "gaussian" and pair.rate == 1 for pair, _ in pairs):
        return hypot(*(sqrt(n) / pair.scale for pair, n in pairs))
    return None


def worst_pair(r: Release, adjacency: str, side: str) -> LossPair:
    rate, whole = float(r["sampling_rate"]), r["clipped"] == "whole"
    if not 0 <= rate <= 1:
        raise ValueError(f"a sampling rate of {rate:g} is no probability")
    replaced = adjacency == "replace-one"
    twice = not whole and (replaced if rate == 1 else r["sampling"] == "fixed")
    kind = "remove" if side == "least" or rate == 1 else "switch" if replaced else side
    if replaced and rate < 1 and r["sampling"] == "poisson" and not whole:
        kind = "replace"
    return LossPair(r["family"], float(r["noise_multiplier"]) / (2 if twice else 1), rate, kind)


def _loss(pair: LossPair, x: Array, side: int = 1) -> Array:
    """ln of (1 - q) M(0) + q M(side) over M(0) at places x; of "replace" less that of side -1."""
    other = _loss(pair._replace(kind="remove"), x, -1) if pair.kind == "replace" else 0.0
    ratio = (np.abs(x) - np.abs(x - side)) / pair.scale
    if pair.family == "gaussian":
        ratio = (side * x - 0.5) / pair.scale**2
    if pair.rate != 1:
        ratio = np.logaddexp(log1p(-pair.rate), log(pair.rate) + ratio)
    return np.asarray(ratio - other)


def _between(pair: LossPair, shift: int, edges: Array) -> Array:
    """The mass of the noise, moved by ``shift``, between neighbouring edges."""
    x = (edges - shift) / pair.scale
    tails = ndtr(-np.abs(x)) if pair.family == "gaussian" else np.exp(-np.abs(x)) / 2
    a, b, s, t = x[:-1], x[1:], tails[:-1], tails[1:]
    return np.where(a > 0, s - t, np.where(b < 0, t - s, 1 - s - t))


def outcomes(pair: LossPair, places: int = PLACES) -> Losses:
    """Losses that dominate a pair's: mass between two places is put on both, P and Q are kept."""
    if pair.kind == "switch":  # losses above 0 of "remove", below 0 of "add"
        worst = (outcomes(pair._replace(kind=kind), places) for kind in WORST)
        (gains, p, infinite), (falls, q, _) = worst
        losses = np.concatenate([falls[falls < 0], [0.0], gains[gains > 0]])
        below, above = q[falls < 0], p[gains > 0]
        rest = max(0.0, 1.0 - below.sum() - above.sum() - infinite)
        return losses, np.concatenate([below, [rest], above]), infinite
    is_bounded, reach = pair.family == "laplace", REACH * pair.scale
    x = np.linspace(*((-1.0, 1.0) if is_bounded else (-reach, 1 + reach)), places)
    losses, edges = _loss(pair, x), np.concatenate([[-inf], x, [inf]])
    absent, there, opposite = (_between(pair, shift, edges) for shift in (0, 1, -1))
    p = (1 - pair.rate) * absent + pair.rate * there
    q = (1 - pair.rate) * absent + pair.rate * opposite if pair.kind == "replace" else absent
    if pair.kind == "add":
        losses, p, q = -losses[::-1], q[::-1], p[::-1]
    inner = p[1:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        up = (inner - np.exp(losses[:-1] + np.log(q[1:-1]))) / -np.expm1(-np.diff(losses))
    up = np.clip(np.nan_to_num(up), 0.0, inner)
    masses = np.append(inner - up, 0.0) + np.insert(up, 0, p[0])
    masses[-1] += p[-1] if is_bounded else 0.0
    return losses, masses, 0.0 if is_bounded else float(p[-1])


class LossSum(NamedTuple):
    """All losses above 0 that a sum may have, and the mass that may have been lost."""

    sums: Array
    above: Array  # mass of each loss and those beyond it, and 0
    tilted: Array  # likewise, each mass times e^-loss
    lost: float

    def delta(self, epsilon: float) -> float:
        i = np.searchsorted(self.sums, epsilon, side="right")
        return float(self.above[i] - exp(min(epsilon, 700.0)) * self.tilted[i]) + self.lost

    def epsilon(self, delta: float) -> float:
        """The least epsilon at a delta, rounded up; infinite if it lies beyond all losses."""
        if self.lost > delta:
            return inf
        if self.delta(0.0) <= delta:
            return 0.0
        return float(brentq(lambda e: self.delta(e) - delta, 0.0, self.sums[-1], xtol=1e-10))

    def allows(self, false: float, missed: float) -> bool:
        """Whether 1 - FNR <= e^epsilon FPR + delta for all epsilon; it is convex in e^epsilon."""
        ends = (0, MOST_EPSILON)
        found = minimize_scalar(lambda e: self.delta(e) + false * exp(e), bounds=ends)
        return bool(found.fun >= 1 - missed)


@lru_cache(maxsize=64)
def composed(times_of: Counted, delta: float) -> LossSum:
    """The sum of all losses, on a grid of n multiples of its width, fine enough for a delta."""
    parts, count = [outcomes(pair) for pair, _ in times_of], [times for _, times in times_of]
    n = 2 ** int(np.clip(round(np.log2(2**21 / len(parts))), 14, 17))
    low, high = _window(times_of, TAIL * delta)
    steps = 20 * sqrt(sum(count))  # rounding may move the sum so far
    width = (high - low) / (n - 2 * steps - 4)
    first = int(np.floor(low / width - steps)) - 1
    total, finite = np.ones(n // 2 + 1, complex), 0.0
    for (losses, masses, infinite), times in zip(parts, count, strict=True):
        at = np.floor(losses / width)
        up = masses * np.expm1(at * width - losses) / np.expm1(-width)
        places, split = np.concatenate([at, at + 1]).astype(int) % n, np.append(masses - up, up)
        total *= np.fft.rfft(np.bincount(places, split, n)) ** times
        finite += times * log1p(-min(infinite, 0.5))
    sums = width * (first + np.arange(n)) + 1e-15 * sum(count)
    lost = ROUNDING * (sum(count) + 64) - np.expm1(finite) + 2 * TAIL * delta
    sums, masses = sums[sums > 0], np.roll(np.fft.irfft(total, n), -first)[sums > 0]
    each = masses, masses * np.exp(-sums)
    above, tilted = (np.append(np.cumsum(x[::-1])[::-1], 0.0) for x in each)
    return LossSum(sums, above, tilted, lost)


def _window(times_of: Counted, tail: float) -> tuple[float, float]:
    """What the sum of all losses hardly ever leaves: Chernoff bounds, by losses on few places."""
    total = np.zeros((2, len(ORDERS)))
    for pair, times in times_of:
        losses, masses, infinite = outcomes(pair, FEW)
        with np.errstate(divide="ignore"):
            weights = np.log(masses + infinite * (losses == losses[-1]))
        exponents = np.multiply.outer([ORDERS, -ORDERS], losses) + weights
        total += times * logsumexp(exponents, axis=-1)
    high, low = ((total - log(tail)) / ORDERS).min(axis=1)
    return -max(0.0, float(low)), max(1e-9, float(high))
