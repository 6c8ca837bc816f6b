"""From declared noise to epsilon: what do these releases add up to?"""

from .families import gaussian_delta, gaussian_epsilon, gaussian_mu
from .releases import Interval, Mechanism, Release, epsilon, false_negative_rate

__all__ = [
    "Interval",
    "Mechanism",
    "Release",
    "epsilon",
    "false_negative_rate",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
]
