"""From what a defense declares that it released, to epsilon and delta.

A defense lists its releases: one entry for each round's message about one batch, or for several
equal ones. Any number of them, in any order, compose adaptively. Epsilon is in nats.

An answer is an interval that is certain to hold the exact value: its upper end is a guarantee, and
above its lower end there is none. Where a closed form exists, the two are the same number.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import hypot, inf, sqrt
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from dpaudit.errors import DpauditError
from dpaudit.release import Release

from .composition import (
    Bound,
    ComposedLoss,
    Rounds,
    compose,
    least_epsilon,
    most_epsilon,
    on_levels,
)
from .families import GAUSSIAN, TradeoffFamily, gaussian_delta, gaussian_epsilon
from .privacy_loss import MAX_LOSS, Array, NoiseFamily, PairKind, Pairs, largest_loss

LEAST_TAIL = 1e-307  # probability left out, of which a logarithm is taken
LEAST_NOISE = 1e-6  # noise multiplier below which losses are too large to compose
MOST_NOISE = 1e100  # above which its square overflows; all that it leaks is lost in rounding
REMEMBERED = 64  # releases of a mechanism at most whose epsilon is kept

BudgetEpsilon = Annotated[float, Field(ge=1e-6, le=1e6)]  # from which a defense's noise follows
BudgetDelta = Annotated[float, Field(ge=1e-300, lt=1)]

RecordAdjacency = Literal["add-remove", "replace-one"]
Direction = Literal["remove", "add"]


Mechanism = Sequence[Release]


class Interval(NamedTuple):
    """Two numbers between which another one lies, both included."""

    low: float
    high: float


def epsilon(
    mechanism: Mechanism, delta: float, adjacency: RecordAdjacency = "add-remove"
) -> Interval:
    """Bounds on the smallest epsilon such that the mechanism is (epsilon, delta)-DP.

    Where delta is not above the rounding error of the computation (1e-9 after thousands of rounds,
    less after few), the interval is wide: the upper end is one of Renyi divergences. It is infinite
    where a release has no noise, and may be for deltas below 1e-18, and where losses of single
    rounds above 600 decide: these count as infinite, and as 600 from below.

    Raises:
        DpauditError: delta is outside [0, 1), or 0 although some noise is Gaussian.
    """
    closed = _closed_form(mechanism, delta, adjacency)
    if closed is not None:
        return Interval(closed, closed)
    if len(mechanism) <= REMEMBERED:
        return _remembered(tuple(mechanism), delta, adjacency)
    return _interval(mechanism, delta, adjacency)


def _interval(mechanism: Mechanism, delta: float, adjacency: RecordAdjacency) -> Interval:
    """Epsilon of what has no closed form."""
    noisier = _with_least_noise(mechanism)
    tail = max(1e-5 * delta, LEAST_TAIL)
    low = max(c.epsilon(delta) for c in _composed(noisier, adjacency, "lower", tail))
    high = epsilon_at_most(mechanism, delta, adjacency)
    if high > MAX_LOSS:
        low = max(low, least_epsilon(_rounds(noisier, adjacency, "remove", "lower"), delta))
    return Interval(min(low, _pure_epsilon(mechanism, adjacency)), high)


_remembered = lru_cache(maxsize=512)(_interval)  # claims, agents and adversaries ask for the same


def epsilon_at_most(
    mechanism: Mechanism, delta: float, adjacency: RecordAdjacency = "add-remove"
) -> float:
    """The upper end of ``epsilon`` alone, in a third of its time. Raises DpauditError as that."""
    closed = _closed_form(mechanism, delta, adjacency)
    if closed is not None:
        return closed
    pure, tail = _pure_epsilon(mechanism, adjacency), max(1e-5 * delta, LEAST_TAIL)
    if any(release.noise_multiplier < LEAST_NOISE for release in mechanism):
        return pure
    high = max(c.epsilon(delta) for c in _composed(mechanism, adjacency, "upper", tail))
    return min(pure, high if high < inf else _at_small_delta(mechanism, delta, adjacency))


def _at_small_delta(mechanism: Mechanism, delta: float, adjacency: RecordAdjacency) -> float:
    """Where the rounding of composition hides delta, or losses are too large for it.

    By moments, or by Gaussian noise alone: a Poisson sample leaks no more than all records do.
    """
    directions = _directions(mechanism, adjacency, "upper")
    rounds = [_rounds(mechanism, adjacency, direction, "upper") for direction in directions]
    high = max(most_epsilon(parts, delta) for parts in rounds)
    if all(release.sampling != "fixed" for release in mechanism):
        drawn = {"sampling": "none", "sampling_rate": 1.0}
        mu = _gaussian_mu([r.model_copy(update=drawn) for r in mechanism], adjacency)
        high = high if mu is None else min(high, gaussian_epsilon(delta, mu))
    return high


def _closed_form(mechanism: Mechanism, delta: float, adjacency: RecordAdjacency) -> float | None:
    """Epsilon without noise, at delta = 0, and of Gaussian noise that is not sampled."""
    if not 0 <= delta < 1:
        raise DpauditError("DPA071", f"delta must be at least 0 and below 1, got {delta}")
    if any(release.noise_multiplier == 0 for release in mechanism):
        return inf
    if delta == 0:
        pure = _pure_epsilon(mechanism, adjacency)
        if pure == inf:
            raise DpauditError(
                "DPA049", "Gaussian noise has no epsilon at delta = 0", "choose a delta above 0"
            )
        return pure
    mu = _gaussian_mu(mechanism, adjacency)
    return None if mu is None else gaussian_epsilon(delta, mu)


class Meeting(NamedTuple):
    """Batches, each drawn by itself, whose sums meet under one noise."""

    release: Release  # what one of them would be alone
    batches: int


def epsilon_where_batches_meet(
    meetings: Sequence[Meeting], delta: float, adjacency: RecordAdjacency = "add-remove"
) -> float:
    """A lower bound on epsilon at delta > 0: of a record of one direction wherever batches meet.

    The noise is Gaussian; different meetings have noise of their own.
    """
    rounds = _rounds_that_meet(meetings, adjacency)
    if not rounds:
        return 0.0
    composed = compose(rounds, "lower", max(1e-5 * delta, LEAST_TAIL))
    return max(composed.epsilon(delta), least_epsilon(rounds, delta))


def power_where_batches_meet(
    meetings: Sequence[Meeting],
    false_positive_rate: ArrayLike,
    adjacency: RecordAdjacency = "add-remove",
) -> Array:
    """How often the best test finds that record at least, at rates of false positives in [0, 1]."""
    rate = np.asarray(false_positive_rate, float)
    rounds = _rounds_that_meet(meetings, adjacency)
    if not rounds:
        return rate
    flat = np.maximum(rate.ravel(), LEAST_TAIL)
    found: Array = compose(rounds, "lower", 1e-12).power(flat)
    return np.maximum(found, flat).reshape(rate.shape)


def _rounds_that_meet(meetings: Sequence[Meeting], adjacency: RecordAdjacency) -> list[Rounds]:
    alike: dict[int, list[Release]] = defaultdict(list)
    for release, batches in meetings:
        alike[batches].append(release)
    return [
        part._replace(levels=part.levels._replace(draws=batches))
        for batches, releases in alike.items()
        for part in _rounds(_with_least_noise(releases), adjacency, "remove", "lower")
    ]


def _with_least_noise(mechanism: Mechanism) -> Mechanism:
    """The same with at least ``LEAST_NOISE``, which reveals no more: for a lower end."""
    return tuple(
        release.model_copy(update={"noise_multiplier": max(release.noise_multiplier, LEAST_NOISE)})
        for release in mechanism
    )


def delta(
    mechanism: Mechanism, epsilon: float, adjacency: RecordAdjacency = "add-remove"
) -> Interval:
    """Bounds on the smallest delta such that the mechanism is (epsilon, delta)-DP.

    Raises:
        DpauditError: epsilon is negative.
    """
    if not epsilon >= 0:
        raise DpauditError("DPA071", f"epsilon must be at least 0, got {epsilon}")
    if any(release.noise_multiplier == 0 for release in mechanism):
        return Interval(1.0, 1.0)
    if epsilon >= _pure_epsilon(mechanism, adjacency):
        return Interval(0.0, 0.0)
    mu = _gaussian_mu(mechanism, adjacency)
    if mu is not None:
        return Interval(*[gaussian_delta(epsilon, mu)] * 2)
    tail = 1e-14
    low = max(c.delta(epsilon) for c in _composed(mechanism, adjacency, "lower", tail))
    high = max(c.delta(epsilon) for c in _composed(mechanism, adjacency, "upper", tail))
    return Interval(low, high)


def false_negative_rate(
    mechanism: Mechanism, false_positive_rate: ArrayLike, adjacency: RecordAdjacency = "add-remove"
) -> Array:
    """How rarely a test may miss the record at best: a lower bound on the trade-off curve.

    Args:
        false_positive_rate: of tests that separate the mechanism's releases without the record (H0)
            from those with it (H1); under "replace-one", with one record from with another.

    Returns:
        Of the same shape. Follows from delta(epsilon), whose every value says that
        P(S) <= e^epsilon Q(S) + delta of any test; exact for unsampled Gaussian noise.
    """
    return false_negative_rates(mechanism, adjacency)(false_positive_rate)


def false_negative_rates(
    mechanism: Mechanism, adjacency: RecordAdjacency = "add-remove"
) -> Callable[[ArrayLike], Array]:
    """``false_negative_rate`` as a function of the rate: the releases are composed once."""
    if any(release.noise_multiplier == 0 for release in mechanism):
        return lambda rate: np.zeros_like(np.asarray(rate, float))
    mu = _gaussian_mu(mechanism, adjacency)
    if mu is not None:
        return lambda rate: GAUSSIAN.false_negative_rate(mu, np.asarray(rate, float))
    composed = _composed(mechanism, adjacency, "upper", 1e-9)
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 60.0, 200)])
    remove, add = (c.deltas(epsilons) for c in (composed[0], composed[-1]))

    def least(false_positive_rate: ArrayLike) -> Array:
        rate = np.asarray(false_positive_rate, float)[..., None]
        one, other = 1 - remove - np.exp(epsilons) * rate, np.exp(-epsilons) * (1 - add - rate)
        return np.maximum(np.maximum(one, other).max(axis=-1), 0.0)

    return least


def true_positive_rate(
    mechanism: Mechanism, false_positive_rate: ArrayLike, bound: Bound = "upper"
) -> Array:
    """A bound on how often the best test finds a record that was added to the worst data.

    Args:
        false_positive_rate: in [0, 1], of tests on releases without the record.

    Returns:
        Of that shape. One release, and Gaussian ones that are not sampled, have a closed form; for
        others it follows from their composed losses, where the record is in the first world.
    """
    rate = np.asarray(false_positive_rate, float)
    if any(release.noise_multiplier == 0 for release in mechanism):
        return np.ones_like(rate)
    mu = _gaussian_mu(mechanism, "add-remove")
    if mu is not None:
        return 1 - GAUSSIAN.false_negative_rate(mu, rate)
    if len(mechanism) == 1 and mechanism[0].count == 1:
        (release,) = mechanism
        family = TradeoffFamily(release.family, release.sampling_rate)
        shift = _shift(release, "add-remove") / release.noise_multiplier
        return 1 - family.false_negative_rate(shift, rate)
    noisier, flat = _with_least_noise(mechanism), np.maximum(rate.ravel(), LEAST_TAIL)
    if bound == "upper" and noisier != tuple(mechanism):
        return np.ones_like(rate)
    composed = compose(_rounds(noisier, "add-remove", "remove", bound), bound, 1e-12)
    return np.maximum(composed.power(flat), flat).reshape(rate.shape)


def worst_pairs(release: Release, adjacency: RecordAdjacency) -> list[Pairs]:
    """The pairs that dominate one of the releases, of both directions if they differ."""
    both: list[Direction] = ["remove", "add"]
    directions = both if adjacency == "add-remove" and release.sampling_rate < 1 else both[:1]
    found = [_grouped([release], adjacency, direction, "upper") for direction in directions]
    return [pairs for [(pairs, _)] in found]


def _gaussian_mu(mechanism: Mechanism, adjacency: RecordAdjacency) -> float | None:
    """The mu of unsampled Gaussian releases, which compose to one; None for anything else."""
    if any(release.family == "laplace" or release.sampling_rate < 1 for release in mechanism):
        return None
    return hypot(*(sqrt(r.count) * _shift(r, adjacency) / r.noise_multiplier for r in mechanism))


def _pure_epsilon(mechanism: Mechanism, adjacency: RecordAdjacency) -> float:
    """The largest loss there can be: what holds at delta = 0, and is reached by Laplace noise."""
    parts = _grouped(mechanism, adjacency, "remove", "lower")
    return float(sum(count @ largest_loss(pairs) for pairs, count in parts))


def _composed(
    mechanism: Mechanism, adjacency: RecordAdjacency, bound: Bound, tail: float
) -> list[ComposedLoss]:
    """The total loss, once for each direction that may be the worse one.

    The record is in the first world of "remove" and in the second of "add", in every round. One
    direction is enough for a lower bound, and where each release has the same loss in both.
    """
    directions = _directions(mechanism, adjacency, bound)
    return [compose(_rounds(mechanism, adjacency, d, bound), bound, tail) for d in directions]


def _directions(
    mechanism: Mechanism, adjacency: RecordAdjacency, bound: Bound
) -> tuple[Direction, ...]:
    sampled = any(release.sampling_rate < 1 for release in mechanism)
    both = bound == "upper" and adjacency == "add-remove" and sampled
    return ("remove", "add") if both else ("remove",)


def _rounds(
    mechanism: Mechanism, adjacency: RecordAdjacency, direction: Direction, bound: Bound
) -> list[Rounds]:
    parts = _grouped(mechanism, adjacency, direction, bound)
    return [on_levels(pairs, count, bound) for pairs, count in parts]


def _grouped(
    mechanism: Mechanism, adjacency: RecordAdjacency, direction: Direction, bound: Bound
) -> list[tuple[Pairs, np.ndarray]]:
    """Releases of the same family, kind and rate together, by increasing scale; equal ones once."""
    groups: dict[tuple[NoiseFamily, PairKind, float], dict[float, int]] = defaultdict(
        lambda: defaultdict(int)
    )
    for r in mechanism:
        key = r.family, _kind(r, adjacency, direction, bound), r.sampling_rate
        groups[key][min(r.noise_multiplier, MOST_NOISE) / _shift(r, adjacency)] += r.count
    return [
        (
            Pairs(family, kind, np.array(sorted(counts))[:, None], np.full((len(counts), 1), rate)),
            np.array([counts[scale] for scale in sorted(counts)]),
        )
        for (family, kind, rate), counts in groups.items()
    ]


def _kind(
    release: Release, adjacency: RecordAdjacency, direction: Direction, bound: Bound
) -> PairKind:
    """Which pair of worlds is the worst; for a lower bound, one that some data sets attain."""
    if adjacency == "add-remove" or release.sampling_rate == 1:
        return direction
    if release.sampling == "poisson" and release.clipped == "records":
        return "replace"  # a record and its opposite
    return "switch" if bound == "upper" else direction


def _shift(release: Release, adjacency: RecordAdjacency) -> int:
    """How far a batch sum moves at most, in sensitivities to adding or removing one record.

    Replacing a record moves the sum twice as far. So does adding one to a batch of fixed size,
    which then leaves another one out. "replace" has a shift of 1 from where neither is sampled.
    What is clipped as a whole is moved as far by one record as by any change of data.
    """
    if release.clipped == "whole":
        return 1
    if release.sampling_rate == 1:
        return 2 if adjacency == "replace-one" else 1
    return 2 if release.sampling == "fixed" else 1
