"""The privacy loss of one release, discretised so that it errs on a known side.

A release is described by a pair (P, Q): what is seen with and without the record, in the worst
case, along one dimension and with a shift of 1. The loss is ln P/Q, an outcome's evidence for P.
With noise M of standard deviation (Laplace: scale) s, and sampling rate q, the pairs are

    remove    (1-q) M(0) + q M(1)   against   M(0)
    add       M(0)                  against   (1-q) M(0) + q M(1)
    replace   (1-q) M(0) + q M(1)   against   (1-q) M(0) + q M(-1)
    switch    the losses above 0 of "remove", those below 0 of "add", the rest at 0

"remove" and "add" dominate Poisson sampling under add/remove and, with the doubled shift, sampling
without replacement (Zhu, Dong and Wang 2022, arXiv:2106.08567, Theorem 11); "switch" is the
latter's profile under replacement, where the other records may be the worst ones for either world.
"replace" dominates Poisson sampling under replacement. For alpha >= 1, advanced joint convexity
(Balle, Barthe and Gaboardi 2018, Theorem 2) reduces its hockey-stick divergence to that of M(g)
from a mixture of M(0) and M(g'), a convex function of a weighted sum of two likelihood ratios. Each
of these is, in convex order, at most the one of a shift by 1 and by 2 along a line; a sum is
largest in convex order when its terms rise together, as they do on a line; so g' = -g is the worst.

Where K batches, each drawn by itself, meet under one noise, "remove" is sum_k B(k) M(k) against
M(0), and "replace" that against sum_k B(k) M(-k), with B the binomial law: the record's gradient
has one direction in all batches. That is a pair of worlds that there is, and so a lower bound; for
other directions nothing is said. Only these two kinds have several draws, of Gaussian noise.

A pair is only ever used through the masses that P and Q give to intervals of the loss, which are
differences of distribution functions. Each is moved to its unfavourable side by the error of these.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from dpaudit.release import NoiseFamily

from .binomial import log_mass, more_than

Array = NDArray[np.floating[Any]]
Integers = NDArray[np.intp]
PairKind = Literal["remove", "add", "replace", "switch"]
BoundSide = int  # 1: P at least and Q at most as the pair has them; -1: the reverse

MAX_LOSS = 600.0  # exp of it is finite; a larger loss counts as infinite (or, from below, as this)
ONE_BY_ONE = 32  # pairs at most whose cells are merged by a loop over each
UNLIKELY = 1e-30  # a chance of being drawn more often, which is not followed
PLACES = 2**10  # along the line, between which a loss of several draws is interpolated
REACH = 12.0  # standard deviations of the noise beyond all draws
CDF_ERROR = 1e-13  # relative: scipy's ndtr is within 4e-14 on [-12, 0] (against mpmath)


class Pairs(NamedTuple):
    """n pairs of one family and kind: noise over shift, and sampling rate, each [n, 1]."""

    family: NoiseFamily
    kind: PairKind
    scale: Array
    rate: Array
    draws: int = 1  # that meet under the noise, each with this rate


class Cells(NamedTuple):
    """Bounds on the masses of intervals of the loss, [n, m + 1] for m boundaries.

    The first interval reaches down to minus infinity, the last up to infinity.
    """

    p: Array
    q: Array


def above(pairs: Pairs, losses: Array) -> tuple[Array, Array]:
    """Masses [n, m] on the given losses that dominate the pairs, and [n] on an infinite loss.

    The mass of an interval goes to its two ends such that P and Q keep theirs. Source: Doroshenko
    et al. 2022, "Connect the Dots", arXiv:2207.04380, Algorithm 1.
    """
    p, q = _cells(pairs, losses, side=1)
    p, q, below, infinite = p[:, 1:-1], q[:, 1:-1], p[:, 0], p[:, -1]
    upper = (p - np.exp(losses[:-1]) * q) / -np.expm1(-np.diff(losses))
    upper = np.clip(upper, 0.0, p)
    masses = np.zeros((len(p), len(losses)))
    masses[:, 1:] = upper
    masses[:, :-1] += p - upper
    masses[:, 0] += below
    return masses, infinite


def beneath(pairs: Pairs, losses: Array) -> Array:
    """Masses [n, m] on the losses, [m] or of each pair [n, m], that the pairs dominate.

    Outcomes are merged in the order of their loss until the merged outcome's own loss is exactly
    one of those given, and an outcome may be split at random between two merged ones: all of it is
    post-processing. What is left over at the top is rounded down; some mass may be missing.
    """
    p, q = _cells(pairs, losses, side=-1)
    ratios = np.exp(np.broadcast_to(losses, (len(p), losses.shape[-1])))
    masses = np.zeros_like(ratios)
    masses[:, -1] = p[:, -1]
    merge = _merged_one_by_one if len(p) <= ONE_BY_ONE else _merged_together
    node, mass, missing, lowest, short = merge(p[:, 1:-1], q[:, 1:-1], ratios, masses)
    rows = np.arange(len(p))
    ratio = ratios[rows, node]
    kept = missing < short  # the open outcome ends at its loss if some of its first part does not
    ends = np.where(kept, mass - lowest * missing / np.where(kept, short, 1.0), 0.0)
    masses[rows, node] += ends
    mass = mass - ends
    q_open = (mass + missing) / ratio
    node = np.maximum(node - 1, 0)
    _close(masses, ratios, node, mass, np.maximum(mass - ratios[rows, node] * q_open, 0.0))
    return masses


class _Open(NamedTuple):
    """The last merged outcome of each pair, [n], which no cell has ended."""

    node: Integers  # the loss at which it must end
    mass: Array  # of P in it
    missing: Array  # how much P must still exceed its ratio times Q by
    lowest: Array  # P of its first part, a cell's rest
    short: Array  # and what that lacks


def _merged_together(p: Array, q: Array, ratios: Array, masses: Array) -> _Open:
    """Merge cells [n, m - 1] in turn, of all pairs at once, into the masses [n, m]."""
    rows = np.arange(len(p))
    node, ratio = np.zeros(len(p), dtype=np.intp), ratios[:, 0]
    mass, missing, lowest, short = np.zeros((4, len(p)))
    for cell in range(p.shape[1]):
        p_cell, q_cell = p[:, cell], q[:, cell]
        excess = p_cell - ratio * q_cell
        closes = excess > missing
        share = np.where(closes, missing / np.where(closes, excess, 1.0), 1.0)
        mass += share * p_cell
        masses[rows[closes], node[closes]] += mass[closes]
        rest = 1.0 - share
        deficit = np.maximum(rest * (ratios[:, cell + 1] * q_cell - p_cell), 0.0)
        node = np.where(closes, cell + 1, node)
        ratio = np.where(closes, ratios[:, cell + 1], ratio)
        lowest = np.where(closes, rest * p_cell, lowest)
        short = np.where(closes, deficit, short)
        mass = np.where(closes, lowest, mass)
        missing = np.where(closes, deficit, missing - excess)
    return _Open(node, mass, missing, lowest, short)


def _merged_one_by_one(p: Array, q: Array, ratios: Array, masses: Array) -> _Open:
    """The same figures, of one pair after the other: NumPy takes as long for a cell of 30 pairs."""
    last = [_merged(*pair) for pair in zip(p, q, ratios, masses, strict=True)]
    node, *others = zip(*last, strict=True)
    return _Open(np.array(node, dtype=np.intp), *np.array(others))


def _merged(p: Array, q: Array, ratios: Array, masses: Array) -> tuple[float, ...]:
    later, node, ratio = ratios[1:].tolist(), 0, float(ratios[0])
    ended = masses.tolist()
    mass = missing = lowest = short = 0.0
    for cell, (p_cell, q_cell) in enumerate(zip(p.tolist(), q.tolist(), strict=True)):
        excess = p_cell - ratio * q_cell
        if excess > missing:
            share = missing / excess
            ended[node] += mass + share * p_cell
            rest, node, ratio = 1.0 - share, cell + 1, later[cell]
            lowest = mass = rest * p_cell
            deficit = rest * (ratio * q_cell - p_cell)
            short = missing = deficit if deficit > 0.0 else 0.0
        else:
            mass += p_cell
            missing -= excess
    masses[:] = ended
    return node, mass, missing, lowest, short


def _close(masses: Array, ratios: Array, node: Integers, mass: Array, excess: Array) -> None:
    """End the last open outcome at ``node``: merge lower ones into it while it has an excess.

    ``excess`` is how much P exceeds the node's ratio times Q in it; what stays is rounded down.
    """
    rows = np.arange(len(masses))
    masses[rows, node] += mass
    if len(masses) == 1:
        _close_one(masses[0], ratios[0], int(node[0]), float(mass[0]), float(excess[0]))
        return
    for step in range(1, int(node.max()) + 1):
        source = np.maximum(node - step, 0)
        deficit = ratios[rows, node] / ratios[rows, source] - 1  # of a unit of P at the lower loss
        taken = np.where(
            deficit > 0, np.minimum(masses[rows, source], excess / np.maximum(deficit, 1e-300)), 0
        )
        masses[rows, source] -= taken
        masses[rows, node] += taken
        excess = excess - taken * deficit
        if not np.any(excess > 1e-15 * mass):
            break


def _close_one(masses: Array, ratios: Array, node: int, mass: float, excess: float) -> None:
    """The same figures, of one pair: NumPy takes thirty times as long for single numbers."""
    ended, ratio = float(masses[node]), float(ratios[node])
    lower = masses[:node][::-1].tolist()
    for step, (held, below) in enumerate(zip(lower, ratios[:node][::-1].tolist(), strict=True)):
        deficit = ratio / below - 1
        taken = min(held, excess / deficit) if deficit > 0 else 0.0
        lower[step] -= taken
        ended += taken
        excess -= taken * deficit
        if not excess > 1e-15 * mass:
            break
    masses[:node], masses[node] = lower[::-1], ended


def least_outcome(pairs: Pairs, width: float) -> Array:
    """The loss [n, 1] of all losses within ``width`` of the least one, merged; 0 if none is least.

    On a grid wider than the sampling rate q, most of the mass of "remove" lies between the least
    loss, ln(1 - q), and the next point. No merging reaches a loss below the least: on the multiples
    of the grid it would have to go to 0, and take all larger losses with it, since the mean of the
    ratio is 1. A grid through this loss keeps them apart.
    """
    if pairs.kind != "remove":
        return np.zeros_like(pairs.scale)
    lowest = 0.0 if pairs.family == "laplace" else -np.inf
    least = _loss_at(pairs, np.full_like(pairs.scale, lowest))
    p, q = _cells(pairs, least + width, side=1)  # not below the least by rounding
    with np.errstate(divide="ignore", invalid="ignore"):
        merged = np.log(p[:, :1] / q[:, :1])
    return np.where(np.isfinite(least) & np.isfinite(merged), merged, 0.0)


def reach(pairs: Pairs) -> tuple[float, float]:
    """Losses strictly between which every pair has all but about 1e-22 of its mass."""
    z = 9.8 if pairs.family == "gaussian" else 50.0
    low, high = _loss_at(pairs, -pairs.scale * z), _loss_at(pairs, pairs.draws + pairs.scale * z)
    if pairs.kind == "add":
        low, high = -high, -low
    if pairs.kind in ("replace", "switch"):
        low = -high
    margin = 1e-9 * max(-float(low.min()), float(high.max()))
    return max(float(low.min()) - margin, -MAX_LOSS), min(float(high.max()) + margin, MAX_LOSS)


def largest_loss(pairs: Pairs) -> Array:
    """The largest loss of each "remove" or "replace" pair, [n]: infinite for Gaussian noise."""
    if pairs.family == "gaussian":
        return np.full(len(pairs.scale), np.inf)
    return _loss_at(pairs, np.ones_like(pairs.scale))[:, 0]


def _loss_at(pairs: Pairs, place: Array) -> Array:
    """The loss of "remove" at a place along the line, or of "replace", [n, 1]."""
    log_present = _log_present(pairs, place)
    return log_present if pairs.kind != "replace" else log_present - _log_present(pairs, -place)


def _log_present(pairs: Pairs, place: Array) -> Array:
    """ln of the density with the record, over that of M(0)."""
    if pairs.draws == 1:
        with np.errstate(divide="ignore"):
            log_used = np.log(pairs.rate) + _log_ratio(pairs, place)
            return np.logaddexp(np.log1p(-pairs.rate), log_used)
    times, log_law = _times_drawn(pairs)
    with np.errstate(invalid="ignore"):  # none drawn, infinitely far away
        shifted = np.where(times > 0, times * (place[..., None] - times / 2), 0.0)
    found: Array = logsumexp(log_law + shifted / pairs.scale[..., None] ** 2, axis=-1)
    return found


def _times_drawn(pairs: Pairs) -> tuple[Array, Array]:
    """How often the record is drawn, [k], and the ln of how likely, [n, 1, k].

    More than ``UNLIKELY`` often counts as that often, which only shortens a shift.
    """
    times = np.arange(pairs.draws + 1)
    most = np.argmax(more_than(times, pairs.draws, pairs.rate.max()) <= UNLIKELY)
    times = times[: most + 1]
    law = log_mass(times, pairs.draws, pairs.rate[..., None])
    law[..., -1] = np.log(more_than(times[-1] - 1, pairs.draws, pairs.rate))
    return times.astype(float), law


def _log_ratio(pairs: Pairs, place: Array) -> Array:
    """ln of the density of M(1) over that of M(0)."""
    if pairs.family == "gaussian":
        return (place - 0.5) / pairs.scale**2
    return (np.abs(place) - np.abs(place - 1)) / pairs.scale


def loss_error(pairs: Pairs) -> Array:
    """How far rounding may move a loss: [n], in nats.

    Rounding the place along the line moves the log ratio by its slope, 1/scale^2 for a Gaussian;
    merging outcomes adds up to some thousand roundings of a ratio.
    """
    slope = pairs.draws * pairs.scale ** (-2 if pairs.family == "gaussian" else -1)
    return (2.0**-53 * (4096 + 16 * slope * (1 + 50 * pairs.scale)))[:, 0]


def _cells(pairs: Pairs, losses: Array, side: BoundSide) -> Cells:
    """Masses between the losses; of P at least and Q at most the true one for side 1."""
    if pairs.kind == "add":
        flipped = _cells(pairs._replace(kind="remove"), -losses[::-1], -side)
        return Cells(flipped.q[:, ::-1], flipped.p[:, ::-1])
    if pairs.kind == "switch":
        return _switched(pairs, losses, side)
    if pairs.draws > 1:
        return _cells_of_draws(pairs, losses, side)
    threshold, rate = _threshold(pairs, losses), pairs.rate
    absent, absent_error = _interval_masses(pairs, threshold)
    present, present_error = _interval_masses(pairs, threshold - 1)
    p, p_error = _mix(rate, absent, present), _mix(rate, absent_error, present_error)
    q, q_error = absent, absent_error
    if pairs.kind == "replace":
        other, other_error = _interval_masses(pairs, threshold + 1)
        q, q_error = _mix(rate, absent, other), _mix(rate, absent_error, other_error)
    return Cells(np.maximum(p + side * p_error, 0.0), np.maximum(q - side * q_error, 0.0))


def _cells_of_draws(pairs: Pairs, losses: Array, side: BoundSide) -> Cells:
    """Masses between places of about these losses: any intervals are what an adversary may see."""
    place = np.linspace(-1.0, 1.0, PLACES) * (pairs.draws + REACH * pairs.scale)
    reached = _loss_at(pairs, place)
    wanted = np.broadcast_to(losses, (len(place), losses.shape[-1]))
    ends = -np.inf, np.inf
    threshold = np.stack(
        [np.interp(*each, *ends) for each in zip(wanted, reached, place, strict=True)]
    )
    times, log_law = _times_drawn(pairs)
    law = np.moveaxis(np.exp(log_law), -1, 0)

    def mixed(sign: int, side: BoundSide) -> Array:
        total = np.zeros((len(place), threshold.shape[1] + 1))
        for likely, k in zip(law, times, strict=True):
            mass, error = _interval_masses(pairs, threshold - sign * k)
            total += likely * (mass + side * (error + CDF_ERROR * mass))
        return total

    absent, error = _interval_masses(pairs, threshold)
    q = mixed(-1, -side) if pairs.kind == "replace" else absent - side * error
    return Cells(np.maximum(mixed(1, side), 0.0), np.maximum(q, 0.0))


def _switched(pairs: Pairs, losses: Array, side: BoundSide) -> Cells:
    """The pair "switch"; 0 is one of the losses."""
    cells, reverse = _without_zero(pairs, losses, side), _without_zero(pairs, losses, -side)
    zero = int(np.searchsorted(losses, 0.0))
    cells.p[:, zero + 1] += np.maximum(1 - reverse.p.sum(axis=1), 0.0)  # both worlds equally likely
    cells.q[:, zero + 1] += np.maximum(1 - reverse.q.sum(axis=1), 0.0)
    return cells


def _without_zero(pairs: Pairs, losses: Array, side: BoundSide) -> Cells:
    """Masses of the intervals below 0 as for "add", and of those above as for "remove"."""
    add = _cells(pairs._replace(kind="add"), losses, side)
    remove = _cells(pairs._replace(kind="remove"), losses, side)
    positive = np.append(losses, np.inf) > 0
    return Cells(np.where(positive, remove.p, add.p), np.where(positive, remove.q, add.q))


def _mix(rate: Array, absent: Array, present: Array) -> Array:
    return (1 - rate) * absent + rate * present


def _threshold(pairs: Pairs, losses: Array) -> Array:
    """Where along the line the loss exceeds each given one, [n, m]; the loss rises along it."""
    if pairs.kind == "remove":
        return _where_ratio(pairs, _unmixed(losses, pairs.rate, 0.0))
    rate, scale, loss = pairs.rate, pairs.scale, np.abs(losses)
    if pairs.family == "gaussian":
        with np.errstate(divide="ignore"):
            log_sinh = loss / 2 + np.log(-np.expm1(-loss) / 2)
        log_slope = np.log1p(-rate) - np.log(rate) + 0.5 / scale**2 + log_sinh
        small = np.arcsinh(np.exp(np.minimum(log_slope, 20)))
        arsinh = np.where(log_slope > 20, log_slope + np.log(2), small)
        return np.sign(losses) * scale**2 * (loss / 2 + arsinh)
    tail = np.expm1(-1 / scale)  # where M(1) has its bulk, the ratio of M(-1) to M(0) less 1
    place = np.maximum(_where_ratio(pairs, _unmixed(loss, rate, tail)), 0.0)
    return np.where(losses < 0, -place, place)


def _unmixed(losses: Array, rate: Array, below: Array | float) -> Array:
    """The log ratio r at which ln((1 - rate + rate e^r) / (1 + rate below)) is the given loss.

    Two forms of one expression: the first keeps its digits near 0, the second near its lower end.
    """
    other = 1 + rate * below
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        near = np.log1p(np.expm1(losses) * other / rate + below)
        lower = losses + np.log(other / rate)
        lower = lower + np.log1p(-(1 - rate) * np.exp(-losses) / other)
    log_ratio = np.where((losses > -0.5) & (rate < 1), near, lower)
    return np.where(np.isnan(log_ratio), -np.inf, log_ratio)


def _where_ratio(pairs: Pairs, log_ratio: Array) -> Array:
    """Where M(1) becomes more than e^log_ratio times as likely as M(0)."""
    if pairs.family == "gaussian":
        return pairs.scale**2 * log_ratio + 0.5
    place = (pairs.scale * log_ratio + 1) / 2
    return np.where(place < 0, -np.inf, np.where(place >= 1, np.inf, place))


def _interval_masses(pairs: Pairs, threshold: Array) -> tuple[Array, Array]:
    """What the noise gives to the intervals between thresholds, [n, m + 1], and its error bound."""
    z = threshold / pairs.scale
    cdf = ndtr if pairs.family == "gaussian" else laplace_cdf
    ends = np.pad(z, ((0, 0), (1, 1)), constant_values=np.inf)
    ends[:, 0] = -np.inf
    low, high = ends[:, :-1], ends[:, 1:]
    right = low > 0  # the difference is taken where the distribution function is small
    big = cdf(np.where(right, -low, high))
    return big - cdf(np.where(right, -high, low)), CDF_ERROR * big


def laplace_cdf(z: Array) -> Array:
    tail = 0.5 * np.exp(-np.abs(z))
    return np.where(z < 0, tail, 1 - tail)
