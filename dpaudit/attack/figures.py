"""Figures of findings: of a claim's test by counted errors, and of mutual information.

The number of runs whose errors are counted was fixed beforehand.
"""

from functools import lru_cache
from math import inf

import numpy as np

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Metric, Name
from dpaudit.information.estimators import information_correlation
from dpaudit.information.mnmi import MaximumInformation
from dpaudit.statistics.bounds import (
    ScoreBound,
    Scores,
    Tradeoff,
    expected_bound,
    expected_family_bound,
    family_from_scores,
    from_scores,
    mu_p_value,
    p_value,
    trials_needed,
)


def counted_test(
    claim: Claim, scores: Scores, choosing: Scores, alpha: float
) -> tuple[ScoreBound, dict[str, Metric]]:
    """The lower bound, on mu for a claim of mu and else on epsilon, and its figures.

    Args:
        scores: of runs without and with the record.
        choosing: of other runs, which choose the threshold.
        alpha: of a false bound.
    """
    delta, claimed = claimed_delta(claim), claimed_epsilon(claim)
    if claim.mu is None:
        bound = from_scores(*scores, delta, alpha, choosing)
        value, p = bound.value, p_value(bound.fp, bound.fn, bound.n0, bound.n1, delta, claimed)
        of_mu: dict[str, Metric] = {}
    else:
        bound = family_from_scores(*scores, alpha, choosing)
        value = GAUSSIAN.epsilon(bound.value, delta)
        p = mu_p_value(bound.fp, bound.fn, bound.n0, bound.n1, claim.mu)
        of_mu = {Name.MU_LOWER_BOUND: Metric(value=bound.value)}
        of_mu[Name.CLAIMED_MU] = Metric(value=claim.mu)
    return bound, {
        Name.EPSILON_LOWER_BOUND: Metric(value=value, n=bound.n0 + bound.n1),
        **of_claim(claimed, delta, alpha, p),
        Name.FALSE_POSITIVES: Metric(value=bound.fp, n=bound.n0),
        Name.FALSE_NEGATIVES: Metric(value=bound.fn, n=bound.n1),
        **of_mu,
    }


def of_claim(claimed: float, delta: float, alpha: float, p_value: float) -> dict[str, Metric]:
    """The claim that a bound is held against, and how surely it is refuted."""
    return {
        Name.CLAIMED_EPSILON: Metric(value=claimed),
        Name.DELTA: Metric(value=delta),
        Name.CONFIDENCE: Metric(value=1 - alpha),
        Name.P_VALUE: Metric(value=p_value),
    }


def without_errors(claim: Claim, n: int, alpha: float) -> dict[str, Metric]:
    """What n runs of each world certify without an error, and how many would refute the claim."""
    found = _without_errors(claim.mu, claimed_epsilon(claim), claimed_delta(claim), n, alpha)
    return {
        Name.CEILING: Metric(value=found[0], n=n),
        Name.TRIALS_NEEDED: Metric(value=inf if found[1] is None else found[1]),
    }


@lru_cache(maxsize=64)  # claims of many cells of a benchmark are alike
def _without_errors(
    mu: float | None, claimed: float, delta: float, n: int, alpha: float
) -> tuple[float, int | None]:
    """Epsilon, by the bound that judges the claim, and the number of runs that refute it."""

    def expected(n: int) -> float:
        return expected_value(n, mu is not None, delta, alpha, np.zeros_like)

    best = expected(n)
    epsilon = best if mu is None else GAUSSIAN.epsilon(best, delta)
    return epsilon, trials_needed(mu or claimed, expected)


def expected_value(n: int, of_mu: bool, delta: float, alpha: float, tradeoff: Tradeoff) -> float:
    """The expected bound on epsilon, or on mu of the Gaussian family, from n runs of each world."""
    if of_mu:
        return expected_family_bound(n, alpha, tradeoff)
    return expected_bound(n, delta, alpha, tradeoff)


def information_metrics(found: MaximumInformation, shuffled: bool) -> dict[str, Metric]:
    """Bits and what stands beside them; a p-value and a baseline if trials were shuffled."""
    ends = information_correlation(found.low), information_correlation(found.high)
    metrics: dict[str, Metric] = {
        Name.INFORMATION: _with_interval(found.bits, found.low, found.high, found.n),
        Name.M_NMI: _with_interval(found.m_nmi, *found.m_nmi_ends, found.n),
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
