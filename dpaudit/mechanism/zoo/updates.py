"""Steps of learning on records, of which one is replaced or removed: DP-SGD, means, counts.

A value is a batch of records; a step returns what it releases of them.
"""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

import numpy as np
from scipy.special import gammaincc

from dpaudit.accounting.families import gaussian_epsilon, gaussian_mu
from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import RecordAdjacency, Release
from dpaudit.accounting.releases import epsilon as accounted

from .entries import ZooEntry, clipped

DELTA = 1e-5
ROWS = 6
WIDTH = 8
BATCH: Mapping[str, Any] = {"shape": (ROWS, WIDTH), "records": True, "output_shape": (WIDTH,)}
NUMBERS: Mapping[str, Any] = {
    "shape": (ROWS, 1),
    "records": True,
    "low": 0.0,
    "high": 1.0,
    "output_shape": (),
}


def per_record(x: Array) -> Array:
    """The sum of records, each clipped to norm 1."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray((x / np.maximum(lengths, 1.0)).sum(axis=0))


def sgd_entries() -> Iterator[ZooEntry]:
    """The sum of clipped gradients with Gaussian noise: Abadi et al. 2016."""

    def step(
        scale: float,
        clip: Callable[[Array], Array] = per_record,
        rate: float = 1.0,
        mean: bool = False,
    ) -> Callable[[Array], Array]:
        def noised(x: Array) -> Array:
            drawn = x[np.random.random(len(x)) < rate] if rate < 1 else x
            noisy = clip(drawn) + np.random.normal(0, scale, WIDTH)
            return np.asarray(noisy / len(x) if mean else noisy)

        return noised

    def of(distance: float, scale: float) -> float:
        return gaussian_epsilon(DELTA, distance / scale)

    scale = 1.0 / gaussian_mu(2.0, DELTA)
    yield ZooEntry("DP-SGD step", "", step(scale), 2.0, 2.0, DELTA, BATCH, "add-remove")
    yield ZooEntry("DP-SGD step, replaced record", "", step(2 * scale), 2.0, 2.0, DELTA, BATCH)
    mistake = "noise for one record more or less"
    yield ZooEntry(
        "DP-SGD step, replaced record", mistake, step(scale), 2.0, of(2.0, scale), DELTA, BATCH
    )
    mistake = "the sum clipped, not each record"
    yield ZooEntry(
        "DP-SGD step, clip", mistake, step(scale, lambda x: clipped(x.sum(axis=0))), 2.0,
        of(2.0, scale), DELTA, BATCH,
    )  # fmt: skip
    mistake = "records not clipped"
    yield ZooEntry(
        "DP-SGD step, clip", mistake, step(scale, lambda x: x.sum(axis=0)), 2.0, inf, DELTA, BATCH
    )
    mistake = "divided by the number of records"
    yield ZooEntry(
        "DP-SGD step, mean", mistake, step(scale, mean=True), 2.0, _of_mean(scale), DELTA, BATCH,
        "add-remove",
    )  # fmt: skip
    yield from _sampled(step)
    yield from _sparse(step(scale))


def _sparse(noised: Callable[[Array], Array]) -> Iterator[ZooEntry]:
    """Few numbers of a step with epsilon 2."""
    yield ZooEntry(
        "DP-SGD step, sparse",
        "",
        lambda x: _largest(noised(x), 2),
        2.0,
        2.0,
        DELTA,
        BATCH,
        "add-remove",
    )
    yield ZooEntry(
        "DP-SGD step, sparse",
        "numbers that are not selected are shown to be small",
        lambda x: np.where(np.abs(per_record(x)) > 0.5, noised(x), 0.0),
        2.0,
        inf,
        DELTA,
        BATCH,
        "add-remove",
    )


def _of_mean(scale: float) -> float:
    """At least: without the record the noise is larger, and its size alone says so.

    The hockey-stick divergence of N(0, s^2 / n^2) from N(0, s^2 / (n - 1)^2), by where the first
    density is e^epsilon times the other, at least: epsilon is where its mass is delta.
    """
    wide, narrow = scale / (ROWS - 1), scale / ROWS
    epsilon = np.linspace(0, 40, 40_001)
    # ln of the wide density over the narrow one at radius r: -d ln(wide / narrow) + r^2 / 2 gap
    gap = 1 / narrow**2 - 1 / wide**2
    square = 2 * (epsilon + WIDTH * np.log(wide / narrow)) / gap
    mass = gammaincc(WIDTH / 2, square / (2 * wide**2))
    other = gammaincc(WIDTH / 2, square / (2 * narrow**2))
    found = epsilon[mass - np.exp(epsilon) * other > DELTA]
    return float(found[-1]) if len(found) else 0.0


def _sampled(step: Callable[..., Callable[[Array], Array]]) -> Iterator[ZooEntry]:
    """Batches drawn with probability 1/2: what accounting gives, and what people claim."""
    scale, rate = 1.0, 0.5
    release = Release(
        family="gaussian", noise_multiplier=scale, sampling="poisson", sampling_rate=rate
    )
    adjacencies: tuple[RecordAdjacency, ...] = ("add-remove", "replace-one")
    for adjacency in adjacencies:
        known = accounted([release], DELTA, adjacency)
        yield ZooEntry(
            f"DP-SGD step, sampled, {adjacency}",
            "",
            step(scale, rate=rate),
            known.high,
            known.high,
            DELTA,
            BATCH,
            adjacency,
        )
    known = accounted([release], DELTA, "replace-one")
    yield ZooEntry(
        "DP-SGD step, sampled, replace-one",
        "epsilon times the sampling rate",
        step(scale, rate=rate),
        rate * gaussian_epsilon(DELTA, 0.5),
        known.low,
        DELTA,
        {**BATCH, "runs": 20_000},
    )
    yield ZooEntry(
        "DP-SGD step, sampled, replace-one",
        "the first half of the records in place of a sample",
        lambda x: step(4.0)(x[: ROWS // 2]),
        accounted([release.model_copy(update={"noise_multiplier": 4.0})], DELTA).high / 2,
        gaussian_epsilon(DELTA, 2.0 / 4.0),
        DELTA,
        BATCH,
    )


def _largest(x: Array, k: int) -> Array:
    kept = np.zeros(x.shape)
    at = np.argsort(-np.abs(x))[:k]
    kept[at] = x[at]
    return kept


def statistic_entries() -> Iterator[ZooEntry]:
    """Sums, means, maxima and medians of numbers between 0 and 1, by Laplace noise."""

    def noised(of: Callable[[Array], Any], scale: float) -> Callable[[Array], Array]:
        return lambda x: np.asarray(of(x) + np.random.laplace(0, scale))

    def entry(
        name: str, mistake: str, function: Callable[[Array], Array], known: float
    ) -> ZooEntry:
        return ZooEntry(name, mistake, function, 1.0, known, options=NUMBERS)

    yield entry("sum", "", noised(np.sum, 1.0), 1.0)
    yield entry("mean", "", noised(np.mean, 1 / ROWS), 1.0)
    yield entry("mean", "noise for a mean of twice as many", noised(np.mean, 0.5 / ROWS), 2.0)
    yield entry("mean", "divided twice by the number", noised(np.mean, 1 / ROWS**2), float(ROWS))
    yield entry("largest number", "", noised(np.max, 1.0), 1.0)
    yield entry("largest number", "noise of a mean", noised(np.max, 1 / ROWS), float(ROWS))
    yield entry("median", "noise of its sensitivity at these data", _local_median, inf)
    yield entry("sum of squares", "noise for a sum of numbers up to 1/2", noised(np.sum, 0.5), 2.0)
    yield entry(
        "count", "",
        lambda x: np.asarray(np.rint(np.sum(x > 0.5) + np.random.laplace())), 1.0,
    )  # fmt: skip
    yield entry("count", "exact if it is 0", _exact_zero, inf)


def _local_median(x: Array) -> Array:
    ordered = np.sort(x.ravel())
    middle = len(ordered) // 2
    reach = max(ordered[middle] - ordered[middle - 1], ordered[middle + 1] - ordered[middle])
    return np.asarray(ordered[middle] + np.random.laplace(0, reach + 0.05))


def _exact_zero(x: Array) -> Array:
    count = float(np.sum(x > 0.5))
    return np.asarray(count + np.random.laplace() if count > 0 else 0.0)


def updates() -> list[ZooEntry]:
    return [*sgd_entries(), *statistic_entries()]
