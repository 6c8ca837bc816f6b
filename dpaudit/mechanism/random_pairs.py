"""Pairs of neighbouring inputs that are drawn, and moved towards those that move the output most.

Corners miss what happens between them: a function that is largest inside of its range, a record
that counts more in the middle of the others, a clip whose length depends on them.
"""

from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array

from .neighbours import SCALES, NeighbouringInputs, Pair, directions

SMALLEST, LARGEST = -2.0, 4.0  # powers of ten of lengths that are drawn where none is given
FARTHEST = 100.0  # distances of entries that no neighbour changes


class Candidate(NamedTuple):
    """Rows of which one is changed or left out; a value that is not records is one row."""

    rows: Array  # [n_rows, n_row]
    place: int  # index of the changed row
    other: Array  # [n_row], what takes its place under replace-one


class DrawnPairs:
    """Draws pairs of neighbours, and others near one that moved the output far."""

    def __init__(self, neighbours: NeighbouringInputs, seed: int) -> None:
        self._neighbours, self._options = neighbours, neighbours.options
        self._rng = np.random.default_rng([seed, 17])
        self._n_rows, row = 1, list(neighbours.options.shapes)
        if self._options.records:
            self._n_rows, row = row[0][0], [row[0][1:]]
        self._n_row = sum(int(np.prod(shape)) for shape in row)
        self._directions = directions(row, seed)

    def first(self) -> Candidate:
        """Neighbours anywhere in what the claim allows."""
        rows = self._rows()
        return Candidate(rows, int(self._rng.integers(self._n_rows)), self._other(rows))

    def near(self, one: Candidate) -> Candidate:
        """The same with some of it changed."""
        rows, rng = one.rows.copy(), self._rng
        place, other = one.place, one.other
        kind = rng.integers(6 if self._n_rows > 1 else 4)
        if kind == 0:
            rows[rng.integers(self._n_rows)] = self._row()
        elif kind == 1:
            rows[place] *= 2.0 ** rng.normal()
        elif kind == 2:
            rows += rng.normal(size=rows.shape) * np.abs(rows).max() * 10.0 ** rng.uniform(-2, 0)
        elif kind == 3:
            rows, other = (np.where(rng.random(v.shape) < 0.5, v, -v) for v in (rows, other))
        elif kind == 4:
            place = int(rng.integers(self._n_rows))
        else:
            rows[np.arange(self._n_rows) != place] *= 2.0 ** rng.normal()
        step = rng.normal(size=other.shape) * np.abs(other).max() * 10.0 ** rng.uniform(-2, 0)
        if self._options.sensitivity is not None:
            rows[0] = self._neighbours.on_grid(rows[0])
            return Candidate(rows, place, rows[0] + self._change(other - one.rows[0] + step))
        kept = (other, other + step, self._other(rows))
        return Candidate(rows, place, kept[rng.integers(len(kept))])

    def pair(self, one: Candidate) -> Pair:
        """Both inputs, within the range and on the grid of the dtype."""
        found, options = self._neighbours, self._options
        rows = np.clip(one.rows, -SCALES[-1], SCALES[-1])
        having, changed = found.value(rows.ravel()), rows.copy()
        changed[one.place] = one.other
        shapes, name = None, "two values that were drawn"
        if options.records:
            name = f"records that were drawn, of which number {one.place + 1} differs"
        if options.sensitivity is None and found.adjacency == "add-remove":
            changed[one.place] = 0.0
            if options.records:
                changed = np.delete(rows, one.place, axis=0)
                shapes = [(len(changed), *options.shapes[0][1:])]
        return Pair(name, found.value(changed.ravel(), shapes), having)

    def _rows(self) -> Array:
        """Records alike, each of its own, of two kinds, or along a line."""
        n, kind = self._n_rows, self._rng.integers(4)
        if n == 1 or kind == 0:
            return np.stack([self._row() for _ in range(n)])
        one, other = self._row(), self._row()
        if kind == 1:
            return np.outer(self._rng.choice([-1.0, 1.0], n) if self._coin() else np.ones(n), one)
        if kind == 2:
            return np.where(self._rng.random((n, 1)) < self._rng.random(), one, other)
        return one + np.linspace(0.0, 1.0, n)[:, None] * (other - one)

    def _row(self) -> Array:
        """The numbers of one record, or of a value."""
        options = self._options
        if options.sensitivity is not None:
            scale = self._rng.choice([0.0, 1.0, FARTHEST]) * options.sensitivity
            base: Array = scale * self._rng.normal(size=self._n_row)
            return self._neighbours.on_grid(base)
        if options.low is None and options.high is None:
            return self._free()
        low, high = self._rng.permutation(self._neighbours.ranges)[0]
        return low + (high - low) * self._share()

    def _share(self) -> Array:
        """Places in a range from 0 to 1: at its ends, anywhere, alike, or all but one alike."""
        n, rng = self._n_row, self._rng
        kind = rng.integers(4)
        if kind == 0:
            return rng.integers(2, size=n).astype(float)
        if kind == 1:
            return rng.random(n)
        share = np.full(n, rng.random())
        if kind == 3:
            share[rng.integers(n)] = rng.random()
        return share

    def _free(self) -> Array:
        """A vector of any length: along some numbers, a known direction, signs or anywhere."""
        n, rng = self._n_row, self._rng
        flats = (
            np.arange(n) == rng.integers(n),
            rng.permutation(n) < np.floor(n ** rng.random()),  # as sparse as values can be
            self._directions[rng.integers(len(self._directions))].flat,
            rng.choice([-1.0, 1.0], n),
            rng.normal(size=n),
        )
        flat = rng.choice([-1.0, 1.0]) * flats[rng.integers(len(flats))]
        length = 10.0 ** rng.uniform(SMALLEST, LARGEST)
        return np.asarray(flat * (length / np.linalg.norm(flat)))

    def _other(self, rows: Array) -> Array:
        """What a row is replaced by: another one, or at the stated distance."""
        if self._options.sensitivity is None:
            return self._row()
        n, rng = self._n_row, self._rng
        flat = rng.normal(size=n) if self._coin() else rng.choice([-1.0, 1.0], n)
        if self._coin():
            flat = flat * (np.arange(n) == rng.integers(n))
        return np.asarray(rows[0] + self._change(flat))

    def _change(self, flat: Array) -> Array:
        """A change of at most the stated distance, in this direction."""
        assert self._options.sensitivity is not None
        return self._neighbours.at_distance(flat, self._options.sensitivity)

    def _coin(self) -> bool:
        return bool(self._rng.random() < 0.5)
