"""The classical formula where epsilon is kept below 1, and other formulas."""

import math

import numpy as np


def refused(sensitivity, epsilon, delta):
    if not 0 < epsilon < 1:
        raise ValueError("epsilon has to be below 1")
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


EPSILON = 0.5


def constant(sensitivity, delta):
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / EPSILON


def of_zcdp(sensitivity, rho):
    return sensitivity / np.sqrt(2 * rho)


def of_rdp(alpha, sigma, delta):
    return alpha / (2 * sigma**2) + np.log(1 / delta) / (alpha - 1)
