"""The worst directions that one record's gradients can take, wherever they are taken.

A record is used several times: at different models in one round, in several rounds. Each use moves
the view along a known column, by a vector u_t of length at most 1 that is the use's own: gradients
differ by the model they are taken at. Between them lie inner products, and the leak is

    mu^2 = S(H) = max { sum_st H_st <u_s, u_t> : |u_t| <= 1 } = max { <H, X> : X psd, diag X <= 1 },

with H the Gram matrix of the whitened columns; the second equality holds for models of at least as
many coordinates as uses. 1'H1 <= S(H) <= sum |H_st|, with equality where no H_st is negative.

Weights y with diag(y) - H psd are a certificate: <H, X> <= <diag(y), X> <= sum y. More than that,
the view is then no more than independent releases of the uses, of mu_t^2 = y_t, and noise
(``independent``).

Source: the participation bounds of Choquette-Choo et al. 2023, arXiv:2211.06530; low-rank ascent as
in Burer and Monteiro 2003; the program by its dual barrier, Newton's method as in Boyd and
Vandenberghe 2004, section 11.
"""

from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv, dpotrf, dpotri
from torch import Tensor

MOST = 1000  # uses of which the program is solved; beyond, the ends that need no solution
SWEEPS = 500
CLOSE = 1e-10  # relative gain of a sweep at which it ends
GAP = 1e-6  # between the two ends, relative: where the program counts as solved
NEWTON = 60  # steps at most
SHRINKS = 0.1  # the gap that a step aims at, of the gap before
ROUNDING = 1e-10  # of the sum: negative entries that together are less are rounding

Array = NDArray[np.float64]


class Squared(NamedTuple):
    """mu^2 from both sides: attained by directions that were found, and proven by a dual."""

    low: float
    high: float


class Certified(NamedTuple):
    """S(H) for models of any dimension, with weights y [k] for which diag(y) - H is psd."""

    low: float
    high: float  # sum y, or sum |H| where that is less
    y: Tensor


def worst_directions(H: Tensor, d: int) -> Squared:
    """S(H) of a Gram matrix [k, k], for gradients of ``d`` coordinates.

    ``low`` is attained by directions in d coordinates. ``high`` holds for any d.
    """
    k = len(H)
    same = float(H.sum())  # one direction for all uses
    if k == 0 or float(H.min()) >= 0:
        return Squared(same, same)
    solved = certified(H)
    if d >= k:
        return Squared(solved.low, solved.high)
    if d < 2 or k > MOST:
        return Squared(same, solved.high)
    V = _ascended(H, min(d, ceil(sqrt(2 * k)) + 1))
    low = max(same, float((H @ V * V).sum()))
    return Squared(low, max(low, solved.high))


def certified(H: Tensor, gap: float = GAP) -> Certified:
    """S(H) of a Gram matrix [k, k] from both sides, to a relative ``gap`` unless k > ``MOST``."""
    if not H.isfinite().all():
        raise ValueError("a Gram matrix has entries that are not finite")
    sums = H.abs().sum(1)
    same, most = float(H.sum()), float(sums.sum())
    if most - same <= ROUNDING * most:
        return Certified(same, most, sums)
    apart = float(H.diagonal().sum())  # a coordinate for each use
    if len(H) > MOST:
        return Certified(max(same, apart), most, sums)
    low, y = _by_barrier(H.double().numpy(), gap)
    low, high = max(low, same, apart), float(y.sum())
    if most < high:
        return Certified(low, max(low, most), sums)
    return Certified(low, max(low, high), torch.from_numpy(y))


def _by_barrier(H: Array, gap: float) -> tuple[float, Array]:
    """Newton's method on sum y - t logdet(diag y - H), with t falling.

    A value that is attained, by D Z^-1 D with Z = diag(y) - H and D so that its diagonal is 1; and
    y, for which Z has a Cholesky factor, raised by what that leaves open to rounding.
    """
    k, scale = len(H), float(np.trace(H)) / len(H)
    H = H / scale
    y = 1.1 * np.abs(H).sum(1) + 1e-3
    low, best, high = -inf, y, inf
    for _ in range(NEWTON):
        L, _ = dpotrf(np.diag(y) - H, lower=1, clean=1)
        inverse, _ = dpotri(L, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        w = inverse.diagonal()
        D = 1 / np.sqrt(w)
        low = max(low, float(D @ (H * inverse) @ D))
        if y.sum() < high:
            best, high = y, float(y.sum())
        if high - low <= gap * low:
            break
        t = SHRINKS * (high - low) / k
        _, step, failed = dposv(inverse**2, w - 1 / t, lower=1)
        if failed or not np.isfinite(step).all():
            break
        y = y + _within(H, y, step) * step
    rounding = k * np.finfo(float).eps * float(best.max())
    return low * scale, (best + rounding) * scale


def _within(H: Array, y: Array, step: Array) -> float:
    """How much of a step keeps diag(y) - H positive definite, with some room."""
    part = 1.0
    while dpotrf(np.diag(y + part * step) - H, lower=1)[1] != 0:
        part *= 0.7
    return part if part == 1 else 0.9 * part


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
