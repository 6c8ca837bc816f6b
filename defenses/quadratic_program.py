"""The quadratic program of CGA, for all agents at once: a minimum over a quadrant."""

import torch
from torch import Tensor

RIDGE = 1e-13  # on the unit diagonal of a quadratic program: rows may be dependent, or equal
NEGATIVE = 1e-11  # below minus this a multiplier or a slack is negative, and no rounding
PATIENCE = 3  # exchanges of all at once without progress, before they are made one by one


def multipliers(Q: Tensor, c: Tensor, margin: float = 0.0) -> Tensor:
    """argmin over v >= margin of 1/2 v'Qv + c'v for each Q [..., m, m], c [..., m]: exact.

    Block principal pivoting: v = 0 or slack y = Qv + c = 0 in each place, and places of the wrong
    sign change sides, all at once while that makes fewer of them, else the last alone (Murty's
    rule, which ends for positive definite Q). Rows are scaled to a unit diagonal, so that a ridge
    that decides between equal rows is relative. Source: Judice and Pires 1994.
    """
    Q64, c64 = Q.double(), c.double()
    size = Q64.diagonal(dim1=-2, dim2=-1).sqrt()
    size = torch.where(size > 0, size, 1.0)
    c64 = (c64 + margin * Q64.sum(-1)) / size
    unit = Q64 / size[..., None] / size[..., None, :]
    eye = torch.eye(Q.shape[-1], dtype=unit.dtype, device=unit.device)
    scale = c64.abs().amax(-1, keepdim=True).clamp(min=1e-300) if c.shape[-1] else c64
    free = _pivoted(unit + RIDGE * eye, c64 / scale)
    return (margin + free * scale / size).to(Q.dtype)


def _pivoted(Q: Tensor, c: Tensor) -> Tensor:
    """``multipliers`` of positive definite Q with a unit diagonal, c at most 1, and v >= 0."""
    m = c.shape[-1]
    eye, places = torch.eye(m, dtype=torch.bool, device=c.device), torch.arange(m, device=c.device)
    free = torch.zeros_like(c, dtype=torch.bool)  # where v > 0 and y = 0
    fewest = torch.full_like(c[..., :1], m + 1)
    patience = torch.full_like(fewest, PATIENCE)
    v = torch.zeros_like(c)
    for _ in range(20 * (m + 1)):
        both = free[..., None] & free[..., None, :]
        system = torch.where(both, Q, (eye & ~both).to(Q))
        v = torch.linalg.solve(system, torch.where(free, -c, 0.0)[..., None])[..., 0]
        y = (Q @ v[..., None])[..., 0] + c
        wrong = torch.where(free, v, y) < -NEGATIVE
        count = wrong.sum(-1, keepdim=True).to(fewest)
        if not wrong.any():
            break
        fewer = count < fewest
        fewest = torch.where(fewer, count, fewest)
        patience = torch.where(fewer, float(PATIENCE), patience - 1)
        last = (wrong * (places + 1)).amax(-1, keepdim=True) == places + 1
        free = free ^ torch.where(patience >= 0, wrong, wrong & last)
    return v.clamp(min=0)
