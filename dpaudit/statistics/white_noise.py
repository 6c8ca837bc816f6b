"""Whether numbers are independent standard normal noise, by tests of exact level."""

import numpy as np
from scipy.special import betainc, chdtr, chdtrc, ndtr

from dpaudit.accounting.privacy_loss import Array


def white_noise_test(sample: Array) -> tuple[str, float]:
    """The most striking departure of columns [n, m] from N(0, I), and a p-value for it.

    The smallest of all p-values counts as often as there are tests, so that white noise has one
    below p with probability p at most.
    """
    p_values = white_noise_p_values(sample)
    count = sum(p.size for p in p_values.values())
    smallest = {test: float(p.min(initial=1.0)) for test, p in p_values.items()}
    test = min(smallest, key=lambda name: smallest[name])
    return test, min(1.0, count * smallest[test])


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
        "its size": _off(squares.sum(keepdims=True), n * m),
        "the size of a column": _off(squares, n),
        "the mean of a column": 2 * ndtr(-np.abs(sample.sum(axis=0)) / np.sqrt(n)),
        "correlation of two columns": betainc((n - 1) / 2, 0.5, 1 - np.square(cosine)),
    }


def _off(squares: Array, n: int) -> Array:
    """Two-sided p-values of sums of n squares."""
    return 2 * np.minimum(chdtr(n, squares), chdtrc(n, squares))
