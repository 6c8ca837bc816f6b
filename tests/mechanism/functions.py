"""Functions that tests audit: each clips a value to L2 norm 1 and adds noise of a known scale."""

import numpy as np
import torch


def clipped(x: np.ndarray, norm: float = 1.0) -> np.ndarray:
    return x * min(1.0, norm / max(float(np.linalg.norm(x)), 1e-12))


def gaussian(scale: float):
    return lambda x: clipped(x) + np.random.normal(0, scale, x.shape)


def laplace(scale: float):
    return lambda x: clipped(x) + np.random.laplace(0, scale, x.shape)


def given(scale: float):
    return lambda x, rng: clipped(x) + rng.normal(0, scale, x.shape)


def of_torch(scale: float):
    return lambda x: x / x.norm().clamp(min=1) + scale * torch.randn_like(x)


def importable(x: np.ndarray) -> np.ndarray:
    """Of scale 4: mu is 1/2 between opposite values."""
    return clipped(x) + np.random.normal(0, 4.0, x.shape)
