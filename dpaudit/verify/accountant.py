"""What released noise adds up to, computed anew: bounds on epsilon from both sides.

A release is two distributions on a line, at distance 1 under noise of scale s = noise / shift:
P = (1 - q) M(0) + q M(1) against Q = M(0), the reverse, or (1 - q) M(0) + q M(-1) in place of Q.
They are the worst ones: Zhu, Dong and Wang 2022 (arXiv:2106.08567). Losses ln dP/dQ are put on one
grid and added by the Fourier transform. The upper end splits the mass of each cell such that P and
Q keep theirs (Doroshenko et al. 2022, arXiv:2207.04380). The lower end merges each cell.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import hypot, inf, isinf, log, log1p, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

Array = NDArray[np.float64]
LARGEST = 500.0  # a loss of one release above it counts as infinite
ORDERS = 2.0 ** np.arange(-6, 16, 0.5)  # of moments, in Chernoff bounds on the window
SLIGHT = 1e-3  # of a cell's width: how far a merged loss may lie below the one it is counted at
TAIL = 1e-4  # of delta: how much may lie outside the window of the transform
ROUNDING = 1e-15  # of one product of transforms, relative to all mass


class LossPair(NamedTuple):
    """Two worlds of one release: noise over shift, rate, and which mixture stands where."""

    family: str
    scale: float
    rate: float
    kind: str  # "remove", "add", "replace" or "switch"


class EpsilonEnds(NamedTuple):
    """Two numbers between which another one lies."""

    low: float
    high: float


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


def epsilon(releases: Iterable[Mapping[str, Any]], delta: float, adjacency: str) -> EpsilonEnds:
    """Bounds on the least epsilon of all releases, as audit.json has them, together at ``delta``.

    ``adjacency`` is "add-remove" or "replace-one".
    """
    sides: dict[str, Counter[LossPair]] = {side: Counter() for side in ("remove", "add", "least")}
    for r in releases:
        if r["noise_multiplier"] == 0:
            return EpsilonEnds(inf, inf)
        for side, total in sides.items():
            total[worst_pair(r, adjacency, side)] += r["count"]
    counted, reverse, least = (tuple(total.items()) for total in sides.values())
    if not counted:
        return EpsilonEnds(0.0, 0.0)
    bounded, top = all(pair.family == "laplace" for pair, _ in least), np.array([1.0])
    pure = sum(n * float(_loss(pair, top)[0]) for pair, n in least) if bounded else inf
    if delta == 0:
        return EpsilonEnds(pure, pure)
    if all(pair.family == "gaussian" and pair.rate == 1 for pair, _ in counted):
        mu = hypot(*(sqrt(n) / pair.scale for pair, n in counted))
        return EpsilonEnds(*[gaussian_epsilon(delta, mu)] * 2)
    low = _composed(least, delta, upper=False)
    high = max(_composed(some, delta, upper=True) for some in (counted, reverse))
    return EpsilonEnds(min(low, pure), min(high, pure))


def worst_pair(r: Mapping[str, Any], adjacency: str, side: str) -> LossPair:
    """The worst pair of worlds of a release; "least" is one that there is, for a lower end."""
    rate, whole = float(r["sampling_rate"]), r["clipped"] == "whole"
    replaced = adjacency == "replace-one"
    twice = not whole and (replaced if rate == 1 else r["sampling"] == "fixed")
    kind = "remove" if side == "least" or rate == 1 else "switch" if replaced else side
    if replaced and rate < 1 and r["sampling"] == "poisson" and not whole:
        kind = "replace"
    return LossPair(r["family"], float(r["noise_multiplier"]) / (2 if twice else 1), rate, kind)


def _loss(pair: LossPair, x: Array, side: int = 1) -> Array:
    """The loss of "remove", or of "replace", at places x; it never falls.

    The former is ln of (1 - q) M(0) + q M(side) over M(0); "replace" subtracts that of side -1.
    """
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
    a, b = x[:-1], x[1:]
    if pair.family == "gaussian":
        return np.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a))
    tail = np.exp(-np.abs(x)) / 2
    s, t = tail[:-1], tail[1:]
    return np.where(a > 0, s - t, np.where(b < 0, t - s, 1 - s - t))


def _masses(pair: LossPair, losses: Array) -> tuple[Array, Array]:
    """P and Q of the cells below, between and above the given losses."""
    if pair.kind == "add":
        p, q = _masses(pair._replace(kind="remove"), -losses[::-1])
        return q[::-1], p[::-1]
    if pair.kind == "switch":  # losses above 0 of "remove", below 0 of "add"
        sides = [_masses(pair._replace(kind=kind), losses) for kind in ("remove", "add")]
        above = np.append(losses, inf) > 0
        (p, q), (later_p, later_q) = sides
        return np.where(above, p, later_p), np.where(above, q, later_q)
    edges = np.concatenate([[-inf], _places(pair, losses), [inf]])
    absent = _between(pair, 0, edges)
    p = (1 - pair.rate) * absent + pair.rate * _between(pair, 1, edges)
    if pair.kind != "replace":
        return p, absent
    return p, (1 - pair.rate) * absent + pair.rate * _between(pair, -1, edges)


def _places(pair: LossPair, losses: Array) -> Array:
    """Up to where on the line the loss is at most each of these."""
    if pair.family == "gaussian" and pair.kind == "remove":
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(np.maximum(np.expm1(losses) + pair.rate, 0.0) / pair.rate)
        return 0.5 + pair.scale**2 * ratio
    reach = (60.0 if pair.family == "laplace" else 40.0) * pair.scale
    low, high = np.full(len(losses), -1.0 - reach), np.full(len(losses), 1.0 + reach)
    for _ in range(64):
        middle = (low + high) / 2
        over = _loss(pair, middle) > losses
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    least, most = _loss(pair, np.array([-1.0 - reach, 1.0 + reach]))  # beyond which it is constant
    return np.where(losses >= most, inf, np.where(losses < least, -inf, high))


def rounded(pair: LossPair, losses: Array, upper: bool) -> tuple[Array, float, float]:
    """Masses on these losses and on an infinite one, and by how much a loss may be too large.

    They dominate the pair, or the pair dominates them: then a cell around each loss is merged into
    one outcome, whose own loss is rounded down to the cell's if it lies above it or hardly below
    it, otherwise to that of the next lower cell.
    """
    if upper:
        p, q = _masses(pair, losses)
        inner = p[1:-1]
        up = (inner - np.exp(losses[:-1]) * q[1:-1]) / -np.expm1(-np.diff(losses))
        up = np.clip(up, 0.0, inner)
        masses = np.append(inner - up, 0.0) + np.insert(up, 0, p[0])
        if pair.kind == "switch":
            masses[np.searchsorted(losses, 0.0)] += max(0.0, 1.0 - p.sum())
        return masses, float(p[-1]), 0.0
    p, q = _masses(pair, (losses[1:] + losses[:-1]) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        short = losses - (np.log(p) - np.log(q))  # of the loss that the cell is counted at
    counted = (p > 0) & (short < SLIGHT * np.gradient(losses))
    masses = np.where(counted, p, 0.0) + np.append(np.where(counted, 0.0, p)[1:], 0.0)
    return masses, 0.0, float(np.max(short, where=counted, initial=0.0))


@lru_cache(maxsize=64)
def _composed(counted: tuple[tuple[LossPair, int], ...], delta: float, upper: bool) -> float:
    """The bound on epsilon from the sum of all losses, on a grid of n multiples of its width."""
    pairs, count = [pair for pair, _ in counted], np.array([times for _, times in counted], float)
    n = 2 ** int(np.clip(round(np.log2(2**23 / len(pairs))), 14, 19))
    low, high = _window(pairs, count, TAIL * delta)
    steps = 20 * sqrt(count.sum())  # by which rounding may move the sum
    width = (high - low) / (n - 2 * steps - 4)
    first = int(np.floor(low / width - steps)) - 1
    total, finite, blur = np.ones(n // 2 + 1, complex), 0.0, 0.0
    for pair, times in zip(pairs, count, strict=True):
        at = _points(pair, width, first, n)
        masses, infinite, short = rounded(pair, width * at, upper)
        transform = np.fft.rfft(np.bincount(at % n, masses, minlength=n))
        total *= transform**times
        finite += times * log1p(-min(infinite, 0.5))
        blur += times * (short + 1e-15)
    summed = np.roll(np.fft.irfft(total, n), -first)
    sums = width * (first + np.arange(n))
    slack = ROUNDING * (count.sum() + 64) - np.expm1(finite) + 2 * TAIL * delta
    some = sums > 0
    sums, masses = sums[some], summed[some]

    def excess(epsilon: float) -> float:
        found = -np.expm1(np.minimum(epsilon - sums, 0.0)) @ masses
        return float(found + (slack if upper else -slack) - delta)

    if excess(0.0) <= 0:
        return 0.0
    if excess(float(sums[-1])) > 0:
        return inf if upper else float(sums[-1])
    found = float(brentq(excess, 0.0, float(sums[-1]), xtol=1e-10))
    return found + blur if upper else max(found - blur, 0.0)


def _window(pairs: list[LossPair], count: Array, tail: float) -> tuple[float, float]:
    """What the sum of all losses, and that of one release, leave with a small probability.

    By Chernoff bounds, from exponential moments of losses on a coarse grid.
    """
    total, low, high = np.zeros((2, len(ORDERS))), 0.0, 1e-9

    def reached(log_moments: Array) -> float:
        return float(((log_moments - log(tail)) / ORDERS).min())

    for pair, times in zip(pairs, count, strict=True):
        least, most = _range(pair)
        sizes = max(-least, most) * np.geomspace(1e-7, 1.0, 300)
        losses = np.unique(np.clip(np.concatenate([-sizes, [0.0], sizes]), least, most))
        masses, infinite, _ = rounded(pair, losses, True)
        masses[-1] += infinite
        with np.errstate(divide="ignore"):
            exponents = np.multiply.outer([[1.0], [-1.0]] * ORDERS, losses) + np.log(masses)
        own = np.logaddexp.reduce(exponents, axis=-1)
        total += times * own
        high, low = max(high, reached(own[0])), min(low, -reached(own[1]))
    return min(low, -reached(total[1])), max(high, reached(total[0]))


def _range(pair: LossPair) -> tuple[float, float]:
    """Losses between which nearly all mass lies."""
    z = 50.0 if pair.family == "laplace" else 9.8
    low, high = _loss(pair, np.array([-z * pair.scale, 1.0 + z * pair.scale]))
    ends = {"add": (-high, -low), "switch": (-high, high)}.get(pair.kind, (low, high))
    return max(float(ends[0]), -LARGEST), min(float(ends[1]), LARGEST)


def _points(pair: LossPair, width: float, start: int, n: int) -> NDArray[np.int64]:
    """Multiples of the grid for the losses of one release, denser towards 0."""
    low, high = _range(pair)
    first = max(int(np.floor(low / width)) - 1, start)
    last = min(int(np.ceil(high / width)) + 1, start + n - 1)
    size = np.unique(np.rint(np.geomspace(1, max(-first, last, 2), 16384))).astype(np.int64)
    near = np.arange(0, 600)
    points = np.unique(np.concatenate([-size, -near, near, size, [first, last]]))
    return points[(points >= first) & (points <= last)]
