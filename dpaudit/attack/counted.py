"""The test of a claim by the errors of a score, in a number of runs that was fixed beforehand."""

from functools import lru_cache
from math import inf

import numpy as np

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Metric, Name
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
        Name.CLAIMED_EPSILON: Metric(value=claimed),
        Name.DELTA: Metric(value=delta),
        Name.CONFIDENCE: Metric(value=1 - alpha),
        Name.P_VALUE: Metric(value=p),
        Name.FALSE_POSITIVES: Metric(value=bound.fp, n=bound.n0),
        Name.FALSE_NEGATIVES: Metric(value=bound.fn, n=bound.n1),
        **of_mu,
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
