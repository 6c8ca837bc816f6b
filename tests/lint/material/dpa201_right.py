"""Laplace noise after an L1 clip, Gaussian noise after an L2 clip, and a scale with sqrt(d)."""

import numpy as np
import torch


def l1(g, c, epsilon):
    g = g * min(1.0, c / g.abs().sum())
    return g + torch.distributions.Laplace(0.0, c / epsilon).sample(g.shape)


def l1_by_order(g, c, epsilon):
    g = g / max(1.0, np.linalg.norm(g, ord=1) / c)
    return g + np.random.laplace(0, c / epsilon, g.shape)


def l2_with_the_dimension(g, c, epsilon):
    g = g / max(1.0, np.linalg.norm(g) / c)
    return g + np.random.laplace(0, c * np.sqrt(g.size) / epsilon, g.shape)


def gaussian(g, c, sigma):
    g = g / max(1.0, np.linalg.norm(g) / c)
    return g + np.random.normal(0, sigma * c, g.shape)


def either(g, c, epsilon, order):
    norm = np.abs(g).sum() if order == 1 else np.linalg.norm(g)
    g = g / max(1.0, norm / c)
    return g + np.random.laplace(0, c / epsilon, g.shape)


def client_order_of_a_setting(model, c, epsilon, order):
    torch.nn.utils.clip_grad_norm_(model.parameters(), c, norm_type=order)
    for p in model.parameters():
        p.grad += torch.distributions.Laplace(0, c / epsilon).sample(p.shape)
