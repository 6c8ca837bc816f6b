"""What noise lets through at most, in bits: limits for every estimate of mutual information.

An estimate above such a limit speaks against the noise. One below it proves nothing: estimators
from nearest neighbours miss most of what many coordinates hold.
"""

import math

import numpy as np
from scipy.integrate import trapezoid

_NORMAL = np.linspace(-10, 10, 4001)


def of_bit_in_gaussian(mu: float) -> float:
    """I(B; O) of a fair bit B, say whether a record was used, through mu-GDP.

    The capacity of the channel N(+-mu/2, 1) with binary input, 1 - E[h(1 / (1 + e^(-mu o)))], as
    the output of every mu-GDP mechanism can be made from that of this channel.
    """
    outputs = _NORMAL + mu / 2  # by symmetry, outputs for one input suffice
    p = 1 / (1 + np.exp(-mu * outputs))
    density = np.exp(-(_NORMAL**2) / 2) / math.sqrt(2 * math.pi)
    return float(trapezoid(density * (1 - _entropy(p)), _NORMAL))


def of_number_in_gaussian(mu: float) -> float:
    """I(X; O) of a number X that moves a message by at most mu standard deviations of its noise.

    1/2 log2(1 + mu^2 / 4): no law on an interval has a larger variance than a fair choice of ends.
    """
    return 0.5 * math.log2(1 + mu**2 / 4)


def of_vector_in_gaussian(d: int, norm: float) -> float:
    """I(X; O) of a vector [d] of this norm at most, in standard deviations of the noise.

    d / 2 log2(1 + norm^2 / d): independent normal coordinates of that power reveal most (Shannon
    1949).
    """
    return d / 2 * math.log2(1 + norm**2 / d)


def of_pure_epsilon(epsilon: float) -> float:
    """I(X; O) of anything, any two values of which are distinguished under pure epsilon at most.

    epsilon tanh(epsilon / 2) nats, the largest divergence of two such laws; the information is at
    most the largest divergence between the laws of two values.
    """
    return epsilon * math.tanh(epsilon / 2) / math.log(2)


def of_bit_in_randomised_response(epsilon: float) -> float:
    """I(B; O) of a fair bit B under pure epsilon: 1 - h(1 / (1 + e^-epsilon))."""
    return float(1 - _entropy(np.array(1 / (1 + math.exp(-epsilon)))))


def _entropy(p: np.ndarray) -> np.ndarray:
    """Entropy, in bits, of bits that are 1 with probability p."""
    q = np.minimum(p, 1 - p)
    inside = q > 0
    safe = np.where(inside, q, 0.5)
    found: np.ndarray = -(safe * np.log2(safe) + (1 - safe) * np.log2(1 - safe))
    return np.where(inside, found, 0.0)
