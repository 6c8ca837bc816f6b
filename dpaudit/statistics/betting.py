"""Bets against a claim, run by run: evidence that may be looked at, and stopped, at any time.

A pair is a run o0 without the record and a run o1 with it, independent of all others. Whatever set
of outcomes S is, (epsilon, delta)-DP says that X = 1{o1 in S} - e^epsilon 1{o0 in S} - delta has a
mean of 0 at most. A bettor who stakes a share f of the most that can be lost has the wealth
W_k = prod (1 + f X / (e^epsilon + delta)), whose mean is 1 at most as long as the claim holds. By
Ville's inequality it reaches 1 / alpha with probability alpha at most, over all pairs that there
will ever be: 1 / max W is a p-value wherever one stops, and wealths of independent runs multiply.

S is a side of a threshold on the score. For each side, and each point of a claim's curve, the
threshold is the one that other runs (``choosing``) promise most of; W is a mixture over both
sides, all points and the shares in ``SHARES``, half of it on what those runs promise most of.

Source: Gonzalez et al. 2025, arXiv:2509.07055, for the test; Waudby-Smith and Ramdas 2024 for bets.
"""

from collections.abc import Sequence
from math import exp, log, log2
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.accounting.families import gaussian_delta, gaussian_epsilon
from dpaudit.accounting.privacy_loss import Array, Integers
from dpaudit.errors import DpauditError

from .bounds import SCORE_DECIMALS, Scores, thresholds_between

SHARES = np.array([0.9, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01])
DELTAS = (0.1, 0.01, 1e-3, 1e-5)  # at which a curve is bet against, besides epsilon 0
SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
POINTS = 64  # values of epsilon tried for a bound


class Point(NamedTuple):
    """What a claim promises: (epsilon, delta)-DP, or one point of its curve."""

    epsilon: float
    delta: float


class Bets(NamedTuple):
    """Which sets are bet on; all of it is chosen before the pairs that count are seen."""

    points: Array  # [n_bets, 2]: epsilon and delta
    thresholds: Array  # [n_bets]
    above: Array  # [n_bets]: 1 if S is above the threshold, -1 if below; o0 and o1 then change part
    log_weights: Array  # [n_bets, n_shares]


def gaussian_curve(mu: float) -> list[Point]:
    """Some points of mu-GDP: a claim on mu is one on each of them."""
    at = [Point(0.0, gaussian_delta(0.0, mu))]
    return at + [Point(gaussian_epsilon(d, mu), d) for d in DELTAS if d < at[0].delta]


def bets(points: Sequence[Point], choosing: Scores) -> Bets:
    """The bets that scores of other runs, of H0 and of H1, promise most of.

    Raises:
        DpauditError: no point, a score is NaN, or a world has none.
    """
    if not points:
        raise DpauditError("DPA071", "expected a claim to bet against, got none")
    scores0, scores1 = (_checked(world) for world in choosing)
    candidates = thresholds_between(np.sort(np.concatenate([scores0, scores1])))
    sides = ((1.0, scores0, scores1), (-1.0, scores1, scores0))
    rates = [(sign, [_rates(sign, s, candidates) for s in both]) for sign, *both in sides]
    rows, growths = [], []
    for point in points:
        for sign, (out, into) in rates:
            growth = _growth(point, out, into)
            best = int(growth.max(axis=1).argmax())
            rows.append((*point, candidates[best], sign))
            growths.append(growth[best])
    table, promised = np.array(rows), np.array(growths)
    weights = np.full(promised.shape, 0.5 / promised.size)
    weights.flat[promised.argmax()] += 0.5
    return Bets(table[:, :2], table[:, 2], table[:, 3], np.log(weights))


def log_wealth(on: Bets, scores: Scores) -> Array:
    """After each pair of scores of H0 and H1, [n_pairs]: of a wealth of 1 before the first.

    Raises:
        DpauditError: a score is NaN, or the worlds have not as many.
    """
    scores0, scores1 = (_checked(world) for world in scores)
    if len(scores0) != len(scores1):
        raise DpauditError(
            "DPA072", f"expected pairs, got {len(scores0)} and {len(scores1)} scores"
        )
    inside0, inside1 = (
        (on.above * s[:, None]) > on.above * on.thresholds for s in (scores0, scores1)
    )
    first = on.above > 0
    out, into = np.where(first, inside0, inside1), np.where(first, inside1, inside0)
    won = _won(on.points[:, 0], on.points[:, 1], out, into)  # [n_pairs, n_bets]
    each = [
        on.log_weights[:, i] + np.cumsum(np.log1p(share * won), axis=0)
        for i, share in enumerate(SHARES)
    ]
    return np.asarray(np.logaddexp.reduce(np.concatenate(each, axis=1), axis=1))


class PackedBets(NamedTuple):
    """Several groups of bets and the outcome of all their pairs, for a checker.

    A score's place among all thresholds is 2 i above i of them, and 2 i + 1 if it is on the next.
    Places of m pairs are the digits of one number, the first pair's the lowest, and of a pair that
    of H0 before that of H1.
    """

    group: tuple[float, ...]  # [n_bets], of each bet, as its threshold and what follows
    place: tuple[float, ...]
    share: tuple[float, ...]  # its index in ``SHARES``, if it has half of the stake; -1: none
    places: tuple[float, ...]  # [ceil(n_pairs / m)]
    n_places: int


def packed(groups: Sequence[Bets], scores: Scores) -> PackedBets:
    """All that the wealth of each group of bets on these scores follows from."""
    thresholds = np.unique(np.concatenate([on.thresholds for on in groups]))
    n_places = 2 * len(thresholds) + 1

    def place(values: Array) -> Integers:
        left, right = (np.searchsorted(thresholds, values, side=side) for side in SIDES)
        return left + right

    digits = np.stack([place(_checked(world)) for world in scores], axis=1)  # [n_pairs, 2]
    m = digits_in_a_number(n_places)
    padded = np.pad(digits, ((0, -len(digits) % m), (0, 0))).reshape(-1, 2 * m)
    powers = np.array([n_places**i for i in range(2 * m)])
    shares = []
    for on in groups:
        favoured = np.full(len(on.thresholds), -1)
        best, share = np.unravel_index(on.log_weights.argmax(), on.log_weights.shape)
        favoured[best] = share
        shares += favoured.tolist()
    of_group = np.repeat(np.arange(len(groups)), [len(on.thresholds) for on in groups])
    return PackedBets(
        tuple(of_group.tolist()),
        tuple(place(np.concatenate([on.thresholds for on in groups])).tolist()),
        tuple(shares),
        tuple((padded @ powers).tolist()),
        n_places,
    )


def digits_in_a_number(n_places: int) -> int:
    """How many pairs of places a float64 holds exactly."""
    return int(52 // (2 * log2(n_places)))


def anytime_p_value(path: Array) -> float:
    """1 / max W, at most 1, of the log wealth after each pair."""
    return exp(-max(0.0, float(np.max(path, initial=0.0))))


def epsilon_from_bets(scores: Scores, delta: float, alpha: float, choosing: Scores) -> float:
    """What any (epsilon, delta)-DP mechanism must exceed, wherever the pairs were stopped.

    The largest of ``POINTS`` values, evenly apart up to what so many pairs could prove, that is
    refuted with all below it; 0 if none.

    Raises:
        DpauditError: as ``bets`` and ``log_wealth``.
    """
    n, found = len(_checked(scores[0])), 0.0
    for epsilon in np.linspace(0.0, log(max(n, 2)), POINTS):
        path = log_wealth(bets([Point(float(epsilon), delta)], choosing), scores)
        if anytime_p_value(path) > alpha:
            return found
        found = float(epsilon)
    return found


def _won(epsilon: Array, delta: Array, out: Array, into: Array) -> Array:
    """X / (e^epsilon + delta), at least -1; finite for every epsilon."""
    small = np.exp(-epsilon)
    return np.asarray((small * (into - delta) - out) / (1 + small * delta))


def _growth(point: Point, out: Array, into: Array) -> Array:
    """Expected log growth [n_thresholds, n_shares] with these probabilities of S [n_thresholds]."""
    total = np.zeros((len(out), len(SHARES)))
    for was_out in (0.0, 1.0):
        for was_in in (0.0, 1.0):
            chance = np.abs(1 - was_out - out) * np.abs(1 - was_in - into)
            epsilon, delta, one, other = map(np.array, (*point, was_out, was_in))
            won = _won(epsilon, delta, one, other)
            total += chance[:, None] * np.log1p(SHARES * won)
    return total


def _rates(sign: float, scores: Array, thresholds: Array) -> Array:
    """How often scores lie on that side of each threshold, as if twice more than was seen."""
    inside = sign * scores[:, None] > sign * thresholds
    return np.asarray((inside.sum(axis=0) + 1) / (len(scores) + 2))


def _checked(scores: ArrayLike) -> Array:
    rounded = np.round(np.asarray(scores, float).ravel(), SCORE_DECIMALS)
    if len(rounded) == 0 or np.isnan(rounded).any():
        raise DpauditError(
            "DPA072", f"expected scores, got {int(np.isnan(rounded).sum())} NaN of {len(rounded)}"
        )
    return rounded
