"""What each use of a record adds to the rounds of a view, and what bounds all uses together.

A use u moves the whitened view by x_u times a known column s_u, with x_u drawn or certain: uses of
one inclusion share their draw. Where uses of several inclusions meet in a round, the view is a
mixture over all draws with correlated shifts. It is a part of releases that are accounted one by
one: with diag(y) - H psd, H being the Gram matrix of all columns, sum_u s_u s_u' / y_u is at most
the identity, so that

    sum_u x_u s_u + noise = sum_u s_u / sqrt(y_u) (x_u sqrt(y_u) + own noise) + what is left of it

tells no more than, for each inclusion, a Gaussian release of mu^2 = the sum of its uses' y_u,
sampled as the inclusion is. It holds for any directions of the uses, and for any law of the draws.

A record whose gradients have one direction wherever they are taken moves the view by

    sum_j x_j c_j + noise,    c_j = sum of the s_u of inclusion j,

of which an adversary may read one number, along w: the shifts w'c_j that are drawn, under noise of
variance 1. That is a lower end (``met``). It is far above what inclusions tell one by one where
their columns are alike, as those of local steps are whose noise is drawn once.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from .gradient_directions import certified

Use = tuple[int, int, int]  # of the record: by which inclusion, in which round, at which point
Columns = Mapping[Use, Tensor]  # what each use adds to a round, [rank]


def grams(
    rounds: Iterable[Columns], group: Callable[[Use], int]
) -> dict[int, tuple[list[Use], Tensor]]:
    """Of each group of uses: these, and the Gram matrix of their columns over all rounds."""
    rounds, uses = list(rounds), dict[int, dict[Use, int]]()  # group -> use -> its place
    for columns in rounds:
        for use in columns:
            places = uses.setdefault(group(use), {})
            places.setdefault(use, len(places))
    found = {j: torch.zeros(len(p), len(p), dtype=torch.float64) for j, p in uses.items()}
    for columns in rounds:
        groups: dict[int, list[Use]] = {}
        for use in columns:
            groups.setdefault(group(use), []).append(use)
        for j, here in groups.items():
            S = torch.stack([columns[use] for use in here])
            at = torch.tensor([uses[j][use] for use in here])
            found[j][at[:, None], at] += S @ S.mT
    return {j: (list(uses[j]), H) for j, H in found.items()}


class Together(NamedTuple):
    """All uses of a view, and the Gram matrix of their columns over all rounds."""

    uses: list[Use]
    H: Tensor

    @classmethod
    def of(cls, rounds: Iterable[Columns]) -> "Together":
        (found,) = grams(rounds, lambda use: 0).values() or [([], torch.zeros(0, 0))]
        return cls(*found)

    def independent(self) -> dict[int, float]:
        """By inclusion, mu^2 of releases of which the view is a part, as above."""
        squares: dict[int, float] = {}
        y = certified(self.H).y.clamp(min=0)
        for use, square in zip(self.uses, y.tolist(), strict=True):
            squares[use[0]] = squares.get(use[0], 0.0) + square
        return squares

    def inclusions(self, n: int) -> Tensor:
        """The Gram matrix of the c_j of inclusions 1 to n, [n, n]."""
        at = torch.tensor([use[0] - 1 for use in self.uses], dtype=torch.int64)
        rows = torch.zeros(n, len(at), dtype=self.H.dtype).index_add(0, at, self.H)
        return torch.zeros(n, n, dtype=self.H.dtype).index_add(1, at, rows)


class Met(NamedTuple):
    """A number that shows several inclusions: each moves it by no less than ``shift``."""

    shift: float  # in standard deviations of its noise
    n: int  # inclusions


def met(G: Tensor) -> Met:
    """The number along the sum of all c_j, of their Gram matrix [n, n]: of those it shows most.

    The record's gradient is shorter where it would move it by more, and 0 where by less.
    """
    length = float(G.sum().clamp(min=0).sqrt())
    if length == 0:
        return Met(0.0, 0)
    shifts = (G.sum(1) / length).sort(descending=True).values
    most = int((shifts * torch.arange(1, len(shifts) + 1)).argmax())
    return Met(max(0.0, float(shifts[most])), most + 1)


def parts(G: Tensor, least: float) -> list[Tensor]:
    """Inclusions that hang together by entries above ``least``: noise of others is not theirs."""
    _, part = connected_components((G.abs() > least).numpy(), directed=False)
    by_part = torch.from_numpy(np.argsort(part, kind="stable"))
    return list(by_part.split(np.bincount(part).tolist()))
