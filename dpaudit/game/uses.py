"""What each use of a record adds to the rounds of a view, and what bounds all uses together.

A use u moves the whitened view by x_u times a known column s_u, with x_u drawn or certain: uses of
one inclusion share their draw. Where uses of several inclusions meet in a round, the view is a
mixture over all draws with correlated shifts. It is a part of releases that are accounted one by
one: with diag(y) - H psd, H being the Gram matrix of all columns, sum_u s_u s_u' / y_u is at most
the identity, so that

    sum_u x_u s_u + noise = sum_u s_u / sqrt(y_u) (x_u sqrt(y_u) + own noise) + what is left of it

tells no more than, for each inclusion, a Gaussian release of mu^2 = the sum of its uses' y_u,
sampled as the inclusion is. It holds for any directions of the uses, and for any law of the draws.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from .directions import certified

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


def independent(rounds: Iterable[Columns]) -> dict[int, float]:
    """By inclusion, mu^2 of releases of which the view is a part, as above."""
    squares: dict[int, float] = {}
    for uses, H in grams(rounds, lambda use: 0).values():
        y = certified(H).y.clamp(min=0)
        for use, square in zip(uses, y.tolist(), strict=True):
            squares[use[0]] = squares.get(use[0], 0.0) + square
    return squares
