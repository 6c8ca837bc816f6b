"""How well scores tell members from others: AUC, and true positives at few false positives."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.finding import Column, Metric, Name
from dpaudit.statistics.bounds import clopper_pearson

RATES = {0.001: Name.TPR_AT_0001, 0.01: Name.TPR_AT_001}  # allowed share of false positives
POINTS = 80  # points of the curve
_Z = 1.959964  # standard deviations of a normal law, beyond which 5% of it lie


class Rates(NamedTuple):
    """Metrics, what a reader must know of them, and the curve."""

    metrics: dict[str, Metric]
    notes: tuple[str, ...]
    series: dict[str, tuple[float, ...]]


def membership_rates(members: Array, choosing: Array, others: Array) -> Rates:
    """AUC, and the true positive rates where 0.1% and 1% of non-members are called members.

    Args:
        members: scores of members; higher means member.
        choosing: of non-members, which choose the thresholds.
        others: of further non-members, by which it is counted how often these are wrong.

    Source: TPR at low FPR: Carlini et al. 2022, arXiv:2112.03570.
    """
    metrics: dict[str, Metric] = {Name.AUC: auc(members, others)}
    notes = []
    for allowed, name in RATES.items():
        if len(choosing) * allowed < 1:
            n = len(choosing)
            notes.append(f"no rate of {allowed:.1%} false positives can be told from {n} scores")
            continue
        threshold = np.quantile(choosing, 1 - allowed, method="higher")
        metrics[name], false = rate(members > threshold), rate(others > threshold)
        notes.append(
            f"at the threshold for {allowed:.1%} false positives: {false.value:.2%} of "
            f"{false.n} others ({false.low:.2%} to {false.high:.2%})"
        )
    return Rates(metrics, tuple(notes), _curve(members, others))


def auc(members: Array, others: Array) -> Metric:
    """Chance that a member scores higher, and its 95% interval by Newcombe 2006, method 5.

    The interval holds each chance from which what was found is at most 1.96 standard deviations
    away, at that chance's own variance. So it has a width where all members score highest, too.
    Its standard error is the larger half over 1.96, which limits and baselines take.

    Source: Newcombe 2006, doi:10.1002/sim.2324; the variance after Hanley and McNeil 1982.
    """
    from scipy.stats import rankdata  # a second that other attacks do not wait for

    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))[:m]
    area = float((ranks.sum() - m * (m + 1) / 2) / (m * n))

    def is_near(chance: float) -> bool:
        half = (m + n) / 2 - 1
        both = 1 + half * ((1 - chance) / (2 - chance) + chance / (1 + chance))
        return (area - chance) ** 2 <= _Z**2 * chance * (1 - chance) * both / (m * n)

    low, high = (_last_near(is_near, area, end) for end in (0.0, 1.0))
    error = max(area - low, high - area) / _Z  # the larger side counts
    return Metric(value=area, low=low, high=high, n=m, standard_error=error)


def _last_near(is_near: Callable[[float], bool], start: float, end: float) -> float:
    """The last number from ``start`` towards ``end`` that is near, by bisection."""
    if start == end:
        return end
    near, far = start, end
    for _ in range(50):
        middle = (near + far) / 2
        near, far = (middle, far) if is_near(middle) else (near, middle)
    return near


def rate(hits: NDArray[np.bool_]) -> Metric:
    """A share and its 95% interval (Clopper and Pearson)."""
    k, n = int(hits.sum()), len(hits)
    high = float(clopper_pearson(k, n, 0.025))
    return Metric(value=k / n, low=1 - float(clopper_pearson(n - k, n, 0.025)), high=high, n=n)


def _curve(members: Array, others: Array) -> dict[str, tuple[float, ...]]:
    levels = np.quantile(np.concatenate([members, others]), np.linspace(0, 1, POINTS))
    return {
        Column.FALSE_POSITIVE_RATE: tuple(float((others > t).mean()) for t in levels),
        Column.FALSE_NEGATIVE_RATE: tuple(float((members <= t).mean()) for t in levels),
    }
