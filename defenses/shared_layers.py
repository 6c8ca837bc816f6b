"""Shared and local layers of models: coordinates in runs, so that what is one run is no copy."""

from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpaudit.defense import Gradient


def lengths_of(shared: Tensor) -> Tensor:
    """Of the runs of local and shared coordinates in turn; the first and the last are local."""
    is_shared, lengths = shared.unique_consecutive(return_counts=True)
    return pad(lengths, (int(is_shared[0]), int(is_shared[-1])))


class Runs(NamedTuple):
    """Coordinates of a model in a row, in order; where there are none, one run of none."""

    shared: list[slice]
    local: list[slice]


def runs_of(lengths: Tensor) -> Runs:
    return _slices(tuple(lengths.tolist()))


@lru_cache(maxsize=8)
def _slices(lengths: tuple[int, ...]) -> Runs:
    runs = [slice(a, b) for a, b in pairwise(accumulate(lengths, initial=0))]
    shared, local = ([r for r in some if r.start < r.stop] for some in (runs[1::2], runs[::2]))
    return Runs(shared or [slice(0, 0)], local or [slice(0, 0)])


def joined(X: Tensor, runs: list[slice]) -> Tensor:
    """The coordinates of X [..., d] in these runs; what is one run is no copy."""
    if len(runs) == 1:
        return X[..., runs[0]]
    return torch.cat([X[..., run] for run in runs], dim=-1)


def gradient_of(gradient: Gradient, X: Tensor, runs: list[slice]) -> Tensor:
    """Its coordinates in these runs, of which no others are asked for but those between."""
    first = runs[0].start
    G = gradient.part(X, slice(first, runs[-1].stop))
    if len(runs) == 1:
        return G
    return joined(G, [slice(run.start - first, run.stop - first) for run in runs])


def whole(S: Tensor, L: Tensor, runs: Runs) -> Tensor:
    """Models [..., d] from their shared and their local coordinates."""
    if not L.shape[-1]:
        return S
    parts = [*_pieces(S, runs.shared), *_pieces(L, runs.local)]
    return torch.cat([X for _, X in sorted(parts, key=itemgetter(0))], dim=-1)


def _pieces(X: Tensor, runs: list[slice]) -> list[tuple[int, Tensor]]:
    """Where each run of X begins in a model, and what is in it."""
    if len(runs) == 1:
        return [(runs[0].start, X)]
    parts = X.split([run.stop - run.start for run in runs], dim=-1)
    return [(run.start, part) for run, part in zip(runs, parts, strict=True)]
