"""What a mechanism of the zoo is: a function, a claim, and its epsilon in closed form."""

from collections.abc import Callable, Mapping
from math import exp, inf, log
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.claim import Adjacency

N = 16  # numbers of a value, where a mechanism takes any
BOX: Mapping[str, Any] = {"shape": (N,)}
INDEX: Mapping[str, Any] = {"output_shape": (), "output_dtype": "int64"}
SCORES: Mapping[str, Any] = {"shape": (N,), "sensitivity": 1.0, "norm": "linf"}


class ZooEntry(NamedTuple):
    """One mechanism with one claim."""

    name: str
    mistake: str  # ""; or what differs from the right one
    function: Callable[..., Any]
    claimed: float  # epsilon
    epsilon: float  # upper bound if right, lower bound if wrong; inf: there is none
    delta: float = 0.0
    options: Mapping[str, Any] = BOX
    adjacency: Adjacency = "replace-one"

    @property
    def is_right(self) -> bool:
        return self.epsilon <= self.claimed * (1 + 1e-6)


def clipped(x: Array, norm: float = 1.0) -> Array:
    """Scaled down to L2 norm at most ``norm``."""
    return np.asarray(x * min(1.0, norm / max(float(np.linalg.norm(x)), 1e-300)))


def discrete_epsilon(p: Array, q: Array, delta: float = 0.0) -> float:
    """The least epsilon of two distributions on the same outcomes [n], in either direction."""
    if delta == 0:
        there = (p > 0) | (q > 0)
        if ((p[there] == 0) | (q[there] == 0)).any():
            return inf
        return float(np.abs(np.log(p[there] / q[there])).max())

    def excess(epsilon: float) -> float:
        ways = ((p, q), (q, p))
        return max(float(np.maximum(a - exp(epsilon) * b, 0.0).sum()) for a, b in ways) - delta

    if excess(0.0) <= 0:
        return 0.0
    return inf if excess(200.0) > 0 else float(brentq(excess, 0.0, 200.0, xtol=1e-12))


def integer_noise(weight: Callable[[Array], Array], shift: int, delta: float) -> float:
    """Epsilon of integer noise with these weights, when its centre moves by ``shift``."""
    at = np.arange(-300.0, 301.0)
    p, q = (weight(at - c) for c in (0, shift))
    return discrete_epsilon(p / p.sum(), q / q.sum(), delta)


def randomised_response(truth: float, k: int) -> float:
    """Epsilon of k answers of which the true one has this probability."""
    return log(truth * (k - 1) / (1 - truth))
