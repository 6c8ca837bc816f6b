"""Seeds that are set once, change with the round, or are of something public."""

import jax
import numpy as np
import torch


def once_before_the_rounds(x, clip_norm, sigma, n_rounds):
    rng = np.random.default_rng(0)
    for _ in range(n_rounds):
        x = x / max(1.0, np.linalg.norm(x) / clip_norm)
        x = x + rng.normal(0, sigma, x.shape)
    return x


def of_the_round(x, clip_norm, sigma, n_rounds, seed):
    for k in range(n_rounds):
        torch.manual_seed(seed + k)
        x = x / max(1.0, x.norm() / clip_norm)
        x = x + sigma * torch.randn_like(x)
    return x


def split(x, key, clip_norm, sigma, n_rounds):
    for _ in range(n_rounds):
        key, own = jax.random.split(key)
        x = x / jax.numpy.maximum(1.0, jax.numpy.linalg.norm(x) / clip_norm)
        x = x + sigma * jax.random.normal(own, x.shape)
    return x


def public_projection(x, clip_norm, sigma):
    generator = torch.Generator().manual_seed(4)
    P = torch.randn(x.shape[-1], 8, generator=generator)
    x = x / max(1.0, x.norm() / clip_norm)
    return (x + sigma * torch.randn_like(x)) @ P


def add_noise(x, scale, rng):
    return x + scale * rng.standard_normal(x.shape)


def add_noise_of(x, scale, seed):
    rng = np.random.default_rng(seed)
    return x + scale * rng.standard_normal(x.shape)


def toy_data(n):
    rng = np.random.default_rng(0)
    return np.linspace(0, 1, n) + 0.1 * rng.standard_normal(n)


def main(x, clip_norm, sigma):
    torch.manual_seed(0)
    x = x / max(1.0, x.norm() / clip_norm)
    return x + sigma * torch.randn_like(x)
