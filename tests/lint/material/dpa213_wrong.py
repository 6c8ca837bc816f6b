"""Clipped after the noise, and not before it."""

import numpy as np
import torch


def numpy_form(x, c, sigma):
    noised = x + np.random.normal(0, sigma * c, x.shape)
    return noised * min(1.0, c / np.linalg.norm(noised))  # hint: DPA213


def torch_form(model, c, sigma):
    for p in model.parameters():
        p.grad += sigma * c * torch.randn_like(p.grad)
        p.grad /= max(1.0, p.grad.norm() / c)  # hint: DPA213
