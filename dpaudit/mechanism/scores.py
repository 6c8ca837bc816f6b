"""Scores that separate the outputs for two neighbouring inputs, made from runs of both.

A score is a number for each run. Which one counts, and its threshold, is chosen on other runs than
those that made it, and judged on further ones: a bad score costs power, never validity.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array, Integers
from dpaudit.statistics.bounds import SCORE_DECIMALS
from dpaudit.statistics.noise_tests import scores_of_a_shift

MOST_COORDINATES = 64  # coordinates of a likelihood ratio
FEW_COORDINATES = 16  # coordinates of a covariance
BINS = 24  # bins of one coordinate's density
FEW_VALUES = 64  # distinct values of a number that is counted value by value
DOUBT = 2.0  # standard deviations of a rate by which scores are chosen
CONSTANT = 1e-9  # deviations below this share of a number's size are rounding
PER_OUTCOME = 4  # runs for each distinct output, where whole outputs are counted


Of = Callable[[Array], Array]  # a number for each row [n, n_out]


class OutputScore(NamedTuple):
    """A number for each run, from outputs [n, n_out]."""

    name: str
    of: Of


def scores(
    out0: Array, out1: Array, moved: Array | None, inputs: tuple[Array, Array]
) -> list[OutputScore]:
    """Scores by outputs of both inputs, [n, n_out] each.

    Args:
        moved: [n_out], by how much the input moves the output, where that is known.
        inputs: both inputs as flat arrays, which outputs may show unchanged.
    """
    if moved is not None:
        moved = np.where(np.abs(moved) > CONSTANT * np.abs(moved).max(initial=0.0), moved, 0.0)
    gap = out1.mean(axis=0) - out0.mean(axis=0)
    width = np.sqrt((out0.var(axis=0) + out1.var(axis=0)) / 2 + 1e-300)
    apart = np.abs(gap) / width if moved is None else np.abs(moved) / width
    ordered = np.argsort(-apart, kind="stable")
    found = list(_linear(out0, out1, gap if moved is None else moved, width, apart))
    found += _tables(out0, out1)
    some = ordered[:MOST_COORDINATES]
    found.append(OutputScore("likelihood ratio by coordinates", _by_coordinate(out0, out1, some)))
    for name, feature in _features(inputs):
        ratio = _log_ratio(feature(out0), feature(out1))
        found.append(OutputScore(name, partial(_of_feature, feature, ratio)))
    found += _of_shift(out0, out1, ordered[:FEW_COORDINATES], moved)
    return found


def best(
    found: list[OutputScore], choosing: tuple[Array, Array], merit: Callable[[Array, Array], float]
) -> tuple[OutputScore, float]:
    """The score of the largest merit by outputs of other runs, and that merit."""
    merits = [merit(*(score.of(outputs) for outputs in choosing)) for score in found]
    i = int(np.argmax(merits))
    return found[i], merits[i]


def promise(values0: Array, values1: Array, delta: float) -> float:
    """The largest log odds of any threshold in either direction, less what luck may add."""
    values0, values1 = (np.round(values, SCORE_DECIMALS) for values in (values0, values1))
    if not (np.isfinite(values0).all() and np.isfinite(values1).all()):
        return 0.0
    places = np.unique(np.concatenate([values0, values1]))
    below0, below1 = (
        np.searchsorted(np.sort(values), places, side="right") / len(values)
        for values in (values0, values1)
    )
    n, largest = min(len(values0), len(values1)), 0.0
    above0, above1 = 1 - below0, 1 - below1
    ways = ((above1, above0), (above0, above1), (below1, below0), (below0, below1))
    for found, false in ways:
        sure = np.maximum(found - _doubt(found, n) - delta, 1e-12)
        largest = max(largest, float(np.log(sure / (false + _doubt(false, n))).max()))
    return largest


def _doubt(rate: Array, n: int) -> Array:
    """By how much a rate of n runs may be off, where the best of many was chosen by it."""
    return DOUBT * (np.sqrt(rate * (1 - rate) / n) + 1 / n)


def _linear(
    out0: Array, out1: Array, moved: Array, width: Array, apart: Array
) -> Iterator[OutputScore]:
    """Projections on how far each number moves, all of them or those that move most."""
    weights = {"projection on the shift": moved / width**2}
    threshold = 0.25 * apart.max(initial=0.0)
    weights["projection on what moves most"] = np.where(apart >= threshold, moved / width**2, 0.0)
    weights["sum of the signs of the shift"] = np.sign(moved)
    centre = (out0.mean(axis=0) + out1.mean(axis=0)) / 2
    for name, weight in weights.items():
        if np.abs(weight).max(initial=0.0) > 0:
            unit = weight / np.abs(weight).max()
            yield OutputScore(name, partial(_projected, unit))
    low, high = centre - np.abs(moved) / 2, centre + np.abs(moved) / 2
    unit = np.sign(moved) / width

    def clipped(x: Array) -> Array:  # the log likelihood ratio of Laplace noise
        return np.asarray(np.clip(x, low, high) @ unit)

    if np.abs(unit).max(initial=0.0) > 0:
        yield OutputScore("likelihood ratio of Laplace noise", clipped)


def _projected(weight: Array, x: Array) -> Array:
    return np.asarray(x @ weight)


def _of_feature(feature: Of, ratio: Of, x: Array) -> Array:
    return ratio(feature(x))


def _of_columns(some: Integers, of: Of, x: Array) -> Array:
    return of(x[:, some])


def _tables(out0: Array, out1: Array) -> Iterator[OutputScore]:
    """By whole outputs, where few different ones occur."""
    every = np.concatenate([out0, out1]).round(SCORE_DECIMALS) + 0.0  # no negative zero
    _, which = np.unique(every, axis=0, return_inverse=True)
    which = which.ravel()
    if which.max(initial=0) + 1 > len(every) / PER_OUTCOME:
        return
    counts = [np.bincount(part, minlength=which.max() + 1) for part in np.split(which, [len(out0)])]
    ratio = np.log((counts[1] + 0.5) / (counts[0] + 0.5))
    table = {row.tobytes(): ratio[i] for row, i in zip(every, which, strict=True)}

    def looked_up(x: Array) -> Array:
        return np.array([table.get(row.tobytes(), 0.0) for row in x.round(SCORE_DECIMALS) + 0.0])

    yield OutputScore("likelihood ratio of whole outputs", looked_up)


def _by_coordinate(out0: Array, out1: Array, some: Integers) -> Of:
    ratios = [(j, _log_ratio(out0[:, j], out1[:, j])) for j in some]

    def summed(x: Array) -> Array:
        return np.sum([ratio(x[:, j]) for j, ratio in ratios], axis=0)

    return summed


def _features(inputs: tuple[Array, Array]) -> Iterator[tuple[str, Of]]:
    """Numbers that a whole output is summarised by."""
    yield "sum", lambda x: x.sum(axis=1)
    yield "sum of sizes", lambda x: np.abs(x).sum(axis=1)
    yield "norm", lambda x: np.linalg.norm(x, axis=1)
    yield "largest number", lambda x: x.max(axis=1)
    yield "smallest number", lambda x: x.min(axis=1)
    yield "place of the largest number", lambda x: x.argmax(axis=1).astype(float)
    yield "number of zeros", lambda x: (x == 0).sum(axis=1).astype(float)
    for which, value in zip(("without", "with"), inputs, strict=True):
        yield f"numbers equal to the input {which}", partial(_equal, value)


def _equal(value: Array, x: Array) -> Array:
    """How many numbers of each output are those of an input, at their place, and not 0."""
    if x.shape[1] % max(len(value), 1):
        return np.zeros(len(x))
    repeated = np.resize(value, x.shape[1])
    return np.asarray(((x == repeated) & (repeated != 0)).sum(axis=1), float)


def _log_ratio(values0: Array, values1: Array) -> Of:
    """ln of how often a number occurs with one input over the other, by value or by bins."""
    every = np.concatenate([values0, values1]).round(SCORE_DECIMALS) + 0.0  # no negative zero
    places = np.unique(every)
    if len(places) <= FEW_VALUES:
        edges = (places[1:] + places[:-1]) / 2
    else:
        edges = np.unique(np.quantile(every, np.linspace(0, 1, BINS + 1)[1:-1]))
    counts = [
        np.bincount(np.searchsorted(edges, part), minlength=len(edges) + 1) + 0.5
        for part in (values0, values1)
    ]
    ratio = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())

    def of(x: Array) -> Array:
        return np.asarray(ratio[np.searchsorted(edges, x)])

    return of


def _of_shift(
    out0: Array, out1: Array, some: Integers, moved: Array | None
) -> Iterator[OutputScore]:
    """Likelihood ratios of a shifted law, with the covariance of its numbers."""
    size = np.abs(out0[:, some]).max(axis=0)
    some = some[out0[:, some].std(axis=0) > CONSTANT * size]
    silent = out0[:, some]
    shift = out1[:, some].mean(axis=0) - silent.mean(axis=0) if moved is None else moved[some]
    if len(silent) < 4 * len(some) or not len(some):
        return
    names = ("by the covariance", "by the norm", "by densities")
    for name, of in zip(names, scores_of_a_shift(silent, (0 * shift, shift)), strict=True):
        yield OutputScore(f"likelihood ratio of a shift {name}", partial(_of_columns, some, of))
