"""Clipped before the noise; clipped again after it; and a range of what is released."""

import numpy as np


def before(x, c, sigma):
    x = x * min(1.0, c / np.linalg.norm(x))
    return x + np.random.normal(0, sigma * c, x.shape)


def before_and_after(x, c, sigma):
    x = x * min(1.0, c / np.linalg.norm(x))
    x = x + np.random.normal(0, sigma * c, x.shape)
    return x * min(1.0, c / np.linalg.norm(x))


def rounds(x, gradient, c, sigma, rate, n_rounds):
    for _ in range(n_rounds):
        g = gradient(x)
        g = g * min(1.0, c / np.linalg.norm(g))
        x = x - rate * (g + np.random.normal(0, sigma * c, x.shape))
    return x


def range_of_the_output(count, c, sigma):
    count = np.clip(count, 0, c)
    return np.clip(count + np.random.normal(0, sigma * c), 0, None)
