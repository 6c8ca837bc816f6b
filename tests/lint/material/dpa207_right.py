"""The sum is cast, which is processing of what was released; noise is not."""

import numpy as np
import torch


def cast_afterwards(array, sensitivity, epsilon):
    noised = array + np.random.laplace(0, sensitivity / epsilon, array.shape)
    return noised.astype(array.dtype)


def rounded_afterwards(count, sensitivity, epsilon):
    return int(count + np.random.laplace(0, sensitivity / epsilon))


def in_the_precision_of_a_tensor(g, clip_norm, sigma):
    g = g / max(1.0, g.norm() / clip_norm)
    noise = torch.normal(0, sigma * clip_norm, g.shape, device=g.device, dtype=g.dtype)
    return g + noise.to(g.device)
