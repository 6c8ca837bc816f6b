"""Neighbour searches under the max-norm as machine code: the optional kernel, through numba.

One k-d tree, balanced and complete: the children of node i are 2 i + 1 and 2 i + 2, and its points
are a run ``start[i] : start[i + 1]`` of the reordered sample. Boxes are tight. Distances are the
plain float64 differences that scipy and scikit-learn form, so all searches agree to the last bit
(rounding is monotone, hence no box that is passed over holds a point that would have counted).

Every kernel releases the interpreter lock: threads are enough to use all cores.
"""

# mypy: allow-untyped-defs
from typing import Any

import numpy as np
from numba import njit

LEAF = 48  # points in a leaf, at most; 16 and 32 were slower, 64 equal, at 5,000 samples
BUCKETS = 2  # per sample, in the table that guides the one-dimensional search

kernel: Any = njit(nogil=True, cache=True)


@kernel
def _split(points, order, start, end, middle, axis):
    """Reorder start:end so that no coordinate before ``middle`` exceeds one after it (Hoare)."""
    low, high = start, end - 1
    while low < high:
        pivot = points[order[(low + high) // 2], axis]
        i, j = low, high
        while i <= j:
            while points[order[i], axis] < pivot:
                i += 1
            while points[order[j], axis] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@kernel
def _bound(points, order, start, end, low, high):
    """Write the corners of the box around a run of points; return its widest axis."""
    widest = 0
    for axis in range(points.shape[1]):
        least, most = np.inf, -np.inf
        for i in range(start, end):
            value = points[order[i], axis]
            least = value if value < least else least
            most = value if value > most else most
        low[axis], high[axis] = least, most
        if most - least > high[widest] - low[widest]:
            widest = axis
    return widest


@kernel
def _tree(points):
    """The order of the points, the runs and boxes of the nodes, and which is the first leaf."""
    n, d = points.shape
    depth = 0
    while (n >> depth) > LEAF:
        depth += 1
    n_nodes, first_leaf = (2 << depth) - 1, (1 << depth) - 1
    order = np.arange(n)
    start, end = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.int64)
    low, high = np.empty((n_nodes, d)), np.empty((n_nodes, d))
    start[0], end[0] = 0, n
    for node in range(n_nodes):
        axis = _bound(points, order, start[node], end[node], low[node], high[node])
        if node < first_leaf:
            middle = (start[node] + end[node]) // 2
            _split(points, order, start[node], end[node], middle, axis)
            start[2 * node + 1], end[2 * node + 1] = start[node], middle
            start[2 * node + 2], end[2 * node + 2] = middle, end[node]
    return order, start, end, low, high, first_leaf


@kernel
def _gap(low, high, point):
    """Distance from a point to the nearest place of a box, 0 inside it."""
    gap = 0.0
    for axis in range(point.shape[0]):
        below, above = low[axis] - point[axis], point[axis] - high[axis]
        outside = above if above > below else below
        gap = outside if outside > gap else gap
    return gap


@kernel
def _reach(low, high, point):
    """Distance from a point to the farthest place of a box."""
    reach = 0.0
    for axis in range(point.shape[0]):
        below, above = point[axis] - low[axis], high[axis] - point[axis]
        far = above if above > below else below
        reach = far if far > reach else reach
    return reach


@kernel
def _distances(columns, start, end, point, distance):
    """Distances of the points start:end, one axis at a time so that the loops are vectorised."""
    n = end - start
    values, centre = columns[0, start:end], point[0]
    for i in range(n):
        distance[i] = abs(values[i] - centre)
    for axis in range(1, columns.shape[0]):
        values, centre = columns[axis, start:end], point[axis]
        for i in range(n):
            gap = abs(values[i] - centre)
            distance[i] = gap if gap > distance[i] else distance[i]


@kernel
def _keep_nearest(distance, n, nearest):
    """Insert the distances that are small enough into the ascending list of the nearest."""
    last = nearest.shape[0] - 1
    for i in range(n):
        if distance[i] < nearest[last]:
            at = last
            while at > 0 and nearest[at - 1] > distance[i]:
                nearest[at] = nearest[at - 1]
                at -= 1
            nearest[at] = distance[i]


@kernel
def kth_distances(points, k):
    """Distance of each point [n, d] to its k-th nearest other point, [n]."""
    order, start, end, low, high, first_leaf = _tree(points)
    columns = points[order].T.copy()
    result, nearest = np.empty(points.shape[0]), np.empty(k + 1)
    distance, waiting, gaps = np.empty(2 * LEAF), np.empty(64, np.int64), np.empty(64)
    for q in range(points.shape[0]):
        point = points[order[q]]
        nearest[:] = np.inf
        waiting[0], gaps[0], n_waiting = 0, 0.0, 1
        while n_waiting:
            n_waiting -= 1
            node, gap = waiting[n_waiting], gaps[n_waiting]
            while node < first_leaf and gap < nearest[k]:  # down to the nearer child
                near, far = 2 * node + 1, 2 * node + 2
                gap, other = _gap(low[near], high[near], point), _gap(low[far], high[far], point)
                if other < gap:
                    near, far, gap, other = far, near, other, gap
                waiting[n_waiting], gaps[n_waiting] = far, other
                n_waiting += 1
                node = near
            if gap < nearest[k]:
                _distances(columns, start[node], end[node], point, distance)
                _keep_nearest(distance, end[node] - start[node], nearest)
        result[order[q]] = nearest[k]
    return result


@kernel
def counts_within(points, radii):
    """How many points [n, d], itself included, lie within each point's radius [n], [n]."""
    order, start, end, low, high, first_leaf = _tree(points)
    columns = points[order].T.copy()
    counts = np.zeros(points.shape[0], np.int64)
    distance, waiting = np.empty(2 * LEAF), np.empty(64, np.int64)
    for q in range(points.shape[0]):
        point, radius, found = points[order[q]], radii[order[q]], 0
        waiting[0], n_waiting = 0, 1
        while n_waiting:
            n_waiting -= 1
            node = waiting[n_waiting]
            if _gap(low[node], high[node], point) > radius:
                continue
            if _reach(low[node], high[node], point) <= radius:
                found += end[node] - start[node]
            elif node < first_leaf:
                waiting[n_waiting], waiting[n_waiting + 1] = 2 * node + 1, 2 * node + 2
                n_waiting += 2
            else:
                _distances(columns, start[node], end[node], point, distance)
                for i in range(end[node] - start[node]):
                    found += distance[i] <= radius
        counts[order[q]] = found
    return counts


@kernel
def _first_of_buckets(values, scale, n_buckets):
    """For each equal slice of the range of ascending values, the index of its first value."""
    first = np.full(n_buckets + 1, values.size)
    bucket = 0
    for i in range(values.size):
        while bucket <= (values[i] - values[0]) * scale:
            first[bucket] = i
            bucket += 1
    return first


@kernel
def counts_within_sorted(values, radii):
    """``counts_within`` for ascending values [n] of one coordinate.

    A table of slices gives the neighbourhood of each end of the interval, bisection and then single
    steps the exact place: the comparison is that of the difference itself, not of a rounded end.
    """
    n = values.size
    counts, n_buckets = np.zeros(n, np.int64), BUCKETS * n
    width = values[n - 1] - values[0]
    scale = (n_buckets - 1) / width if width > 1e-290 else 0.0
    first = _first_of_buckets(values, scale, n_buckets)
    for i in range(n):
        value, radius = values[i], radii[i]
        if radius < 0:
            continue
        bucket = int(min((value - values[0] + radius) * scale, n_buckets - 1))
        end, most = first[bucket], first[bucket + 1]
        while end < most:
            middle = (end + most) >> 1
            inside = values[middle] - value <= radius
            end, most = (middle + 1, most) if inside else (end, middle)
        while end < n and values[end] - value <= radius:
            end += 1
        while values[end - 1] - value > radius:
            end -= 1
        bucket = int(max((value - values[0] - radius) * scale, 0.0))
        start, most = first[bucket], first[bucket + 1]
        while start < most:
            middle = (start + most) >> 1
            start, most = (
                (start, middle) if value - values[middle] <= radius else (middle + 1, most)
            )
        while start > 0 and value - values[start - 1] <= radius:
            start -= 1
        while value - values[start] > radius:
            start += 1
        counts[i] = end - start
    return counts
