"""Epsilon is divided over the rounds, counted, or a matter of whoever calls a plain function."""

import numpy as np
import torch


class Divided:
    def __init__(self, clip_norm, epsilon, n_rounds):
        self.clip_norm = clip_norm
        self.scale = clip_norm * n_rounds / epsilon

    def __call__(self, x):
        x = x / max(1.0, np.abs(x).sum() / self.clip_norm)
        return x + np.random.laplace(0, self.scale, x.shape)


class Counted:
    def __init__(self, epsilon):
        self.epsilon, self.spent = epsilon, 0.0

    def __call__(self, x):
        self.spent += self.epsilon
        return np.clip(x, 0, 1) + np.random.laplace(0, 1 / self.epsilon, x.shape)


def plain(x, epsilon):
    return np.clip(x, 0, 1) + np.random.laplace(0, 1 / epsilon, x.shape)


def by_rounds(model, loader, epsilon, n_rounds):
    for step in loader:
        g = model.grad_of(step)
        g = g * min(1.0, 1.0 / g.abs().sum())
        g = g + torch.distributions.Laplace(0, n_rounds / epsilon).sample(g.shape)
        model.apply(g)
