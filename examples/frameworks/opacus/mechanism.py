"""The noised sum of one step of Opacus 1.6: clip norm 1 for each record, noise multiplier 1."""

import torch
from opacus.optimizers import DPOptimizer


def noised_sum(gradients):
    """Of the gradients of each record, [n, d]."""
    weights = torch.nn.Parameter(torch.zeros(gradients.shape[1:], dtype=gradients.dtype))
    weights.grad_sample = gradients.clone()
    optimizer = DPOptimizer(
        torch.optim.SGD([weights], lr=1.0),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=None,
        loss_reduction="sum",
    )
    optimizer.pre_step()
    return weights.grad
