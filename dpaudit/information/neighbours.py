"""Nearest neighbours and counts of neighbours under the max-norm, all that the k-NN estimators ask.

Two implementations with the same answers to the last bit: machine code where numba is installed,
otherwise scipy's and scikit-learn's trees. Both let threads share the cores.
"""

from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

PLAIN_LEAF = 16


@cache
def compiled() -> ModuleType | None:
    """The compiled kernels, or None where numba is missing (or can cache nothing on this disk)."""
    try:
        return import_module("dpaudit.information.neighbours_compiled")
    except (ImportError, RuntimeError):
        return None


def kth_distances(points: Floats, k: int) -> Floats:
    """Max-norm distance of each point to its k-th nearest other point.

    Args:
        points: [n, d] with n > k, finite.
        k: at least 1.

    Returns:
        [n]; 0 where k other points are identical to it.
    """
    kernels = compiled()
    if kernels is not None:
        return kernels.kth_distances(np.ascontiguousarray(points), k)
    from scipy.spatial import cKDTree

    distances, _ = cKDTree(points, leafsize=PLAIN_LEAF).query(points, k=[k + 1], p=np.inf)
    return distances[:, 0]


def counts_within(points: Floats, radii: Floats) -> Counts:
    """How many points, itself included, lie within each point's own max-norm radius, inclusive.

    Args:
        points: [n, d], finite.
        radii: [n]; a negative radius counts nothing.

    Returns:
        [n].
    """
    if points.shape[1] == 1:
        return _counts_on_the_line(points[:, 0], radii)
    kernels = compiled()
    if kernels is not None:
        return kernels.counts_within(np.ascontiguousarray(points), radii)
    from sklearn.neighbors import KDTree

    tree = KDTree(points, leaf_size=PLAIN_LEAF, metric="chebyshev")
    return tree.query_radius(points, radii, count_only=True)


def _counts_on_the_line(values: Floats, radii: Floats) -> Counts:
    order = np.argsort(values)
    kernels = compiled()
    count = _counts_sorted if kernels is None else kernels.counts_within_sorted
    counts = np.empty(values.size, np.int64)
    counts[order] = count(values[order], radii[order])
    return counts


def _counts_sorted(values: Floats, radii: Floats) -> Counts:
    """Bisection finds each end of the interval up to rounding; whole steps make it exact."""
    last = values.size - 1
    end = np.searchsorted(values, values + radii, "right")
    start = np.searchsorted(values, values - radii, "left")
    while (short := (end <= last) & (values[np.minimum(end, last)] - values <= radii)).any():
        end += short
    while (long := (end > 0) & (values[end - 1] - values > radii)).any():
        end -= long
    while (short := (start > 0) & (values - values[start - 1] <= radii)).any():
        start -= short
    while (long := (start <= last) & (values - values[np.minimum(start, last)] > radii)).any():
        start += long
    return np.maximum(end - start, 0)
