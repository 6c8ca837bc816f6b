"""Adaptive composition of many releases: products of the Fourier transforms of their losses.

Everything here errs on a known side. Losses are discretised by ``privacy_loss``; a total loss
outside the window of the transform, which wraps around, is at most as likely as a Chernoff bound
says; and the rounding errors of the transforms are bounded as they are multiplied. Composition by
Fourier transform: Koskela, Jälkö and Honkela 2020, arXiv:1906.03049.

Thousands of distinct noise levels need not be transformed one by one for the upper bound. A
release is dominated by a public coin that picks between a noisier and a less noisy one, such that
the total variation distance t between M(0) and M(1) is the same on average: for Gaussian and
Laplace noise, delta(epsilon) is convex in t at every epsilon (its second derivative in t is
proportional to epsilon^2 phi(epsilon/mu - mu/2)/mu^3, or it is piecewise linear), and so is that
of "remove", "add" and "switch", which is linear in it. The error is of second order in the
distance of the levels. For the lower bound, a release is rounded to a noisier level.

For the lower bound, the losses of a level may lie on a moved grid, for they only add up: the total
is moved by the sum. That is how the mass just above ln(1 - q) stays apart (``least_outcome``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.linalg.blas import dtbsv
from scipy.special import erfc

from .privacy_loss import (
    MAX_LOSS,
    Array,
    NoiseFamily,
    Pairs,
    above,
    beneath,
    least_outcome,
    loss_error,
    reach,
)

Complex = NDArray[np.complex128]

ROUNDING = 2.0**-53
BLOCK = 2**13  # frequencies multiplied at once: what the cache of a processor holds
FOLD = 64  # factors multiplied before their common error bound is taken over
MAX_LEVELS = 1024  # more releases than this share levels
ORDERS = 2.0 ** np.arange(-6, 24, 0.5)  # of the moment generating functions in Chernoff bounds
SQUARED = 16  # orders of which two exponentials are taken, and the others are squares
CHUNK = 256  # levels discretised together
WORK = 2**27  # points transformed for one bound: more levels have a coarser grid
LARGEST_EXPONENT = 700.0
FINE = 16  # steps of the grid from the least loss to 0 from which on it need not be moved
ADDED_VARIANCE = 1e-5  # of the total loss, relative, that the default grid may add


@dataclass(frozen=True, slots=True, eq=False)
class BoundedTransform:
    """A function on the frequencies of a real transform, and by how much each value may be off."""

    value: Complex  # [n // 2 + 1]
    error: Array | float

    def __mul__(self, other: "BoundedTransform") -> "BoundedTransform":
        value = self.value * other.value
        a = np.abs(self.value)
        b = a if other is self else np.abs(other.value)
        error = a * other.error + b * self.error + self.error * other.error
        return BoundedTransform(value, error + 8 * ROUNDING * a * b)

    def __pow__(self, count: int) -> "BoundedTransform":
        square, power = self, None
        while count:
            if count & 1:
                power = square if power is None else power * square
            count >>= 1
            square = square * square if count else square
        return power if power is not None else BoundedTransform(np.ones_like(self.value), 0.0)


class Product:
    """A running product of the transforms of sub-probability distributions on n points (mod n)."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.factor_error = 8 * ROUNDING * (np.log2(n) + 4)  # of a transform of mass 1, per value
        self._value, self._error = np.ones(n // 2 + 1, dtype=complex), np.zeros(n // 2 + 1)
        self._fold = np.ones(n // 2 + 1, dtype=complex)
        self._folded = 0

    def transform(self, points: NDArray[np.intp], masses: Array) -> Complex:
        """The transform [n // 2 + 1] of masses on distinct points; off by at most factor_error.

        Each value is a sum over a tree of depth log2(n), where one step of a radix-2 butterfly
        adds at most 8 roundings of the terms' sizes, whose sum is at most 1.
        """
        spread = np.zeros(self.n)
        spread[points % self.n] = masses
        return fft.rfft(spread)

    def times(self, factor: Complex, count: int = 1) -> None:
        """Multiply by the ``count``-th power of a transform, or of a mixture of two."""
        if count > 1:
            self._multiply(factor, self.factor_error, count)
            return
        self._fold *= factor
        self._folded += 1
        if self._folded == FOLD:
            self._close_fold()

    def masses(self) -> tuple[Array, float]:
        """The masses [n], and how much any part of them, weighted by 0 to 1, may be off.

        By Parseval the errors of the masses have the L2 norm of those of the transform over
        sqrt(n), and n weights of at most 1 have at most the norm sqrt(n).
        """
        self._close_fold()
        masses = fft.irfft(self._value, self.n)
        transform_error = np.sqrt(2 * np.sum(np.square(self._error)))
        inverse_error = self.factor_error * np.sqrt(self.n) * np.linalg.norm(masses)
        return masses, float(transform_error + inverse_error)

    def _close_fold(self) -> None:
        # every factor is at most 1 (and its error) in size, so that errors add up
        error = 1.01 * self._folded * (self.factor_error + 8 * ROUNDING)
        self._multiply(self._fold, error)
        self._fold = np.ones_like(self._fold)
        self._folded = 0

    def _multiply(self, factor: Complex, error: float, count: int = 1) -> None:
        for start in range(0, len(factor), BLOCK):
            part = slice(start, start + BLOCK)
            done = BoundedTransform(self._value[part], self._error[part])
            done = done * BoundedTransform(factor[part], error) ** count
            self._value[part], self._error[part] = done.value, done.error


Bound = Literal["upper", "lower"]
Integers = NDArray[np.intp]


class Rounds(NamedTuple):
    """Releases of one family, kind and rate: each a public coin between two adjacent levels."""

    levels: Pairs  # by increasing scale
    level: Integers  # [n_rounds], increasing: the lower level of each
    weight: Array  # [n_rounds], the probability of the level above it
    counts: Integers  # [n_rounds], how many equal rounds each stands for


@dataclass(frozen=True, slots=True, eq=False)
class ComposedLoss:
    """The distribution of a total privacy loss on a grid, and how far it may be off."""

    losses: Array  # [n], increasing, positive
    masses: Array  # [n]
    bound: Bound
    slack: float  # in probability: infinite losses, wrapped ones, rounding
    blur: float  # in nats: rounding of each loss
    low_losses: Array  # [m], increasing, 0 and below: no epsilon asks for them
    low_masses: Array  # [m]

    @property
    def _sign(self) -> int:
        return 1 if self.bound == "upper" else -1

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon >= 0."""
        short = epsilon - self._sign * self.blur - self.losses
        gain = -np.expm1(np.minimum(short, 0.0)) @ self.masses
        return float(np.clip(gain + self._sign * self.slack, 0.0, 1.0))

    def deltas(self, epsilons: Array) -> Array:
        """``delta`` at each epsilon >= 0 [n] but for rounding, from the tails of all losses."""
        p, scaled = _tails(self.losses, self.masses)
        shifted = epsilons - self._sign * self.blur
        above = np.searchsorted(self.losses, shifted, side="right")
        some = np.minimum(above, len(p) - 1)
        gain = p[some] - np.exp(np.minimum(shifted - self.losses[some], 0.0)) * scaled[some]
        gain = np.where(above < len(p), gain, 0.0)
        return np.clip(gain + self._sign * self.slack, 0.0, 1.0)

    def epsilon(self, delta: float) -> float:
        """The bound on the smallest epsilon >= 0 with this delta; infinite where there is none."""
        target = delta - self._sign * self.slack
        if target <= 0:
            return np.inf
        p, scaled = _tails(self.losses, self.masses)
        starts = np.concatenate([[0.0], self.losses[:-1]])
        too_small = np.flatnonzero(p - np.exp(starts - self.losses) * scaled > target)
        if not len(too_small):
            return 0.0
        last = too_small[-1]
        epsilon = self.losses[last] + np.log((p[last] - target) / scaled[last])
        epsilon = np.clip(epsilon, starts[last], self.losses[last])
        return float(max(epsilon + self._sign * self.blur, 0.0))

    def power(self, false_positive_rate: Array) -> Array:
        """The bound on the power of the best test at each rate [n] of false positives, all above 0.

        Any test has P(E) <= e^t Q(E) + delta(t), for t below 0 too, and the best one (Neyman and
        Pearson) has equality at one of the losses, between which the bound is linear in e^t.
        """
        losses = np.concatenate([self.low_losses, self.losses])
        p, scaled = _tails(losses, np.concatenate([self.low_masses, self.masses]))
        delta = np.append(np.maximum(p - scaled, 0.0), p[0])  # and at no loss: t at minus infinity
        shifted = np.minimum(losses + self._sign * self.blur, LARGEST_EXPONENT)
        ratio = np.append(np.exp(shifted), 0.0)
        least = np.array([(ratio * rate + delta).min() for rate in false_positive_rate])
        return np.clip(least + self._sign * self.slack, 0.0, 1.0)


def _tails(losses: Array, masses: Array) -> tuple[Array, Array]:
    """What P gives to each loss or more, and what Q gives, e^loss times."""
    decay = np.exp(losses[0] - losses[1]) if len(losses) > 1 else 0.0
    band = np.full((2, len(masses)), -decay, order="F")  # below a diagonal of ones
    scaled = dtbsv(1, band, masses[::-1], lower=1, diag=1)[::-1]
    return np.cumsum(masses[::-1])[::-1], scaled


def each_exactly(pairs: Pairs, count: Integers) -> Rounds:
    """Every release a level of its own."""
    return Rounds(pairs, np.arange(len(count)), np.zeros(len(count)), count)


def on_levels(pairs: Pairs, count: Integers, bound: Bound) -> Rounds:
    """Bounds on releases of one rate, by increasing scale, that need fewer levels than releases.

    "upper" picks between the levels around each release; "lower" adds noise up to the next one.
    Returned as they are: few releases, and for "upper" those of kind "replace", where the argument
    for picking is not proven.
    """
    scale = pairs.scale[:, 0]
    if len(scale) <= MAX_LEVELS or (bound == "upper" and pairs.kind == "replace"):
        return each_exactly(pairs, count)
    levels = np.geomspace(scale[0], scale[-1] * (1 + 1e-12), MAX_LEVELS)
    above_it = np.clip(np.searchsorted(levels, scale), 1, MAX_LEVELS - 1)
    pairs = pairs._replace(scale=levels[:, None], rate=np.full((MAX_LEVELS, 1), pairs.rate[0, 0]))
    if bound == "lower":
        used, where = np.unique(above_it, return_inverse=True)
        return Rounds(pairs, used, np.zeros(len(used)), np.bincount(where, count).astype(np.intp))
    overlap = _overlap(pairs.family, levels)
    span = overlap[above_it] - overlap[above_it - 1]
    weight = np.zeros(len(scale))  # of the noisier level; rounded to the less noisy one
    np.divide(
        _overlap(pairs.family, scale) - overlap[above_it - 1], span, out=weight, where=span > 0
    )
    return Rounds(pairs, above_it - 1, np.clip(weight - 1e-9, 0.0, 1.0), count)


def _overlap(family: NoiseFamily, scale: Array) -> Array:
    """One minus the total variation distance between the noise and the noise shifted by 1."""
    return erfc(np.sqrt(1 / 8) / scale) if family == "gaussian" else np.exp(-0.5 / scale)


class _Window(NamedTuple):
    """The ``n`` multiples of ``grid`` from the ``first``-th on; the total loss is one of them."""

    grid: float
    first: int
    n: int
    resolution: int  # losses of single releases are spaced by at most 1/resolution of themselves

    def points(self, pairs: Pairs) -> Integers:
        """Multiples of the grid for the losses of single releases, denser towards 0."""
        low, high = np.clip(reach(pairs), -MAX_LOSS, MAX_LOSS) / self.grid
        low, high = int(np.floor(low)), int(np.ceil(high)) + 1  # room for a grid moved down
        high = min(high, int(LARGEST_EXPONENT / self.grid))
        if high - low >= self.n:  # the points must be distinct where the transform wraps around
            low, high = max(low, self.first), min(high, self.first + self.n - 1)
        steps = np.log(max(-low, high, 2) / self.resolution) * self.resolution
        sparse = self.resolution * np.exp(np.arange(1, max(steps, 0) + 1) / self.resolution)
        ends = [-low, -low - 1, high, high - 1, high - 2]  # Laplace noise has point masses there
        size = np.concatenate([np.arange(self.resolution + 1), np.rint(sparse), ends])
        both = np.concatenate([size, -size]).astype(np.intp)
        points = np.sort(both[(both >= low) & (both <= high)])
        return points[np.diff(points, prepend=points[0] - 1) > 0]  # as np.unique, faster


def compose(
    rounds: Sequence[Rounds], bound: Bound, tail: float, grid: float | None = None
) -> ComposedLoss:
    """The total loss of all rounds: one that dominates it ("upper") or is dominated ("lower").

    Args:
        tail: about how much probability the transform's window may leave out at either end.
        grid: spacing of the losses in nats; by default as fine as accuracy and work ask for.
    """
    window = _survey(rounds, tail, grid)
    product = Product(window.n)
    moments, extremes = np.zeros((2, len(ORDERS))), np.zeros(2)
    log_finite, blur, moved = 0.0, 0.0, 0.0
    for part in rounds:
        points = window.points(part.levels)
        losses: Array = window.grid * points
        for piece in _pieces(part):
            masses, infinite, offset = _discretised(piece.levels, losses, window.grid, bound)
            _multiply(product, piece, points, masses)
            moments += _log_moments(piece, losses, masses)
            present = np.where(np.any(masses > 0, axis=0), losses, 0.0)
            extremes += piece.counts.sum() * np.array([present.max(), present.min()])
            moved += float(piece.counts @ _mixed(piece, offset))
            finite = 1 - np.minimum(_mixed(piece, infinite), 1 - 1e-15)
            log_finite += float(piece.counts @ np.log(finite))
            blur += float(piece.counts @ _mixed(piece, loss_error(piece.levels)))
    total, rounding = product.masses()
    first = window.first - round(moved / window.grid)
    losses = window.grid * (first + np.arange(window.n)) + moved
    total = np.roll(total, -first)
    reached = losses[[-1, 0]] + window.grid * np.array([0.5, -0.5])
    slack = rounding + _outside(moments, extremes, reached - moved) - np.expm1(log_finite)
    kept = losses > 0
    low = losses[~kept], total[~kept]
    return ComposedLoss(losses[kept], total[kept], bound, float(slack), blur, *low)


def _pieces(part: Rounds) -> Iterator[Rounds]:
    """The rounds in pieces of few levels."""
    n = len(part.levels.scale)
    for start in range(0, n, CHUNK):
        chosen = (part.level >= start) & (part.level < start + CHUNK)
        span = slice(start, min(start + CHUNK + 1, n))
        levels = part.levels._replace(scale=part.levels.scale[span], rate=part.levels.rate[span])
        level = part.level[chosen] - start
        yield Rounds(levels, level, part.weight[chosen], part.counts[chosen])


def _discretised(
    levels: Pairs, losses: Array, grid: float, bound: Bound
) -> tuple[Array, Array, Array]:
    """Masses of each level, its mass at infinity, and by how much its losses are moved, [n].

    For the lower bound of a level, the grid may go through its least outcome or through 0.
    """
    still = np.zeros(len(levels.scale))
    if bound == "upper":
        return *above(levels, losses), still
    masses, least = beneath(levels, losses), least_outcome(levels, grid / 2)
    if np.all(-least <= 0) or np.all(-least > FINE * grid):
        return masses, still, still
    offset = least - grid * np.ceil(least / grid)
    moved = beneath(levels, losses + offset)
    better = np.sum(moved * (losses + offset), axis=1) > masses @ losses  # in the mean loss
    return np.where(better[:, None], moved, masses), still, np.where(better, offset[:, 0], 0.0)


def _multiply(product: Product, piece: Rounds, points: Integers, masses: Array) -> None:
    """Multiply by the transform of every round, transforming each level once."""

    @lru_cache(maxsize=2)
    def transform(level: int) -> Complex:
        return product.transform(points, masses[level])

    for level, weight, count in zip(piece.level, piece.weight, piece.counts, strict=True):
        factor = transform(level)
        if weight > 0:
            factor = factor + weight * (transform(level + 1) - factor)
        product.times(factor, int(count))


def _survey(rounds: Sequence[Rounds], tail: float, grid: float | None) -> _Window:
    """Where the total loss lies, and the grid for it, from a coarse discretisation."""
    moments, limits = np.zeros((2, len(ORDERS))), np.zeros(2)
    variance, n_rounds, n_levels = 0.0, 0, 0.0
    for part in rounds:
        losses = _sparse(part.levels)
        for piece in _pieces(part):
            masses, infinite = above(piece.levels, losses)
            masses[:, -1] += infinite
            moments += _log_moments(piece, losses, masses)
            mean, square = _mixed(piece, masses @ losses), _mixed(piece, masses @ losses**2)
            variance += float(piece.counts @ np.maximum(square - mean**2, 1e-9 * square))
        limits += part.counts.sum() * losses[[0, -1]]
        n_rounds += int(part.counts.sum())
        n_levels += len(part.levels.scale) + len(part.counts) / 8  # a product costs an eighth
    likely = ((moments - np.log(tail)) / ORDERS).min(axis=1)
    low = min(max(-likely[1], limits[0]), 0.0)
    high = max(min(likely[0], limits[1]), low + 1e-12)
    rounding = int(min(n_rounds, 20 * np.sqrt(n_rounds)))  # of the single losses, in steps
    if grid is None:
        step = np.sqrt(6 * ADDED_VARIANCE * variance / n_rounds)
        wanted = (high - low) / max(step, 1e-15)
        n = 2 ** round(np.log2(np.clip(min(max(wanted, 2**16), WORK / n_levels), 2**15, 2**20)))
        rounding = min(rounding, n // 4)
        grid = (high - low) / (n - 2 * rounding - 4)
    else:
        n = 2 ** int(np.ceil(np.log2((high - low) / grid + 2 * rounding + 4)))
    resolution = int(np.clip(2**20 / n_levels, 256, 1024))
    return _Window(float(grid), int(np.floor(low / grid)) - rounding - 1, n, resolution)


def _sparse(pairs: Pairs, n: int = 300) -> Array:
    """Some losses of both signs, denser towards 0, over all that the pairs reach."""
    reached = np.array(reach(pairs))
    sizes = np.abs(reached).max() * np.geomspace(1e-7, 1, n)
    return np.unique(np.clip(np.concatenate([-sizes, [0.0], sizes]), *reached))


def least_epsilon(rounds: Sequence[Rounds], delta: float) -> float:
    """A lower bound on epsilon at a delta above 0, whatever its size, by one threshold test.

    Where the total loss exceeds l with probability t, delta(epsilon) >= t (1 - e^(epsilon - l)),
    which is delta at l + ln(1 - delta / t). A Chernoff bound on the losses below l, all in
    logarithms, gives l for t = sqrt(delta): near the mean loss, the smaller of what is typical.
    """
    orders = 2.0 ** np.arange(-14, 4, 0.5)
    moments, log_mass, n_rounds, blur = np.zeros(len(orders)), 0.0, 0, 0.0
    for part in rounds:
        losses = _sparse(part.levels)
        for piece in _pieces(part):
            masses = beneath(piece.levels, losses)
            moments += _log_moments(piece, losses, masses, orders)[1]
            with np.errstate(divide="ignore"):  # no mass in float64: the bound is then 0
                log_mass += float(piece.counts @ np.log(_mixed(piece, masses.sum(axis=1))))
            blur += float(piece.counts @ _mixed(piece, loss_error(piece.levels)))
            n_rounds += int(piece.counts.sum())
    power = np.sqrt(delta)
    others = np.exp(log_mass) - power
    if others <= 0:
        return 0.0
    rounding = 2.0**-40 * n_rounds  # of each sum of some hundred terms and its logarithm
    loss = ((np.log(others) - moments - rounding) / orders).max() - blur
    return float(max(loss + np.log1p(-delta / power), 0.0))


def most_epsilon(rounds: Sequence[Rounds], delta: float) -> float:
    """An upper bound on epsilon at deltas that rounding of ``compose`` hides; infinite below 1e-18.

    Of the moments of the total loss, which are Renyi divergences, of orders 1 + t: Canonne, Kamath
    and Steinke 2020, arXiv:2004.00010, Proposition 12. What each round has beyond the losses that
    are summed is taken from delta.
    """
    orders = 2.0 ** (np.arange(-6, 12, 0.5) + np.array([[0.0], [0.125], [0.25], [0.375]]))
    moments, log_finite, blur, n_rounds = np.zeros(orders.shape), 0.0, 0.0, 0
    for part in rounds:
        losses = _sparse(part.levels, 3000)
        for piece in _pieces(part):
            masses, infinite = above(piece.levels, losses)
            moments += [_log_moments(piece, losses, masses, some)[0] for some in orders]
            finite = 1 - np.minimum(_mixed(piece, infinite), 1 - 1e-15)
            log_finite += float(piece.counts @ np.log(finite))
            blur += float(piece.counts @ _mixed(piece, loss_error(piece.levels)))
            n_rounds += int(piece.counts.sum())
    left = delta + np.expm1(log_finite)
    if left <= 0:
        return np.inf
    rounding = 2.0**-40 * n_rounds  # of each sum of some thousand terms and its logarithm
    conversion = np.log(orders) - (1 + 1 / orders) * np.log1p(orders) - np.log(left) / orders
    return float(max(((moments + rounding) / orders + conversion).min() + blur, 0.0))


def _log_moments(piece: Rounds, losses: Array, masses: Array, orders: Array = ORDERS) -> Array:
    """Upper bounds on the sum over rounds of ln E exp(order loss), for orders and their negatives.

    Returns [2, n_orders]. Relative to the largest exponent, so that nothing overflows.
    """
    ends = losses[[-1, 0]] * [1, -1]
    below = np.array([losses, -losses]) - ends[:, None]
    moments = np.maximum(masses @ _exponentials(below, orders).reshape(-1, len(losses)).T, 1e-300)
    largest = np.outer(ends, orders)
    total: Array = piece.counts @ (np.log(_mixed(piece, moments)) + largest.ravel())
    return total.reshape(2, -1)


def _exponentials(exponents: Array, orders: Array) -> Array:
    """exp(order exponent), [2, n_orders, m], for orders that each are twice the last but one.

    Each is the square of the last but one, which takes a tenth of the time; not more than seven
    times in a row, because a square has twice the relative error.
    """
    powers = np.empty((len(exponents), len(orders), exponents.shape[1]))
    for i, order in enumerate(orders):
        if i % SQUARED < 2:
            np.exp(order * exponents, out=powers[:, i])
        else:
            np.square(powers[:, i - 2], out=powers[:, i])
    return powers


def _outside(moments: Array, extremes: Array, ends: Array) -> float:
    """A Chernoff bound on the probability of a total beyond the ends; 0 where none reaches it."""
    signs = np.array([1, -1])
    bounds = np.exp(np.minimum(moments - (signs * ends)[:, None] * ORDERS, 0.0)).min(axis=1)
    return float(bounds @ (signs * extremes > signs * ends))


def _mixed(piece: Rounds, values: Array) -> Array:
    """A level's values, [n_levels, ...], for each round, [n_rounds, ...]."""
    weight = piece.weight.reshape(-1, *[1] * (values.ndim - 1))
    above_it = values[np.minimum(piece.level + 1, len(values) - 1)]
    return np.where(
        weight > 0, (1 - weight) * values[piece.level] + weight * above_it, values[piece.level]
    )
