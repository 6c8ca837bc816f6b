"""Wealth of bets against a claim, from the places of the scores that they were made on.

(epsilon, delta)-DP says of any set S of outcomes that X = 1{o1 in S} - e^epsilon 1{o0 in S} - delta
has a mean of 0 at most, and reversed. Wealth then ever reaches 1 / alpha with probability alpha at
most (Ville 1939). A score's place is 2 i above i thresholds, 2 i + 1 on the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, log, log2
from typing import Any

import numpy as np
from scipy.special import logsumexp

from .accountant import Array

Points = set[tuple[float, float]]  # (epsilon, delta)
SHARES = np.array([0.9, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01])  # shares of what can be lost
POINTS = 64  # values of epsilon that a bound is sought among


def wealths(evidence: Mapping[str, Sequence[Any]], n: int) -> Iterator[tuple[Points, Array]]:
    """Each group of bets, on n pairs: what it is against, and its log wealth after each pair."""
    names = ("epsilon", "delta", "side", "place", "share", "group")
    table = np.array([evidence[f"bet {name}"] for name in names], float)
    base, numbers = int(evidence["number of places"][0]), np.array(evidence["places"], float)
    m = int(52 // (2 * log2(base)))
    whole = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < float(base) ** (2 * m))
    if len(numbers) != ceil(n / m) or not whole.all():
        raise ValueError("these are not the outcomes of so many pairs")
    digits = numbers.astype(np.int64)[:, None] // base ** np.arange(2 * m) % base
    places = digits.reshape(-1, 2)[:n].T[..., None]  # [2, n, 1]
    for g in np.unique(table[5]):
        epsilon, delta, side, place, share = table[:5, table[5] == g]
        favoured = np.flatnonzero(share >= 0)
        if len(favoured) != 1 or not (np.abs(side) == 1).all() or not (epsilon >= 0).all():
            raise ValueError("these bets stake more than there is, or are none")
        in0, in1 = side * places > side * place
        won = _won(epsilon, delta, np.where(side > 0, in0, in1), np.where(side > 0, in1, in0))
        weights = np.full((len(share), len(SHARES)), 0.5 / len(share) / len(SHARES))
        weights[favoured[0], int(share[favoured[0]])] += 0.5
        each = np.log(weights) + np.cumsum(np.log1p(SHARES * won[..., None]), axis=0)
        yield set(zip(epsilon, delta, strict=True)), logsumexp(each, axis=(1, 2))


def _won(epsilon: Array, delta: Any, out: Any, into: Any) -> Array:
    """X over the most that can be lost."""
    small = np.exp(-epsilon)
    return np.asarray((small * (into - delta) - out) / (1 + small * delta))


def ceiling(n: int, delta: float, alpha: float) -> float:
    """What n pairs without an error certify, of values evenly apart up to ln n."""
    grid, rate = np.linspace(0.0, log(max(n, 2)), POINTS), 1 / (n + 2)
    growth = np.zeros((POINTS, len(SHARES)))  # expected, if worlds are mistaken at this rate
    for out, into in ((0, 0), (0, 1), (1, 0), (1, 1)):
        gain = np.log1p(np.outer(_won(grid, delta, out, into), SHARES))
        growth += abs(1 - out - rate) * abs(into - rate) * gain
    weights = np.full(growth.shape, 0.5 / len(SHARES))
    weights[np.arange(POINTS), growth.argmax(axis=1)] += 0.5
    gain = np.log1p(np.outer(_won(grid, delta, 0, 1), SHARES))
    short = logsumexp(np.log(weights) + n * gain, axis=1) < -log(alpha)
    first = int(np.append(short, True).argmax())
    return float(grid[first - 1]) if first else 0.0
