"""The number of successes in n trials of probability p each, for arrays that broadcast.

By special functions: ``scipy.stats`` has the same, and every start would wait a second for it.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrik, betainc, betaincc, gammaln, xlog1py, xlogy

Array = NDArray[np.floating[Any]]


def at_most(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """P(K <= k) for integers k, also below 0 and above n."""
    k, n = np.asarray(k), np.asarray(n)
    inside = (k >= 0) & (k < n)
    return np.where(inside, betaincc(*_shape(k, n, inside), p), k >= n)


def more_than(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """P(K > k) for integers k, also below 0 and above n."""
    k, n = np.asarray(k), np.asarray(n)
    inside = (k >= 0) & (k < n)
    return np.where(inside, betainc(*_shape(k, n, inside), p), k < 0)


def log_mass(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """ln P(K = k) for integers k from 0 to n."""
    k, n = np.asarray(k), np.asarray(n)
    ways = gammaln(n + 1) - (gammaln(k + 1) + gammaln(n - k + 1))
    return np.asarray(ways + xlogy(k, p) + xlog1py(n - k, -np.asarray(p)))


def quantile(q: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """The least k with P(K <= k) >= q, for q between 0 and 1."""
    # Where 0 is enough for any q, some releases of scipy answer NaN, and others n.
    k = np.where(at_most(0, n, p) >= np.asarray(q), 0.0, np.ceil(bdtrik(q, n, p)))
    one_less = np.maximum(k - 1, 0.0)
    return np.where(at_most(one_less, n, p) >= np.asarray(q), one_less, k)


def _shape(k: Any, n: Any, inside: Any) -> tuple[Array, Array]:
    """Parameters of the beta law whose distribution function at p is P(K > k), if 0 <= k < n."""
    return np.where(inside, k + 1.0, 1.0), np.where(inside, n - k, 1.0)
