"""How strongly estimates speak: beyond a limit, beyond an earlier estimate, several at once.

A metric of audit.json is a mean over n cases with its standard error or its 95% Student-t
interval, a share of n cases that hit, a pair of exact bounds without n, or a number known exactly.
Of means the p-values here are one-sided t tests, and of shares exact tests, because the mean of few
zeros and ones is not normal. Bounds and exact numbers are certain either way, p = 0 or 1. An
estimate whose error is not known (n, but neither of the two) says nothing, p = 1.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from dpaudit.files.finding import Metric

Side = Literal["above", "below"]
RELATIVE_ROUNDING = 1e-9  # relative difference of two computations of an exact number


def p_beyond(metric: Metric, limit: float, side: Side) -> float:
    """One-sided p-value of the hypothesis that the true value keeps a limit.

    Args:
        metric: the estimate.
        limit: what the value may at most ("above") or at least ("below") be.
        side: which side of the limit would break it.
    """
    gap = _gap(metric.value, limit, side)
    if not gap > 0:  # nan speaks for nothing
        return 1.0
    if metric.n is None:
        end = metric.low if side == "above" else metric.high
        return 0.0 if _gap(metric.value if end is None else end, limit, side) > 0 else 1.0
    hits = _hits(metric)
    if hits is not None:
        return _binomial_tail(hits, metric.n, limit, side)
    error = _standard_error(metric, side)
    return 1.0 if error is None else _t_tail(gap, error, metric.n - 1)


def p_worse(now: Metric, before: Metric, side: Side) -> float:
    """One-sided p-value of the hypothesis that nothing moved to that side between two estimates.

    For means the statistic is the difference by its standard error, without pooling, referred to
    Student's t with the degrees of freedom of the smaller sample; for normal cases that test is
    conservative whatever the two variances are. Two estimates on the same cases are correlated
    positively, which makes it more conservative still. Two shares are compared by Fisher's exact
    test. Bounds are worse if they do not overlap.

    Source: Mickey and Brown 1966, Annals of Mathematical Statistics 37(3).
    """
    gap = _gap(now.value, before.value, side)
    if not gap > RELATIVE_ROUNDING * abs(before.value):
        return 1.0
    if now.n is None or before.n is None:
        near, far = (now.low, before.high) if side == "above" else (now.high, before.low)
        ends = (now.value if near is None else near, before.value if far is None else far)
        return 0.0 if _gap(*ends, side) > RELATIVE_ROUNDING * abs(ends[1]) else 1.0
    hits = _hits(now), _hits(before)
    if hits[0] is not None and hits[1] is not None:
        return _fisher_tail((hits[0], now.n), (hits[1], before.n), side)
    other: Side = "below" if side == "above" else "above"
    errors = _standard_error(now, side), _standard_error(before, other)
    if errors[0] is None or errors[1] is None:
        return 1.0
    return _t_tail(gap, math.hypot(errors[0], errors[1]), min(now.n, before.n) - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for there being several: rejecting those at most alpha errs at all with
    probability at most alpha, however they depend on each other.

    Source: Holm 1979, Scandinavian Journal of Statistics 6(2).
    """
    adjusted, largest, m = [0.0] * len(p_values), 0.0, len(p_values)
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (m - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _gap(value: float, limit: float, side: Side) -> float:
    if value == limit:  # infinities too
        return 0.0
    return value - limit if side == "above" else limit - value


def _hits(metric: Metric) -> int | None:
    """How many of n cases hit, if the metric is the share of those that do; else None.

    Values in [0, 1] with the standard error sqrt(m (1 - m) / (n - 1)) around their mean m are all
    0 or 1, for no other values vary as much. If they are all alike, only an interval with a width
    tells a share from another mean. A share without a standard error has the interval of Clopper
    and Pearson.
    """
    m, n = metric.value, metric.n
    if n is None or n < 1 or not 0 <= m <= 1:
        return None
    hits, (low, high) = round(m * n), metric.ends
    if abs(hits - m * n) > RELATIVE_ROUNDING * n:
        return None
    if metric.standard_error is None:
        ends = zip(_clopper_pearson(hits, n), (low, high), strict=True)
        return hits if all(abs(a - b) <= RELATIVE_ROUNDING for a, b in ends) else None
    varies = m * (1 - m)
    alike = math.isclose(metric.standard_error**2 * (n - 1), varies, rel_tol=1e-6, abs_tol=1e-12)
    return hits if alike and low < high and 0 <= low <= high <= 1 else None


def _clopper_pearson(hits: int, n: int) -> tuple[float, float]:
    """The 95% interval of a share."""
    from .bounds import clopper_pearson

    return 1 - float(clopper_pearson(n - hits, n, 0.025)), float(clopper_pearson(hits, n, 0.025))


def _binomial_tail(hits: int, n: int, limit: float, side: Side) -> float:
    """Probability of ``hits`` or more extreme if each of n cases hits with the limit's."""
    if not 0 <= limit <= 1:  # no share keeps it
        return 0.0
    from dpaudit.accounting.binomial import at_most, more_than

    tail = at_most(hits, n, limit) if side == "below" else more_than(hits - 1, n, limit)
    return float(tail)


def _fisher_tail(now: tuple[int, int], before: tuple[int, int], side: Side) -> float:
    """p-value of shares this unequal or more, given the total of hits: Fisher's exact test.

    Args:
        now, before: how many hit, and of how many.
    """
    import numpy as np
    from scipy.special import gammaln

    (hits, n), (_, m) = now, before
    if side == "below":
        hits, before = n - hits, (m - before[0], m)
    total = hits + before[0]

    def log_ways(size: int, chosen: Any) -> Any:
        return gammaln(size + 1) - gammaln(chosen + 1) - gammaln(size - chosen + 1)

    k = np.arange(hits, min(n, total) + 1)
    chances = log_ways(n, k) + log_ways(m, total - k) - log_ways(n + m, total)
    return min(1.0, float(np.exp(chances).sum()))


def _standard_error(metric: Metric, side: Side) -> float | None:
    """Else from the half of the 95% interval that faces the limit; None where it is not known.

    Shares that are all 0 or all 1 do not vary, but their interval has a width.
    """
    if metric.n is None or metric.n < 2 or not math.isfinite(metric.value):
        return None
    error, (low, high) = metric.standard_error, metric.ends
    if error is not None and not (error == 0 and low < high):
        return error if math.isfinite(error) else None
    end = metric.low if side == "above" else metric.high
    if end is None:
        return None
    from scipy.special import stdtrit

    half = abs(metric.value - end)
    if end in (0, 1):  # an interval of a rate may have been cut there
        half = max(metric.value - low, high - metric.value)
    error = half / float(stdtrit(metric.n - 1, 0.975))
    return error if math.isfinite(error) else None


def _t_tail(gap: float, error: float, degrees: int) -> float:
    """P(T > gap / error) for Student's t."""
    if error == 0:
        return 0.0  # all cases agree
    from scipy.special import stdtr

    return float(stdtr(degrees, -gap / error))
