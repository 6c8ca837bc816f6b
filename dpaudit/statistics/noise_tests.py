"""Tests of noise: independent of one scale, whatever its distribution; or white.

Every test of scale and independence holds its level if the coordinates of a row are independent,
symmetric and of one distribution; none asks which. Sums of independent signs are bounded by
Hoeffding's inequality. Tests of white noise have an exact level.
"""

from collections.abc import Mapping

import numpy as np
from scipy.special import betainc, chdtr, chdtrc, gammaincc, ndtr

from dpaudit.accounting.privacy_loss import Array

PARALLEL = 1e-5  # sine of the angle between two vectors that are multiples of one another


def scale_p_values(sizes: Array) -> tuple[Array, Array]:
    """By coordinate of sizes [n, d]: p-values of its being too small, and too large, [d] each.

    Among exchangeable coordinates the rank of one is uniform; the ranks of n independent rows are
    combined as by Fisher, whose statistic is then at most chi^2 with 2 n degrees of freedom.
    """
    n, d = sizes.shape
    low, high = _ranks(sizes) / d, _ranks(-sizes) / d
    smaller, larger = (gammaincc(n, -np.log(p).sum(axis=0)) for p in (low, high))
    return smaller, larger


def _ranks(rows: Array) -> Array:
    """How many entries of its row [n, d] are at most as large as each."""
    return np.array([np.searchsorted(np.sort(row), row, side="right") for row in rows])


def sign_p_value(total: Array, n: Array | int) -> Array:
    """Two-sided p-value of a sum of n independent signs."""
    return np.minimum(1.0, 2 * np.exp(-np.square(total) / (2 * np.maximum(n, 1))))


def lag_p_values(noise: Array) -> Array:
    """By lag 1, 2, ...: p-values of agreeing signs of coordinates that far apart, of [n, d].

    The products of the signs at one lag are independent, since no two lead round in a circle.
    """
    n, d = noise.shape
    spectra = np.fft.rfft(np.sign(noise), 2 * d, axis=1)
    sums = np.fft.irfft(np.square(np.abs(spectra)).sum(axis=0), 2 * d)[1:d]
    return sign_p_value(sums, n * (d - np.arange(1, d)))


def parallel_pairs(vectors: Array, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Pairs of rows of [m, n] that are multiples of one another, neighbours in a random order.

    Of independent continuous rows with n >= 8 none is, but with probability below 1e-20 m^2.
    """
    lengths = np.linalg.norm(vectors, axis=1)
    there = np.flatnonzero(lengths > 0)
    unit = vectors[there] / lengths[there, None]
    unit *= np.sign(unit[:, :1]) + (unit[:, :1] == 0)
    order = np.argsort(unit @ rng.standard_normal(vectors.shape[1]))
    gaps = np.linalg.norm(np.diff(unit[order], axis=0), axis=1)
    near = np.flatnonzero(gaps < PARALLEL)
    return [(int(there[order[i]]), int(there[order[i + 1]])) for i in near]


def white_noise_test(sample: Array) -> tuple[str, float]:
    """The most striking departure of columns [n, m] from N(0, I), and a p-value for it.

    The smallest of all p-values counts as often as there are tests, so that white noise has one
    below p with probability p at most.
    """
    return striking(white_noise_p_values(sample))


def white_noise_p_values(sample: Array) -> dict[str, Array]:
    """By test: p-values, each uniform if the columns [n, m] are N(0, I).

    Sums of squares are chi^2 with as many degrees of freedom, sums of n numbers are N(0, n), and
    the squared cosine of two columns is Beta(1/2, (n - 1)/2), all exactly.
    """
    n, m = sample.shape
    squares = np.square(sample).sum(axis=0)
    unit = sample / np.sqrt(np.where(squares > 0, squares, 1.0))
    cosine = np.clip((unit.T @ unit)[np.triu_indices(m, 1)], -1.0, 1.0)
    return {
        "its size": size_p_values(squares.sum(keepdims=True), n * m),
        "the size of a column": size_p_values(squares, n),
        "the mean of a column": 2 * ndtr(-np.abs(sample.sum(axis=0)) / np.sqrt(n)),
        "correlation of two columns": betainc((n - 1) / 2, 0.5, 1 - np.square(cosine)),
    }


def size_p_values(squares: Array, n: Array | int) -> Array:
    """Two-sided p-values of sums of n squares of standard normal numbers."""
    return 2 * np.minimum(chdtr(n, squares), chdtrc(n, squares))


def striking(p_values: Mapping[str, Array]) -> tuple[str, float]:
    """The test with the smallest p-value, which counts as often as there are p-values in all."""
    count = sum(p.size for p in p_values.values())
    smallest = {test: float(p.min(initial=1.0)) for test, p in p_values.items()}
    test = min(smallest, key=lambda name: smallest[name])
    return test, min(1.0, count * smallest[test])
