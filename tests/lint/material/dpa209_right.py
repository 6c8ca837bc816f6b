"""One norm for all layers; or a bound for each layer."""

import math

import numpy as np
import torch


def one_norm(model, c, sigma):
    total = 0.0
    for p in model.parameters():
        total = total + p.grad.norm() ** 2
    factor = min(1.0, c / total**0.5)
    for p in model.parameters():
        p.grad.mul_(factor)
        p.grad.add_(torch.randn_like(p.grad), alpha=sigma * c)


def each_its_own(model, bounds, sigma):
    for p, bound in zip(model.parameters(), bounds, strict=True):
        p.grad.mul_(min(1.0, bound / p.grad.norm()))
        p.grad.add_(torch.randn_like(p.grad), alpha=sigma * bound)


def shared_out(layers, c, sigma):
    bound = c / math.sqrt(len(layers))
    noised = []
    for layer in layers:
        layer = layer / max(1.0, np.linalg.norm(layer) / bound)
        noised.append(layer + np.random.normal(0, sigma * c, layer.shape))
    return noised


def records(updates, c, sigma):
    total = 0
    for update in updates:
        total = total + update / max(1.0, np.linalg.norm(update) / c)
    return total + np.random.normal(0, sigma * c, total.shape)
