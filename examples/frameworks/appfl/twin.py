"""The model that appfl sends, corrected: the distance is that of all local steps together."""

import torch

CLIP, RATE, EPSILON = 1.0, 0.01, 1.0


def ten_steps(gradients):
    """Weights after one step for each gradient, [steps, d]; buffers are not sent."""
    norms = gradients.abs().sum(1, keepdim=True)
    weights = -RATE * (gradients * (CLIP / norms).clamp(max=1.0)).sum(0)
    scale = 2 * CLIP * RATE * len(gradients) / EPSILON
    return weights + torch.distributions.Laplace(0.0, scale).sample(weights.shape)
