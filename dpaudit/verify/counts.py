"""What counts prove, computed anew: of runs, guesses on canaries, reconstructions; Holm's method.

``fp`` of ``n0`` runs without the record were called positive, ``fn`` of ``n1`` with it were not.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, log, log1p

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betainccinv, gammaln, ndtr, ndtri

Counts = tuple[float, float, float, float]  # fp, fn, n0, n1
MOST = 50.0  # no epsilon and no mu above it is resolved


def upper_rate(count: float, n: float, alpha: float) -> float:
    """The upper confidence bound of Clopper and Pearson (1934) on a probability."""
    return 1.0 if count >= n else float(betainccinv(count + 1, n - count, alpha))


@lru_cache(maxsize=2**14)  # the halvings of one p-value are nearly all those of the next
def errors_bound(delta: float, of_mu: bool, counts: Counts, alpha: float) -> float:
    """A lower bound on epsilon (Kairouz, Oh and Viswanath 2015) or mu, rates at alpha / 2 each."""
    fp, fn, n0, n1 = counts
    rates = upper_rate(fp, n0, alpha / 2), upper_rate(fn, n1, alpha / 2)
    if of_mu:
        return max(0.0, -float(ndtri(rates).sum()))  # 0 of a nan, which is inf - inf
    odds = [log(1 - delta - b) - log(a) for a, b in (rates, rates[::-1]) if b < 1 - delta]
    return max([0.0, *odds])


def errors_p_value(delta: float, of_mu: bool, counts: Counts, claimed: float) -> float:
    """The least alpha at which they refute an epsilon, or a mu, to a relative 1e-7."""
    low, high = log(1e-300), 0.0
    while high - low > 1e-7:
        refutes = errors_bound(delta, of_mu, counts, exp(middle := (low + high) / 2)) > claimed
        low, high = (low, middle) if refutes else (middle, high)
    return exp(high)


def largest(p: Callable[[float], float], alpha: float, error: float = 1e-12) -> float:
    """The bound on a parameter: that of the largest claim whose p-value is alpha at most."""
    for end, is_it in ((0.0, p(0.0) > alpha), (MOST, p(MOST) <= alpha)):
        if is_it:
            return end
    return float(brentq(lambda x: p(x) - alpha, 0.0, MOST, xtol=error))


def guesses_p_value(delta: float, m: int, r: int, right: int, epsilon: float) -> float:
    """p-value of ``right`` guesses among r, on m canaries that are each included by a fair coin.

    Steinke, Nasr and Jagielski 2023, arXiv:2305.08846, Theorem 5.2: with v right guesses and
    K ~ Bin(r, e^eps / (1 + e^eps)), P[K >= v] + 2 m delta max_i P[v - i <= K < v] / i.
    """
    k = np.arange(r + 1)
    ways = gammaln(r + 1) - gammaln(k + 1) - gammaln(r - k + 1)
    mass = np.exp(ways - r * log1p(exp(epsilon)) + k * epsilon)
    near = np.cumsum(mass[:right][::-1]) / np.arange(1, right + 1)
    return min(1.0, float(mass[right:].sum() + 2 * m * delta * near.max(initial=0.0)))


def allowed(kappa: float, delta: float, of_mu: bool, claimed: float) -> float:
    """The most that one succeeds whose blind success is kappa: Hayes et al., arXiv:2302.07225."""
    if of_mu:
        return float(ndtr(claimed + ndtri(kappa)))
    odds = exp(claimed) * kappa + delta
    return min(1.0, max(0.0, min(odds, 1 - exp(-claimed) * (1 - delta - kappa))))


def successes_p_value(
    kappa: float, delta: float, of_mu: bool, apart: bool, n: int, hits: int, claimed: float
) -> float:
    """p-value of ``hits`` reconstructions: binomial in separate runs, by Markov in one run."""
    gamma = allowed(kappa, delta, of_mu, claimed)
    if hits == 0:
        return 1.0
    return float(betainc(hits, n - hits + 1, gamma)) if apart else min(1.0, gamma * n / hits)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): the k-th smallest of m times m - k + 1, made monotone."""
    order = np.argsort(p_values, kind="stable")
    raised = np.asarray(p_values, float)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return [float(p) for p in adjusted]
