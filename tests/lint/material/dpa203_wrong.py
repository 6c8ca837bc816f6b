"""An epsilon that each call or round spends, and that nothing adds up."""

import numpy as np
import torch


class Mod:
    def __init__(self, clip_norm, epsilon):
        self.clip_norm = clip_norm
        self.epsilon = epsilon
        self.scale = clip_norm / epsilon

    def __call__(self, x):
        x = x / max(1.0, np.abs(x).sum() / self.clip_norm)
        return x + np.random.laplace(0, self.scale, x.shape)  # hint: DPA203


class Filter:
    def process(self, x, epsilon=1.0):
        return np.clip(x, 0, 1) + np.random.laplace(0, 1 / epsilon, x.shape)  # hint: DPA203


def loop(model, loader, epsilon, n):
    for _ in range(n):
        pass
    for step in loader:
        g = model.grad_of(step)
        g = g * min(1.0, 1.0 / g.abs().sum())
        g = g + torch.distributions.Laplace(0, 1 / epsilon).sample(g.shape)  # hint: DPA203
        model.apply(g)
