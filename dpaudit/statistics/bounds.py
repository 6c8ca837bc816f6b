"""Scores of two worlds to a lower bound on epsilon that is wrong with probability alpha at most.

H0 is the world without the target record, H1 the world with it. A test calls a score positive when
it lies above a threshold; ``fp`` of ``n0`` independent scores from H0 are called so, and ``fn`` of
``n1`` from H1 are not. Epsilon is in nats, for the adjacency by which the two worlds differ.

The bounds hold for a threshold that was fixed before the counted scores were seen. Choosing and
counting on the same scores makes more false alarms than alpha; ``from_scores`` counts on scores
that the choice has not seen. Few are enough for a choice, because the scores of both worlds
together say how those of each are distributed (``density_ratio``).

An audit that could not have refuted a claim says nothing about it. What it can be expected to prove
before any trial is run (``expected_bound``) depends on the number of trials and on the trade-off
curve of the mechanism that really runs.

A declared mechanism with all of its noise scaled by one factor is a family, too. Error rates that
it could only allow with less noise say how much less at least (``noise_factor_bound``): that uses
the whole of the declaration (sampling, composition, families) but the amount of noise.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from math import ceil, floor, isfinite, isqrt, log, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, ndtri

from dpaudit.accounting.binomial import quantile
from dpaudit.accounting.families import GAUSSIAN, TradeoffFamily
from dpaudit.accounting.privacy_loss import Array, Integers
from dpaudit.accounting.releases import (
    Mechanism,
    RecordAdjacency,
    Release,
    epsilon,
    false_negative_rate,
    false_negative_rates,
)
from dpaudit.errors import DpauditError

from .density_ratio import fit

SCORE_DECIMALS = 9  # low-order bits of naive floating-point noise separate the two worlds
MAX_CANDIDATES = 200  # thresholds tried in one direction
DOUBT = 0.02  # seen error rates choose by their upper bounds at this level, lest luck decide
CHOICE = 0.1  # times alpha, the level of a choice: p-values that many tests adjust are smaller

Scores = tuple[ArrayLike, ArrayLike]  # under H0, and under H1
_TAIL = np.geomspace(1e-7, 0.5, 60)
RATES = np.concatenate([_TAIL, 1 - _TAIL[-2::-1]])  # false positive rates of the tests considered
QUANTILES = (np.arange(16) + 0.5) / 16  # quantiles of counts, for an expectation
MOST_TRIALS = 10**9
LEAST, MOST = 2.0**-6, 2.0**10  # factors considered
STEPS = 2**14  # equal ratios from the least to the largest, each 0.07% more
SECANTS = 8  # tried before the rest is bisected


class ScoreBound(NamedTuple):
    """A lower bound from scores, and the test that it rests on."""

    value: float  # epsilon, or the parameter of a family
    threshold: float
    above: bool  # whether scores above the threshold are called positive, or those below
    fp: int
    fn: int
    n0: int
    n1: int


Bound = Callable[[ArrayLike, ArrayLike, int, int], Array]  # of the errors of n0 and n1 scores


def clopper_pearson(count: ArrayLike, n: ArrayLike, alpha: float) -> Array:
    """Upper confidence bound on a probability of which ``count`` of ``n`` trials are a sample.

    Source: Clopper and Pearson 1934; one-sided, 1 when every trial counts.
    """
    count, n = np.asarray(count, float), np.asarray(n, float)
    rest = np.maximum(n - count, 1e-300)
    return np.where(count >= n, 1.0, betainccinv(count + 1, rest, alpha))


def epsilon_lower_bound(
    fp: ArrayLike, fn: ArrayLike, n0: ArrayLike, n1: ArrayLike, delta: float, alpha: float
) -> Array:
    """What any (epsilon, delta)-DP mechanism must exceed to make so few errors; broadcasts.

    With FPR and FNR at their upper confidence bounds, each at alpha/2, the larger one of
    ln((1 - delta - FNR)/FPR) and ln((1 - delta - FPR)/FNR), at least 0.

    Raises:
        DpauditError: a count outside 0..n, no trials, alpha outside (0, 1) or delta outside [0, 1).

    Source: Kairouz, Oh and Viswanath 2015, Theorem 2.1; Jagielski, Ullman and Oprea 2020.
    """
    _check(fp, fn, n0, n1, alpha)
    if not 0 <= delta < 1:
        raise DpauditError("DPA071", f"delta must be at least 0 and below 1, got {delta}")
    return np.maximum(_log_odds(fp, fn, n0, n1, delta, alpha), 0.0)


def family_lower_bound(
    fp: ArrayLike,
    fn: ArrayLike,
    n0: ArrayLike,
    n1: ArrayLike,
    alpha: float,
    family: TradeoffFamily = GAUSSIAN,
) -> Array:
    """The parameter that a mechanism of the family must exceed to make so few errors; broadcasts.

    For the Gaussian family mu = Phi^-1(1 - FPR) - Phi^-1(FNR), at least 0, with both rates at their
    upper confidence bounds. It refutes a smaller parameter; ``family.epsilon`` converts it, and
    that epsilon is proven for the family alone. Source: Nasr et al. 2023, arXiv:2302.07956.

    Raises:
        DpauditError: a count outside 0..n, no trials, or alpha outside (0, 1).
    """
    _check(fp, fn, n0, n1, alpha)
    return np.maximum(_shift(fp, fn, n0, n1, alpha, family), 0.0)


def ceiling(n: int, delta: float, alpha: float) -> float:
    """The largest epsilon that ``n`` trials per world can prove: that of a test without errors."""
    return float(epsilon_lower_bound(0, 0, n, n, delta, alpha))


def from_scores(
    scores0: ArrayLike,
    scores1: ArrayLike,
    delta: float,
    alpha: float,
    choosing: Scores | np.random.Generator,
    decimals: int | None = SCORE_DECIMALS,
) -> ScoreBound:
    """A lower bound on epsilon from scores [n0] of H0 and [n1] of H1, whatever the mechanism.

    Args:
        choosing: scores of other runs, which choose threshold and direction; all of ``scores0`` and
            ``scores1`` are then counted. A generator draws a tenth of these instead, and the rest
            is counted.
        decimals: scores are rounded to so many first: more digits audit the floating-point noise,
            not the mechanism. None rounds nothing, to audit just that.

    Raises:
        DpauditError: a score is NaN, a world has fewer than two, alpha is outside (0, 1), or delta
            is outside [0, 1).
    """
    epsilon_lower_bound(0, 0, 1, 1, delta, alpha)  # refuses what is impossible
    bound = partial(_log_odds, delta=delta)
    return _held_out((scores0, scores1), choosing, bound, alpha, decimals)


def family_from_scores(
    scores0: ArrayLike,
    scores1: ArrayLike,
    alpha: float,
    choosing: Scores | np.random.Generator,
    family: TradeoffFamily = GAUSSIAN,
    decimals: int | None = SCORE_DECIMALS,
) -> ScoreBound:
    """A lower bound on a family's parameter from scores, otherwise as ``from_scores``."""
    family_lower_bound(0, 0, 1, 1, alpha, family)  # refuses what is impossible
    bound = partial(_shift, family=family)
    return _held_out((scores0, scores1), choosing, bound, alpha, decimals)


def p_value(fp: int, fn: int, n0: int, n1: int, delta: float, epsilon: float) -> float:
    """The smallest alpha at which the counts refute (epsilon, delta)-DP, to a relative 1e-6."""
    return smallest_alpha(
        lambda alpha: bool(epsilon_lower_bound(fp, fn, n0, n1, delta, alpha) > epsilon)
    )


def mu_p_value(fp: int, fn: int, n0: int, n1: int, mu: float) -> float:
    """The smallest alpha at which the counts refute mu-GDP, whatever the mechanism."""
    return smallest_alpha(lambda alpha: bool(family_lower_bound(fp, fn, n0, n1, alpha) > mu))


def smallest_alpha(refutes: Callable[[float], bool]) -> float:
    """The smallest alpha with a refutation, to a relative 1e-6; a larger one refutes more."""
    low, high = 1e-300, 1.0
    if not refutes(1 - 1e-12):
        return 1.0
    while high / low > 1 + 1e-6:
        alpha = float(np.sqrt(low) * np.sqrt(high))
        low, high = (low, alpha) if refutes(alpha) else (alpha, high)
    return high


def _log_odds(
    fp: ArrayLike, fn: ArrayLike, n0: ArrayLike, n1: ArrayLike, delta: float, alpha: float
) -> Array:
    """The bound on epsilon, negative for useless tests, so that a choice can be made among them."""
    fpr, fnr = clopper_pearson(fp, n0, alpha / 2), clopper_pearson(fn, n1, alpha / 2)
    with np.errstate(divide="ignore"):
        present = np.log(np.maximum(1 - delta - fnr, 0.0)) - np.log(fpr)
        absent = np.log(np.maximum(1 - delta - fpr, 0.0)) - np.log(fnr)
    return np.maximum(present, absent)


def _shift(
    fp: ArrayLike, fn: ArrayLike, n0: ArrayLike, n1: ArrayLike, alpha: float, family: TradeoffFamily
) -> Array:
    """The bound on a family's parameter, likewise."""
    return family.shift_between(
        clopper_pearson(fp, n0, alpha / 2), clopper_pearson(fn, n1, alpha / 2)
    )


def _held_out(
    scores: Scores,
    choosing: Scores | np.random.Generator,
    bound: Callable[..., Array],  # of the errors of n0 and n1 scores, and alpha
    alpha: float,
    decimals: int | None,
) -> ScoreBound:
    """Count the errors of a test that other scores have chosen."""
    counted0, counted1 = (_checked(world, decimals) for world in scores)
    if isinstance(choosing, np.random.Generator):
        seen0, counted0 = _tenth(counted0, choosing)
        seen1, counted1 = _tenth(counted1, choosing)
    else:
        seen0, seen1 = (_checked(world, decimals) for world in choosing)
    at_choice = partial(bound, alpha=CHOICE * alpha)
    threshold, above = _chosen(seen0, seen1, at_choice, len(counted0), len(counted1))
    sign = 1.0 if above else -1.0
    fp, fn, n0, n1 = _counts(sign * counted0, sign * counted1, np.array([sign * threshold]))
    value = max(float(bound(fp, fn, n0, n1, alpha=alpha)[0]), 0.0)
    return ScoreBound(value, threshold, above, int(fp[0]), int(fn[0]), n0, n1)


def _chosen(seen0: Array, seen1: Array, bound: Bound, n0: int, n1: int) -> tuple[float, bool]:
    """The threshold and direction that promise the best bound with n0 and n1 counted scores.

    Promised by the rates of fitted worlds, which need few scores. Where the fit is wrong, the rates
    that were seen decide: if these, at their upper confidence bounds, promise more than was seen at
    the threshold of the fit.
    """
    by_counts, by_fit = [], []
    worlds, seen = fit(seen0, seen1), np.sort(np.concatenate([seen0, seen1]))
    for sign in (1.0, -1.0):
        signed = thresholds_between(np.sort(sign * seen))
        fp, fn, m0, m1 = _counts(sign * seen0, sign * seen1, signed)
        fpr, fnr = clopper_pearson(fp, m0, DOUBT), clopper_pearson(fn, m1, DOUBT)
        at_worst = bound(n0 * fpr, n1 * fnr, n0, n1)
        i = int(np.argmax(at_worst))
        by_counts.append((float(at_worst[i]), sign * float(signed[i]), sign > 0))
        if worlds is not None:
            fpr, fnr = worlds.rates(sign * signed, sign > 0)
            fitted, counted = (
                bound(n0 * false, n1 * missed, n0, n1)
                for false, missed in ((fpr, fnr), (fp / m0, fn / m1))
            )
            i = int(np.argmax(fitted))
            test = float(counted[i]), sign * float(signed[i]), sign > 0
            by_fit.append((float(fitted[i]), test))
    at_worst_best = max(by_counts)
    fitted_best = max(by_fit)[1] if by_fit else at_worst_best
    return max(fitted_best, at_worst_best, key=lambda test: test[0])[1:]


def _checked(scores: ArrayLike, decimals: int | None) -> Array:
    scores = np.asarray(scores, float).ravel()
    if np.isnan(scores).any():
        raise DpauditError(
            "DPA072", f"{int(np.isnan(scores).sum())} of {len(scores)} scores are NaN"
        )
    if len(scores) < 2:
        raise DpauditError("DPA072", f"each world needs at least 2 scores, got {len(scores)}")
    return scores if decimals is None else np.round(scores, decimals)


def _tenth(scores: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    """A random tenth of the scores, at least one, and the others."""
    mixed, size = generator.permutation(scores), max(1, len(scores) // 10)
    return mixed[:size], mixed[size:]


def thresholds_between(ordered: Array) -> Array:
    """At most MAX_CANDIDATES thresholds half-way from a score to the next.

    They are densest at both ends, where few errors are made.
    """
    n = len(ordered)
    inward = np.geomspace(1, max(n / 2, 1), MAX_CANDIDATES // 2).astype(int) - 1
    places = np.unique(np.concatenate([inward, n - 1 - inward]))
    below, above = ordered[places], ordered[np.minimum(places + 1, n - 1)]
    finite = np.isfinite(below) & np.isfinite(above)
    between = below.copy()
    between[finite] = below[finite] / 2 + above[finite] / 2
    return between


def _counts(
    scores0: Array, scores1: Array, thresholds: Array
) -> tuple[Integers, Integers, int, int]:
    """False positives and negatives of calling scores above each threshold positive; n0, n1."""
    fp = len(scores0) - np.searchsorted(np.sort(scores0), thresholds, side="right")
    fn = np.searchsorted(np.sort(scores1), thresholds, side="right")
    return fp, fn, len(scores0), len(scores1)


def _check(fp: ArrayLike, fn: ArrayLike, n0: ArrayLike, n1: ArrayLike, alpha: float) -> None:
    if not 0 < alpha < 1:
        raise DpauditError("DPA071", f"alpha must lie strictly between 0 and 1, got {alpha}")
    for name, count, n in (("fp", fp, n0), ("fn", fn, n1)):
        if not np.all((np.asarray(count) >= 0) & (np.asarray(count) <= n) & (np.asarray(n) > 0)):
            raise DpauditError(
                "DPA071", f"{name} must lie between 0 and a positive number of trials"
            )


Tradeoff = Callable[[Array], Array]  # false positive rates to the least false negative rates


def expected_bound(n: int, delta: float, alpha: float, tradeoff: Tradeoff) -> float:
    """The mean of ``epsilon_lower_bound`` with the best threshold and ``n`` counted scores a world.

    Args:
        tradeoff: of the mechanism that really runs; with a perfect test, zero everywhere.
    """
    fp, fn = _likely_counts(n, tradeoff)
    bound = epsilon_lower_bound(fp[:, :, None], fn[:, None, :], n, n, delta, alpha)
    return float(bound.mean(axis=(1, 2)).max())


def expected_family_bound(n: int, alpha: float, tradeoff: Tradeoff) -> float:
    """The mean of ``family_lower_bound`` on mu, likewise."""
    fp, fn = _likely_counts(n, tradeoff)
    bound = family_lower_bound(fp[:, :, None], fn[:, None, :], n, n, alpha)
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
    """Quantiles of the errors that tests of each rate make on n scores of a world, [n_rates, k].

    Of rates that miss as many, the least alone: the others prove less.
    """
    missed, least = np.unique(np.clip(tradeoff(RATES), 0.0, 1.0), return_index=True)
    few = len(least) < len(RATES) / 2
    fp = _quantiles(n, RATES[least, None]) if few else _false_positives(n)[least]
    return fp, _quantiles(n, missed[:, None])


@lru_cache(maxsize=8)  # one trade-off curve after the other uses the same runs
def _false_positives(n: int) -> Array:
    return _quantiles(n, RATES[:, None])


def _quantiles(n: int, rate: Array) -> Array:
    """Quantiles of binomial counts; by the normal limit if their std exceeds 30."""
    spread = np.sqrt(n * rate * (1 - rate))
    few = spread[:, 0] <= 30
    counts = n * rate + spread * ndtri(QUANTILES)
    counts[few] = quantile(QUANTILES, n, rate[few])
    return counts


class NoiseFactorBound(NamedTuple):
    """The noise is below ``noise_factor`` times the declared one, and epsilon at least this."""

    noise_factor: float  # below 1: refutes the declaration; infinite: nothing does
    epsilon: float


def noise_factor_bound(
    fp: int,
    fn: int,
    n0: int,
    n1: int,
    delta: float,
    alpha: float,
    mechanism: Mechanism,
    adjacency: RecordAdjacency = "add-remove",
) -> NoiseFactorBound:
    """Bound the noise of a mechanism of the declared shape, and its epsilon at delta.

    The counts are as in ``bounds``, for a threshold fixed before they were seen. Wrong with
    probability alpha at most. The epsilon is proven for mechanisms of this shape alone.
    """
    fpr, fnr = clopper_pearson(fp, n0, alpha / 2), clopper_pearson(fn, n1, alpha / 2)

    def missed(step: int) -> float:
        times = with_noise_times(mechanism, _factor(step))
        return float(false_negative_rate(times, fpr, adjacency))

    if not missed(STEPS) > fnr:
        return NoiseFactorBound(np.inf, 0.0)
    factor = _factor(_first_above(missed, float(fpr), float(fnr)))
    at_it = with_noise_times(mechanism, factor)
    return NoiseFactorBound(factor, epsilon(at_it, delta, adjacency).low)


def _factor(step: int) -> float:
    """One of ``STEPS`` factors of equal ratios between the least and the most."""
    return float(LEAST * (MOST / LEAST) ** (step / STEPS))


def _first_above(missed: Callable[[int], float], fpr: float, fnr: float) -> int:
    """The least step from 1 on at which more is ``missed`` than fnr; at ``STEPS`` it is.

    Of Gaussian noise Phi^-1(1 - FPR) - Phi^-1(FNR) is mu, whose logarithm falls as that of the
    factor rises. So secants in both find the step soon, of other noise too; else it is bisected.
    """
    low, high, slope = 0, STEPS, -log(MOST / LEAST) / STEPS
    step = round(STEPS * log(1 / LEAST) / log(MOST / LEAST))  # the declared noise
    wanted, last = _log_shift(fpr, fnr), (step, nan)
    secants = 0
    while high - low > 1:
        rate = missed(step)
        low, high = (low, step) if rate > fnr else (step, high)
        shift = _log_shift(fpr, rate)
        if isfinite(shift - last[1]) and step != last[0]:
            slope = (shift - last[1]) / (step - last[0])
        guess = step + (wanted - shift) / slope if slope < 0 else nan
        last, step = (step, shift), (low + high) // 2
        if secants < SECANTS and low <= guess <= high:  # a step beyond the guess closes the bracket
            beyond = ceil(guess) if last[0] == low else floor(guess)
            step, secants = min(max(beyond, low + 1), high - 1), secants + 1
    return high


def _log_shift(fpr: float, fnr: float) -> float:
    """The logarithm of the mu of Gaussian noise with these rates; NaN or infinite without one."""
    with np.errstate(all="ignore"):
        return float(np.log(-ndtri(fpr) - ndtri(fnr)))


def noise_p_value(
    fp: int,
    fn: int,
    n0: int,
    n1: int,
    mechanism: Mechanism,
    adjacency: RecordAdjacency = "add-remove",
) -> float:
    """The smallest alpha at which the counts refute that the declared noise is drawn."""

    least = false_negative_rates(mechanism, adjacency)

    def refuted(alpha: float) -> bool:
        fpr, fnr = clopper_pearson(fp, n0, alpha / 2), clopper_pearson(fn, n1, alpha / 2)
        return bool(least(fpr) > fnr)

    return smallest_alpha(refuted)


def with_noise_times(mechanism: Mechanism, factor: float) -> list[Release]:
    """The same releases with ``factor`` times the noise."""
    return [
        r.model_copy(update={"noise_multiplier": factor * r.noise_multiplier}) for r in mechanism
    ]
