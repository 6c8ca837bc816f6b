"""Clipping of stacked vectors."""

from typing import Literal

import torch
from torch import Tensor


def clip(vectors: Tensor, clip_norm: float, norm: Literal[1, 2] = 2) -> Tensor:
    """Scale each vector down to norm at most ``clip_norm``; shorter vectors pass unchanged.

    Args:
        vectors: [..., d], one vector per leading index.
        clip_norm: C > 0, in the unit of the vectors; infinity clips nothing.
        norm: 2 (L2) or 1 (L1).

    Returns:
        [..., d], same dtype and device. The sum over any one leading axis has sensitivity C in
        this norm when one vector is added or removed, and 2C when one is replaced.

    Raises:
        ValueError: ``clip_norm`` is not positive.

    Source: Abadi et al. 2016, Algorithm 1, arXiv:1607.00133.
    """
    if not clip_norm > 0:
        raise ValueError(f"clip_norm must be positive, got {clip_norm}")
    return vectors * clip_weights(norms(vectors, norm), clip_norm)


def norms(vectors: Tensor, norm: Literal[1, 2]) -> Tensor:
    """L1 (1) or L2 norm of each vector of [..., d], [..., 1]."""
    if norm == 1:  # three times as fast as a norm, and summed in pairs
        return vectors.abs().sum(dim=-1, keepdim=True)
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def clip_weights(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / norm) for each norm [...]; 1 for a zero norm."""
    if clip_norm == float("inf"):
        return torch.ones_like(norms)
    return clip_norm / norms.clamp(min=clip_norm)
