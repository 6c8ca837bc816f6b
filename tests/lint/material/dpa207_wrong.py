"""Noise in integers and in half precision."""

import numpy as np
import torch


def by_dtype_of_the_data(arrays, epsilon):
    for array in arrays:
        noise = np.random.laplace(0, 1 / epsilon, array.shape)
        noise = noise.astype(array.dtype)  # hint: DPA207
        array += noise


def rounded(count, sensitivity, epsilon):
    return count + int(np.random.laplace(0, sensitivity / epsilon))  # hint: DPA207


def in_half(g, clip_norm, sigma):
    g = g / max(1.0, g.norm() / clip_norm)
    return g + (sigma * clip_norm * torch.randn_like(g)).half()  # hint: DPA207


def drawn_in_half(g, clip_norm, sigma):
    g = g / max(1.0, g.norm() / clip_norm)
    noise = torch.randn(g.shape, dtype=torch.float16)  # hint: DPA207
    return g + sigma * clip_norm * noise
