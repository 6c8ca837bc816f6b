"""Sums of clipped gradients that can be differentiated many times over in little memory.

Through a chain of local steps slopes go from the last step back to the first. A step keeps its
model and its records alone, and what its slopes need is computed again when they are asked for.
"""

from typing import Any

import torch
from torch import Tensor

from .gradients import Gradients


def recomputed_sum(
    gradients: Gradients, X: Tensor, inputs: Tensor, labels: Tensor, clip_norm: float | None
) -> Tensor:
    """``Gradients.clipped_sum``, [m, d], which can be differentiated once.

    In X [m, d], inputs [m, b, ...] and labels, if these are probabilities [m, b, n_classes].
    """
    total: Tensor = _Recomputed.apply(gradients, clip_norm, X, inputs, labels)
    return total


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gradients: Gradients, clip_norm: float | None, X: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        ctx.asked = gradients, clip_norm
        ctx.save_for_backward(X, x, y)
        return gradients.clipped_sum(X, x, y, clip_norm)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (gradients, clip_norm), needed = ctx.asked, ctx.needs_input_grad[2:]
        with torch.enable_grad():
            pairs = zip(ctx.saved_tensors, needed, strict=True)
            X, x, y = (tensor.detach().requires_grad_(wanted) for tensor, wanted in pairs)
            total = gradients.clipped_sum(X, x, y, clip_norm, create_graph=True)
            wanted = [tensor for tensor in (X, x, y) if tensor.requires_grad]
            found = iter(torch.autograd.grad(total, wanted, slopes))
        return None, None, *(next(found) if wanted else None for wanted in needed)
