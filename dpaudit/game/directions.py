"""The worst directions that one record's gradients can take, wherever they are taken.

A record is used several times: at different models in one round, in several rounds. Each use moves
the view along a known column, by a vector u_t of length at most 1 that is the use's own: gradients
differ by the model they are taken at. Between them lie inner products, and the leak is

    mu^2 = S(H) = max { sum_st H_st <u_s, u_t> : |u_t| <= 1 } = max { <H, X> : X psd, diag X <= 1 },

with H the Gram matrix of the whitened columns; the second equality holds for models of at least as
many coordinates as uses. 1'H1 <= S(H) <= sum |H_st|, with equality where no H_st is negative.

Source: the participation bounds of Choquette-Choo et al. 2023, arXiv:2211.06530; low-rank ascent as
in Burer and Monteiro 2003.
"""

from math import ceil, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 3000  # uses of which the program is solved; beyond, the ends that need no solution
SWEEPS = 500
CLOSE = 1e-10  # relative gain of a sweep at which it ends


class Squared(NamedTuple):
    """mu^2 from both sides: attained by directions that were found, and proven by a dual."""

    low: float
    high: float


def worst_directions(H: Tensor, d: int) -> Squared:
    """S(H) of a Gram matrix [k, k], for gradients of ``d`` coordinates.

    ``low`` is attained by directions in d coordinates. ``high`` holds for any d.
    """
    k = len(H)
    same = float(H.sum())  # one direction for all uses
    if k == 0 or float(H.min()) >= 0:
        return Squared(same, same)
    high = float(H.abs().sum())
    apart = float(H.diagonal().sum()) if d >= k else same  # a coordinate for each use
    if d < 2 or k > MOST:
        return Squared(max(same, apart), high)
    V = _ascended(H, min(d, ceil(sqrt(2 * k)) + 1))
    products = H @ V
    low = float((products * V).sum())
    y = (products * V).sum(dim=1)  # at the maximum diag(y) - H is psd
    least = float(torch.linalg.eigvalsh(torch.diag(y) - H)[0])
    dual = float(y.clamp(min=0).sum()) + k * max(0.0, -least)
    low = max(same, apart, low)
    return Squared(low, max(low, min(high, dual)))


def _ascended(H: Tensor, rank: int) -> Tensor:
    """Unit vectors [k, rank], each in turn set to the best one given the others."""
    generator = torch.Generator().manual_seed(0)
    V = torch.randn(len(H), rank, generator=generator, dtype=H.dtype)
    V = V / V.norm(dim=1, keepdim=True)
    value = float((V * (H @ V)).sum())
    for _ in range(SWEEPS):
        for i in range(len(H)):
            g = H[i] @ V - H[i, i] * V[i]
            length = g.norm()
            if length > 0:
                V[i] = g / length
        before, value = value, float((V * (H @ V)).sum())
        if value - before <= CLOSE * abs(value):
            break
    return V
