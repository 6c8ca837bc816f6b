"""Seeds that repeat noise."""

import jax
import numpy as np
import torch

SEED = 7


def of_the_library(x, clip_norm, sigma):
    np.random.seed(0)  # hint: DPA211
    x = x / max(1.0, np.linalg.norm(x) / clip_norm)
    return x + np.random.normal(0, sigma, x.shape)


def of_a_generator(x, clip_norm, sigma):
    generator = torch.Generator().manual_seed(SEED)  # hint: DPA211
    x = x / max(1.0, x.norm() / clip_norm)
    return x + sigma * torch.randn(x.shape, generator=generator)


def add_noise(x, scale):
    rng = np.random.default_rng(0)  # hint: DPA211
    return x + scale * rng.standard_normal(x.shape)


def mechanism(x):
    torch.manual_seed(0)  # hint: DPA211
    return x + 2.0 * torch.randn_like(x)


def in_each_round(x, clip_norm, sigma, n_rounds, seed):
    for _ in range(n_rounds):
        torch.manual_seed(seed)  # hint: DPA211
        x = x / max(1.0, x.norm() / clip_norm)
        x = x + sigma * torch.randn_like(x)
    return x


def key_that_is_not_split(x, key, clip_norm, sigma, n_rounds):
    for _ in range(n_rounds):
        x = x / jax.numpy.maximum(1.0, jax.numpy.linalg.norm(x) / clip_norm)
        x = x + sigma * jax.random.normal(key, x.shape)  # hint: DPA211
    return x
