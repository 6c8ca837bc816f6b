"""The classical formula with an epsilon that nothing limits."""

import math

import numpy as np
import torch


def sigma_of(sensitivity, epsilon, delta):
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon  # hint: DPA204


def by_parts(c, eps, delta):
    factor = np.sqrt(2 * np.log(1.25 / delta))
    return c * factor / eps  # hint: DPA204


def by_power(c, epsilon, delta=1e-5):
    return (2 * torch.log(torch.tensor(1.25 / delta))) ** 0.5 * c / epsilon  # hint: DPA204


class Calibrated:
    def __init__(self, epsilon=8.0, delta=1e-5):
        self.epsilon, self.delta = epsilon, delta

    def variance(self):
        return 2 * np.log(1.25 / self.delta) / self.epsilon**2  # hint: DPA204
