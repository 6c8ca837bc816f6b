"""Pairs of neighbouring inputs that an audit tries: corners of what the claim allows.

Without a stated distance any two values are neighbours under replace-one, and any value and zero
under add-remove: the function is trusted to clip by itself, and the search finds at which length it
does. With a distance, two values differ by that much in a norm. With records, one row differs.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.claim import Adjacency
from dpaudit.files.mechanism_file import FLOATS, MechanismOptions, Shape

from .function import Value

OTHERS = {  # values of unchanged records, in units of the changed one
    "zeros": [0.0],
    "its like": [1.0],
    "its opposite": [-1.0],
    "its like and its opposite": [-1.0, 1.0],
}
SCALES = 10.0 ** np.arange(-3.0, 7.0)  # lengths at which a clip is looked for
# Lengths far beyond these: in between, and where squares overflow in single precision.
BEYOND = {"float64": (1e12, 1e22, 1e40, 1e160), "float32": (1e12, 1e22, 1e37)}
NEAR = (0.5, 0.999, 1.001, 2.0)  # times the length at which a function clips
PLAIN_SCALES = (1.0, 1e3)  # lengths that are tried where no clip can be found
LARGEST_HALF = 60_000.0  # below the largest number of float16
SHORT = ("int8", "uint8", "int16")  # integers that data reach the ends of
TINY = 1e-300
FAR = 10.0  # distances of entries that no neighbour changes


class Pair(NamedTuple):
    """Two neighbouring inputs, and what they are called."""

    name: str
    without: Value
    having: Value


class Direction(NamedTuple):
    """A corner of a ball, as one flat vector of signs, ones or zeros [n]."""

    name: str
    flat: Array


def directions(shapes: Sequence[Shape], seed: int) -> list[Direction]:
    """Corners that mechanisms are known to fail at, of all tensors together and of each."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    n = sum(sizes)
    one, alike, half, last = np.zeros(n), np.ones(n), np.ones(n), np.ones(n)
    one[:1], half[n // 2 :], last[-1:] = 1.0, -1.0, -1.0
    first = np.ones(n)
    first[1:] = -1.0
    random = np.random.default_rng([seed, 7]).standard_normal(n)
    found = [
        Direction("one coordinate", one),
        Direction("all coordinates alike", alike),
        Direction("signs in turn", np.resize([1.0, -1.0], n)),
        Direction("half of the signs", half),
        Direction("all signs but the last", last),
        Direction("the first sign alone", first),
        Direction("a random direction", random),
    ]
    if len(sizes) > 1:
        ends = np.cumsum(sizes)
        for i, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            flat = np.zeros(n)
            flat[end - size : end] = 1.0
            found.append(Direction(f"tensor {i + 1} alone", flat))
    return _distinct(found)


def _distinct(found: list[Direction]) -> list[Direction]:
    """Without those that are a multiple of an earlier one, as all are of a single number."""
    kept: list[Direction] = []
    for one in found:
        length = float(np.linalg.norm(one.flat))
        if length == 0:
            continue
        units = (other.flat / np.linalg.norm(other.flat) for other in kept)
        if all(abs(abs(float(unit @ one.flat)) - length) > 1e-9 * length for unit in units):
            kept.append(one)
    return kept


class NeighbouringInputs:
    """All pairs that are tried, for one claim."""

    def __init__(self, options: MechanismOptions, adjacency: Adjacency, seed: int) -> None:
        self.options, self.adjacency, self._seed = options, adjacency, seed
        self.directions = directions(options.shapes, seed)

    @property
    def finds_clip(self) -> bool:
        """Whether lengths are free, so that the function's own clip is looked for."""
        o = self.options
        return o.sensitivity is None and not o.records and o.low is None and o.high is None

    @property
    def zero(self) -> Value:
        return self.value(np.zeros(sum(int(np.prod(shape)) for shape in self.options.shapes)))

    def value(self, flat: Array, shapes: Sequence[Shape] | None = None) -> Value:
        """Tensors of these numbers, within the range and on the grid of the dtype."""
        o = self.options
        if o.low is not None or o.high is not None:
            flat = np.clip(flat, o.low, o.high)
        if o.dtype not in FLOATS:
            limits = np.iinfo(o.dtype)
            flat = np.clip(np.rint(flat), float(limits.min), float(limits.max)).astype(np.int64)
        elif o.dtype == "float16":
            flat = np.clip(flat, -LARGEST_HALF, LARGEST_HALF)
        parts, start = [], 0
        for shape in shapes or o.shapes:
            size = int(np.prod(shape))
            parts.append(flat[start : start + size].reshape(shape))
            start += size
        return tuple(parts)

    def at(self, direction: Direction, length: float) -> Value:
        """A value of this L2 length in a direction."""
        return self.value(direction.flat * (length / float(np.linalg.norm(direction.flat))))

    def along(self, direction: Direction, lengths: Sequence[float]) -> Iterator[Pair]:
        """Pairs of these lengths in a direction: a value and zero, or its opposite."""
        for length in lengths:
            value = self.at(direction, length)
            name = f"{direction.name}, length {length:.4g}"
            if self.adjacency == "replace-one":
                opposite = self.value(-direction.flat * (length / np.linalg.norm(direction.flat)))
                yield Pair(f"{name}, and its opposite", opposite, value)
            yield Pair(f"{name}, and zero", self.zero, value)

    def on_grid(self, flat: Array) -> Array:
        """The nearest numbers that the dtype has, where they are integers."""
        return flat if self.options.dtype in FLOATS else np.rint(flat)

    def at_distance(self, flat: Array, distance: float) -> Array:
        """A change in this direction that is so long; of integers, at most so long."""
        norm = self.options.norm
        change = np.asarray(flat * (distance / max(_length(flat, norm), TINY)))
        if self.options.dtype in FLOATS:
            return change
        whole = np.trunc(change)
        if norm == "linf":
            return whole
        order = np.argsort(np.abs(whole) - np.abs(change), kind="stable")
        power = 1 if norm == "l1" else 2
        more = (np.abs(whole[order]) + 1) ** power - np.abs(whole[order]) ** power
        left = distance**power * (1 + 1e-12) - float((np.abs(whole) ** power).sum())
        n = int(np.searchsorted(np.cumsum(more), left, side="right"))
        whole[order[:n]] += np.sign(change[order[:n]])
        return whole

    def fixed(self) -> list[Pair]:
        """The pairs of a domain whose lengths are known."""
        if self.options.records:
            found = self._records()
        elif self.options.sensitivity is not None:
            found = self._at_distance(self.options.sensitivity)
        else:
            found = self._corners()
        return _without_repeats(found)

    @property
    def examples(self) -> list[Value]:
        """Some inputs that are called, at plain lengths; 0 is the first."""
        if not self.finds_clip:
            return [self.zero, *(value for pair in self.fixed() for value in pair[1:])]
        pairs = (p for one in self.directions for p in self.along(one, PLAIN_SCALES))
        return [self.zero, *(pair.having for pair in pairs)]

    def _at_distance(self, distance: float) -> Iterator[Pair]:
        n = len(self.directions[0].flat)
        ramp = FAR * distance * np.arange(n)
        alone = np.where(np.arange(n) == 0, FAR * distance, 0.0)
        bases = {"": np.zeros(n), " of values far apart": ramp, " beside a large one": alone}
        part = distance / 3  # shows the rest of a grid whose steps are as wide as the distance
        yield Pair(
            f"{self.directions[0].name}, at distance {part:g}",
            self.zero,
            self.value(self.at_distance(self.directions[0].flat, part)),
        )
        for name, base in bases.items():
            for direction in self.directions if not name else self.directions[:3]:
                change = self.at_distance(direction.flat, distance)
                called = f"{direction.name}{name}, at distance {distance:g}"
                for shift in (0.0, 0.5):
                    low = self.on_grid(base - shift * change)
                    yield Pair(called, self.value(low), self.value(low + change))
        yield from self._at_ends(distance)

    def _at_ends(self, distance: float) -> Iterator[Pair]:
        """The largest and the least integers of a short dtype, where arithmetic wraps around."""
        if self.options.dtype not in SHORT:
            return
        limits = np.iinfo(self.options.dtype)
        for direction in self.directions[:3]:
            change = self.at_distance(direction.flat, distance)
            for end in (limits.max - np.abs(change), limits.min + np.abs(change)):
                called = f"{direction.name} of the last integers, at distance {distance:g}"
                yield Pair(called, self.value(end), self.value(end + change))

    @property
    def ranges(self) -> list[tuple[float, float]]:
        """The range of a number; of one without an end, up to some plain lengths."""
        low, high = self.options.low, self.options.high
        if low is not None and high is not None:
            return [(low, high)]
        if low is not None:
            return [(low, low + length) for length in PLAIN_SCALES]
        return [((high or 0.0) - length, high or 0.0) for length in PLAIN_SCALES]

    def _corners(self) -> Iterator[Pair]:
        """Corners of a range: every number at one end, and some of them at the other end."""
        n, absent = len(self.directions[0].flat), self.adjacency == "add-remove"
        for low, high in self.ranges:
            middle, half = (low + high) / 2, (high - low) / 2
            for direction in self.directions:
                top = middle + half * np.sign(direction.flat)
                without = np.zeros(n) if absent else 2 * middle - top
                name = f"{direction.name} at the ends of {low:g} to {high:g}"
                yield Pair(name, self.value(without), self.value(top))
            alone = np.where(np.arange(n) == 0, high, low)
            without = np.zeros(n) if absent else np.full(n, low)
            name = f"one number at the other end of {low:g} to {high:g}"
            yield Pair(name, self.value(without), self.value(alone))

    def _records(self) -> Iterator[Pair]:
        """One row changes among rows of zeros, rows like it, or rows against it."""
        (shape,), removed = self.options.shapes, self.adjacency == "add-remove"
        n, row = shape[0], shape[1:]
        ends = [abs(end) for end in (self.options.low, self.options.high) if end is not None]
        for direction in directions([row], self._seed):
            for size in [max(ends)] if ends else PLAIN_SCALES:
                changed = direction.flat * (size / np.abs(direction.flat).max())
                for name, signs in OTHERS.items():
                    having = np.resize(signs, n)[:, None] * changed
                    without = having.copy()
                    having[0], without[0] = changed, -changed
                    called = f"a record of {direction.name}, size {size:g}, among {name}"
                    left = self.value(without.ravel())
                    if removed:
                        left = self.value(without[1:].ravel(), [(n - 1, *row)])
                    yield Pair(called, left, self.value(having.ravel()))


def _length(flat: Array, norm: str) -> float:
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    return float(np.linalg.norm(flat, order))


def _without_repeats(pairs: Iterator[Pair]) -> list[Pair]:
    """Pairs of different values, once each."""
    seen: set[tuple[bytes, ...]] = set()
    kept = []
    for pair in pairs:
        key = tuple(part.tobytes() for part in (*pair.without, *pair.having))
        if key not in seen and not all(map(np.array_equal, pair.without, pair.having)):
            seen.add(key)
            kept.append(pair)
    return kept
