"""How much an audit can be expected to prove, before any trial is run.

An audit that could not have refuted a claim says nothing about it. What it can prove depends on
the number of trials and on the trade-off curve of the mechanism that really runs.
"""

from collections.abc import Callable
from math import isqrt

import numpy as np
from scipy.special import ndtri

from dpaudit.accounting.binomial import quantile
from dpaudit.accounting.families import GAUSSIAN, TradeoffFamily
from dpaudit.accounting.privacy_loss import Array
from dpaudit.errors import DpauditError

from .bounds import epsilon_lower_bound, family_lower_bound

Tradeoff = Callable[[Array], Array]  # false positive rates to the least false negative rates

_TAIL = np.geomspace(1e-7, 0.5, 60)
RATES = np.concatenate([_TAIL, 1 - _TAIL[-2::-1]])  # false positive rates of the tests considered
QUANTILES = (np.arange(16) + 0.5) / 16  # of the counts, for an expectation
MOST_TRIALS = 10**9


def expected_bound(n: int, delta: float, alpha: float, tradeoff: Tradeoff) -> float:
    """The mean of ``epsilon_lower_bound`` with the best threshold and ``n`` counted scores a world.

    Args:
        tradeoff: of the mechanism that really runs; with a perfect test, zero everywhere.
    """
    fp, fn = _likely_counts(n, tradeoff)
    bound = epsilon_lower_bound(fp[:, :, None], fn[:, None, :], n, n, delta, alpha)
    return float(bound.mean(axis=(1, 2)).max())


def expected_family_bound(
    n: int, alpha: float, tradeoff: Tradeoff, family: TradeoffFamily = GAUSSIAN
) -> float:
    """The mean of ``family_lower_bound``, likewise."""
    fp, fn = _likely_counts(n, tradeoff)
    bound = family_lower_bound(fp[:, :, None], fn[:, None, :], n, n, alpha, family)
    return float(bound.mean(axis=(1, 2)).max())


def bound_error(
    fp: int, fn: int, n0: int, n1: int, bound: Callable[[Array, Array], Array]
) -> float:
    """The standard error of a bound that such counts give, as if each had one error more.

    Args:
        bound: from false positives and false negatives, which it broadcasts.
    """
    counts = [_quantiles(n, np.array([[(k + 1) / (n + 2)]]))[0] for k, n in ((fp, n0), (fn, n1))]
    return float(np.std(bound(counts[0][:, None], counts[1][None, :])))


def trials_needed(claimed: float, expected: Callable[[int], float]) -> int | None:
    """The least number of counted scores per world that is expected to refute a claim.

    Args:
        claimed: epsilon, or the parameter of a family; above 0.
        expected: the bound that so many counted scores can be expected to give.

    Returns:
        The number, up to 1% too large, or None if a billion is not enough.

    Raises:
        DpauditError: the claim is not positive.
    """
    if not claimed > 0:
        raise DpauditError("DPA071", f"what is claimed must be positive, got {claimed}")
    low, high = 1, MOST_TRIALS
    if expected(high) <= claimed:
        return None
    while high > 1.01 * low + 1:
        n = max(isqrt(low * high), low + 1)
        low, high = (low, n) if expected(n) > claimed else (n, high)
    return high


def _likely_counts(n: int, tradeoff: Tradeoff) -> tuple[Array, Array]:
    """Quantiles of the errors that tests of each rate make on n scores of a world, [n_rates, k]."""
    missed = np.clip(tradeoff(RATES), 0.0, 1.0)
    return _quantiles(n, RATES[:, None]), _quantiles(n, missed[:, None])


def _quantiles(n: int, rate: Array) -> Array:
    """Of binomial counts; by their normal limit where they vary by more than 30."""
    spread = np.sqrt(n * rate * (1 - rate))
    few = spread[:, 0] <= 30
    counts = n * rate + spread * ndtri(QUANTILES)
    counts[few] = quantile(QUANTILES, n, rate[few])
    return counts
