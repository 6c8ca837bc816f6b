"""How strongly estimates speak: beyond a limit, beyond an earlier estimate, several at once.

A metric of audit.json is a mean over n cases with its standard error or its 95% Student-t
interval, a pair of exact bounds without n, or a number known exactly. Of means the p-values here
are one-sided t tests; bounds and exact numbers are certain either way, p = 0 or 1. An estimate
whose error is not known (n, but neither of the two) says nothing, p = 1.
"""

import math
from collections.abc import Sequence
from typing import Literal

from dpaudit.files.finding import Metric

Side = Literal["above", "below"]
RELATIVE_ROUNDING = 1e-9  # between two computations of an exact number


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
    error = _standard_error(metric, side)
    return 1.0 if error is None else _t_tail(gap, error, metric.n - 1)


def p_worse(now: Metric, before: Metric, side: Side) -> float:
    """One-sided p-value of the hypothesis that nothing moved to that side between two estimates.

    For means the statistic is the difference by its standard error, without pooling, referred to
    Student's t with the degrees of freedom of the smaller sample; for normal cases that test is
    conservative whatever the two variances are. Two estimates on the same cases are correlated
    positively, which makes it more conservative still. Bounds are worse if they do not overlap.

    Source: Mickey and Brown 1966, Annals of Mathematical Statistics 37(3).
    """
    gap = _gap(now.value, before.value, side)
    if not gap > RELATIVE_ROUNDING * abs(before.value):
        return 1.0
    if now.n is None or before.n is None:
        near, far = (now.low, before.high) if side == "above" else (now.high, before.low)
        ends = (now.value if near is None else near, before.value if far is None else far)
        return 0.0 if _gap(*ends, side) > RELATIVE_ROUNDING * abs(ends[1]) else 1.0
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


def _standard_error(metric: Metric, side: Side) -> float | None:
    """Else from the half of the 95% interval that faces the limit; None where it is not known."""
    if metric.standard_error is not None and metric.n is not None and metric.n >= 2:
        known = math.isfinite(metric.value) and math.isfinite(metric.standard_error)
        return metric.standard_error if known else None
    end = metric.low if side == "above" else metric.high
    if end is None or metric.n is None or metric.n < 2 or not math.isfinite(metric.value):
        return None
    from scipy.special import stdtrit

    error = abs(metric.value - end) / float(stdtrit(metric.n - 1, 0.975))
    return error if math.isfinite(error) else None


def _t_tail(gap: float, error: float, degrees: int) -> float:
    """P(T > gap / error) for Student's t."""
    if error == 0:
        return 0.0  # all cases agree
    from scipy.special import stdtr

    return float(stdtr(degrees, -gap / error))
