"""A sensitivity that is computed from the clip norm."""

import numpy as np
import torch


def function(x, clip_norm, epsilon):
    sensitivity = 2 * clip_norm
    x = x / max(1.0, np.abs(x).sum() / clip_norm)
    return x + np.random.laplace(0, sensitivity / epsilon, x.shape)


class Configured:
    def __init__(self, clip_norm, sigma):
        self.clip_norm = clip_norm
        self.sensitivity = 2.0 * clip_norm
        self.sigma = sigma

    def step(self, g):
        g = g / max(1.0, g.norm() / self.clip_norm)
        return g + self.sigma * self.sensitivity * torch.randn_like(g)


def without_a_clip(x, sensitivity, epsilon):
    return x + np.random.laplace(0, sensitivity / epsilon, x.shape)
