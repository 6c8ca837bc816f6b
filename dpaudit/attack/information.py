"""The figures of a finding about mutual information, whatever runs it was estimated from."""

import numpy as np

from dpaudit.files.finding import Column, Metric, Name
from dpaudit.information.estimators import information_correlation
from dpaudit.information.mnmi import MaximumInformation


def information_metrics(found: MaximumInformation, shuffled: bool) -> dict[str, Metric]:
    """Bits and what stands beside them; a p-value and a baseline if trials were shuffled."""
    ends = information_correlation(found.low), information_correlation(found.high)
    metrics: dict[str, Metric] = {
        Name.INFORMATION: _with_interval(found.bits, found.low, found.high, found.n),
        Name.M_NMI: Metric(value=found.m_nmi),
        Name.CORRELATION: _with_interval(found.correlation, *ends),
        Name.GAUSSIAN_INFORMATION: Metric(value=found.gaussian),
        Name.SELF_INFORMATION: Metric(value=found.self_information),
    }
    if shuffled:
        metrics[Name.BASELINE] = Metric(value=found.baseline)
        metrics[Name.P_VALUE] = Metric(value=found.p_value)
    return metrics


def information_series(
    found: MaximumInformation, rounds: list[int]
) -> dict[str, tuple[float, ...]]:
    """The columns of the same by round."""
    columns = {
        Column.ROUND: np.array(rounds),
        Column.INFORMATION: found.per_round,
        Column.LOW: found.lows,
        Column.HIGH: found.highs,
        Column.BASELINE: found.baselines,
    }
    return {name: tuple(values.tolist()) for name, values in columns.items()}


def _with_interval(value: float, low: float, high: float, n: int | None = None) -> Metric:
    """An estimate, with its interval where it has one."""
    if np.isnan(low) or np.isnan(high):
        return Metric(value=value, n=n)
    return Metric(value=value, low=low, high=high, n=n)
