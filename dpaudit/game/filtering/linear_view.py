"""A view of all rounds as one linear system, for those who check a leak without the filter.

    y = A r + B z,    r: the record's uses, z: white noise

A file of it holds A as ``record`` [n_observations, n_uses], B as ``noise`` [n_observations,
n_draws] and the inclusion of each use as ``inclusion`` [n_uses]. Of a large view A is whitened
already, and there is no B: a row is an innovation of the filter.
"""

import hashlib
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpaudit.game.matrices import Array

from .leak import Columns, Use


class LinearView(NamedTuple):
    """The matrices of a view."""

    uses: list[Use]
    record: Array  # [n_observations, n_uses]
    noise: Array | None  # [n_observations, n_draws]; None: white, and not given

    @classmethod
    def stacked(cls, uses: list[Use], blocks: Sequence[tuple[Array, Array]]) -> "LinearView":
        """From the effects of uses and of draws so far, [units, n_observations] of each round."""
        n_draws = max((len(noise) for _, noise in blocks), default=0)
        sides = [
            np.concatenate([np.pad(own, ((0, n - len(own)), (0, 0))) for own in side], axis=1).T
            for n, side in zip((len(uses), n_draws), zip(*blocks, strict=True), strict=True)
        ]
        return cls(uses, *sides)

    @classmethod
    def whitened(cls, rounds: Sequence[Columns]) -> "LinearView":
        """From the columns of each round's innovations, turned to have as few rows as columns."""
        uses = list(dict.fromkeys(use for columns in rounds for use in columns))
        place, rows = {use: i for i, use in enumerate(uses)}, [np.zeros((0, len(uses)))]
        for columns in rounds:
            if columns:
                turned = np.linalg.qr(np.stack([c.numpy() for c in columns.values()], 1), mode="r")
                rows.append(np.zeros((len(turned), len(uses))))
                rows[-1][:, [place[use] for use in columns]] = turned
        return cls(uses, np.concatenate(rows), None)

    def only(self, inclusions: range) -> "LinearView":
        """The view of a record that has only these inclusions."""
        chosen = [i for i, (j, *_) in enumerate(self.uses) if j in inclusions]
        return self._replace(uses=[self.uses[i] for i in chosen], record=self.record[:, chosen])

    def file(self, displacement: float, filled: int) -> tuple[str, bytes]:
        """Name and content, the same for the same view; the name holds the content's SHA-256.

        Args:
            displacement: what a draw of a record displaces, of which releases state one unit.
            filled: layers that the record moves alike.
        """
        arrays = {
            "record": self.record * (filled**0.5 / displacement),
            "inclusion": np.array([j for j, *_ in self.uses], np.int64),
        }
        if self.noise is not None:
            arrays["noise"] = self.noise
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        return f"artifacts/linear-view-{digest}.npz", content.getvalue()
