"""What counted runs prove, computed anew: confidence bounds, p-values, Holm's method, bets.

``fp`` of ``n0`` runs without the record were called positive, and ``fn`` of ``n1`` runs with it
were not, by a threshold that other runs chose.
"""

from collections.abc import Sequence
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, ndtri

Array = NDArray[np.float64]
LEAST_P = 1e-300
SHARES = (0.9, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)  # of what can be lost, that bets stake


def upper_rate(count: float, n: float, alpha: float) -> float:
    """The upper confidence bound of Clopper and Pearson (1934) on a probability."""
    return 1.0 if count >= n else float(betainccinv(count + 1, n - count, alpha))


def epsilon_bound(fp: float, fn: float, n0: float, n1: float, delta: float, alpha: float) -> float:
    """A lower bound on epsilon: Kairouz, Oh and Viswanath 2015, each rate at alpha / 2."""
    rates = upper_rate(fp, n0, alpha / 2), upper_rate(fn, n1, alpha / 2)
    odds = [
        log(1 - delta - missed) - log(false)
        for false, missed in (rates, rates[::-1])
        if missed < 1 - delta
    ]
    return max([0.0, *odds])


def mu_bound(fp: float, fn: float, n0: float, n1: float, alpha: float) -> float:
    """A lower bound on mu of Gaussian privacy: Phi^-1(1 - FPR) - Phi^-1(FNR)."""
    false, missed = upper_rate(fp, n0, alpha / 2), upper_rate(fn, n1, alpha / 2)
    found = -float(ndtri(false)) - float(ndtri(missed))
    return max(0.0, found) if found == found else 0.0


def p_value(
    fp: float, fn: float, n0: float, n1: float, delta: float, epsilon: float, mu: float | None
) -> float:
    """The least alpha at which the counts refute the claim, to a relative 1e-6."""

    def refutes(alpha: float) -> bool:
        if mu is not None:
            return mu_bound(fp, fn, n0, n1, alpha) > mu
        return epsilon_bound(fp, fn, n0, n1, delta, alpha) > epsilon

    if not refutes(1 - 1e-12):
        return 1.0
    low, high = log(LEAST_P), 0.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (low, middle) if refutes(exp(middle)) else (middle, high)
    return exp(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): the k-th smallest of m times m - k + 1, made monotone."""
    order = np.argsort(p_values, kind="stable")
    raised = np.asarray(p_values, float)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return [float(p) for p in adjusted]
