"""Laplace noise after an L2 clip. Each line with a mark is found, and no other."""

import jax.numpy as jnp
import numpy as np
import torch
from jax import random as jr
from torch.nn.utils import clip_grad_norm_


def by_formula(g, c, epsilon):
    norm = torch.norm(g)
    if norm > c:
        g = g * (c / norm)
    return g + torch.distributions.Laplace(0.0, c / epsilon).sample(g.shape)  # hint: DPA201


def by_root_of_squares(update, bound, epsilon):
    length = np.sqrt(np.sum(update**2))
    update = update * min(1.0, bound / length)
    noise = np.random.laplace(scale=bound / epsilon, size=update.shape)  # hint: DPA201
    return update + noise


def client_update_by_library(model, c, epsilon):
    clip_grad_norm_(model.parameters(), c)
    for p in model.parameters():
        p.grad += torch.distributions.Laplace(0, c / epsilon).sample(p.shape)  # hint: DPA201


def on_jax(key, g, c, epsilon):
    g = g / jnp.maximum(1.0, jnp.linalg.norm(g) / c)
    return g + c / epsilon * jr.laplace(key, g.shape)  # hint: DPA201


def length_of(update):
    return float(np.linalg.norm(update))


def clipped(update, c):
    return update / max(1.0, length_of(update) / c)


def by_functions_of_the_file(update, c, epsilon):
    short = clipped(update, c)
    return short + np.random.laplace(0, c / epsilon, short.shape)  # hint: DPA201


class Compressor:
    def mechanism(self, kind, c, epsilon):
        if kind == "laplace":
            return torch.distributions.Laplace(0, c / epsilon)  # hint: DPA201
        return torch.distributions.Normal(0, 2 * c)

    def compress(self, update, kind, c, epsilon):
        update = update * torch.clamp(c / update.norm(p=2), max=1.0)
        return update + self.mechanism(kind, c, epsilon).sample(update.shape)
