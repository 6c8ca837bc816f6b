"""A sensitivity that is a setting of its own."""

import numpy as np
import torch


def function(x, clip_norm, sensitivity, epsilon):
    x = x / max(1.0, np.abs(x).sum() / clip_norm)
    return x + np.random.laplace(0, sensitivity / epsilon, x.shape)  # hint: DPA210


class Configured:
    def step(self, g):
        g = g / max(1.0, g.norm() / self.config.max_grad_norm)
        scale = self.config.sensitivity * self.config.sigma
        return g + scale * torch.randn_like(g)  # hint: DPA210
