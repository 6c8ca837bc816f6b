"""Lower bounds from one training run with many canaries, each included by its own fair coin.

The auditor sees the run, guesses for ``n_guesses`` of the ``n_canaries`` whether each was included,
and abstains on the rest; ``n_correct`` guesses are right. The number of guesses is fixed before any
score is seen. Each bound is wrong with probability alpha at most. Epsilon is in nats and for adding
or removing one canary.

    any mechanism        ``epsilon_from_guesses``      Steinke, Nasr and Jagielski 2023
    a trade-off curve    ``shift_from_guesses``        Mahloujifar, Melis and Chaudhuri 2025
    Gaussian, apart      ``mu_from_ranked_guesses``    Xiang et al. 2025

They assume the more the further down, and prove more. The last one needs canaries that do not share
a channel: orthogonal gradients under known Gaussian noise, ranked by their likelihood ratio. Where
such canaries can all be counted, ``sums`` proves more still.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import betaincinv, expit, ndtr

from dpaudit.accounting.binomial import at_most, more_than
from dpaudit.accounting.families import GAUSSIAN, TradeoffFamily
from dpaudit.accounting.privacy_loss import Array
from dpaudit.errors import DpauditError

MOST = 50.0  # no epsilon and no shift above this is resolved
PRECISION = 1e-6
NODES = 400  # quantiles of the score at the border between guesses and abstentions


def correct_guesses(evidence: Array, included: Array, n_guesses: int) -> int:
    """How many of the guesses with the strongest evidence are right.

    Args:
        evidence: [n_canaries], for (positive) or against the canary having been included, such as
            its log likelihood ratio. The guesses are on the largest absolute values.
        included: [n_canaries], the secret.

    Raises:
        DpauditError: the shapes differ, evidence is NaN, or there are not so many canaries.
    """
    evidence, included = np.asarray(evidence, float), np.asarray(included, bool)
    if evidence.shape != included.shape or evidence.ndim != 1:
        raise DpauditError(
            "DPA072",
            f"evidence {evidence.shape} and included {included.shape} must be one list each",
        )
    if np.isnan(evidence).any():
        raise DpauditError(
            "DPA072", f"{int(np.isnan(evidence).sum())} canaries have NaN as evidence"
        )
    _check(len(evidence), n_guesses, 0)
    guessed = np.argsort(-np.abs(evidence), kind="stable")[:n_guesses]
    return int(np.sum((evidence[guessed] > 0) == included[guessed]))


def epsilon_from_guesses(
    n_canaries: int, n_guesses: int, n_correct: int, delta: float, alpha: float
) -> float:
    """What any (epsilon, delta)-DP mechanism must exceed for so many right guesses.

    The largest epsilon with P[Bin(r, q) >= v] + 2 m delta a <= alpha, where q = e^eps/(1 + e^eps)
    and a is the largest of P[v - i <= Bin(r, q) < v]/i. Source: Steinke, Nasr and Jagielski 2023,
    arXiv:2305.08846, Theorem 5.2.

    Raises:
        DpauditError: not 0 <= n_correct <= n_guesses <= n_canaries.
    """
    _check(n_canaries, n_guesses, n_correct)
    back = np.arange(1, n_correct + 1)

    def excess(epsilon: float) -> float:
        guess = n_guesses, expit(epsilon)
        likely = more_than(n_correct - 1, *guess)
        just_below = at_most(n_correct - 1, *guess) - at_most(n_correct - 1 - back, *guess)
        near = float(np.max(just_below / back, initial=0.0))
        return float(likely + 2 * n_canaries * delta * near) - alpha

    return _largest(lambda epsilon: excess(epsilon) <= 0)


def shift_from_guesses(
    n_canaries: int, n_guesses: int, n_correct: int, alpha: float, family: TradeoffFamily = GAUSSIAN
) -> float:
    """The parameter that a mechanism with a curve of this family must exceed.

    With p_j the probability of j right guesses, R_i = sum_{j >= i} j p_j/m that of a canary guessed
    right and H_i = sum_{j >= i} (r - j) p_j/m that of one guessed wrong, turning one canary's coin
    gives R_i <= 1 - f(H_{i-1}). From P[at least v right] = alpha, the least R and H that this
    allows follow one by one downwards; a curve f for which they exceed R_0 + H_0 = r/m is refuted.
    Source: Mahloujifar, Melis and Chaudhuri 2025, arXiv:2410.22235; derived here as stated.

    Raises:
        DpauditError: the counts are out of order, or the family's curve is not symmetric.
    """
    _check(n_canaries, n_guesses, n_correct)
    if family.rate != 1:
        raise DpauditError(
            "DPA071", "the bound needs a symmetric trade-off curve: a family of rate 1"
        )
    scale, whole = alpha / n_canaries, n_guesses / n_canaries

    def refuted(shift: float) -> bool:
        right, wrong = scale * n_correct, scale * (n_guesses - n_correct)
        for j in range(n_correct - 1, -1, -1):
            least = float(family.false_negative_rate(shift, np.array(1 - right)))
            more = max(least - wrong, 0.0)
            right, wrong = right + more * j / (n_guesses - j), wrong + more
            if right + wrong > whole:
                return True
        return False

    return _largest(refuted)


def mu_from_ranked_guesses(n_canaries: int, n_guesses: int, n_correct: int, alpha: float) -> float:
    """The mu that Gaussian canary channels, one per canary, must exceed.

    The guesses are on the canaries of largest absolute log likelihood ratio, and by its sign. The
    number of wrong ones is Bin(r, g(W)): W ~ Beta(n - r, r + 1) is the quantile of the largest
    ratio not guessed on, and g the mean error above it. Source: Xiang et al. 2025,
    arXiv:2509.08704.

    Raises:
        DpauditError: not 0 <= n_correct <= n_guesses <= n_canaries.
    """
    _check(n_canaries, n_guesses, n_correct)
    n_wrong, quantiles = n_guesses - n_correct, (np.arange(NODES) + 0.5) / NODES
    above = np.ones(1)  # the share of canaries guessed on, if that is all of them
    if n_guesses < n_canaries:
        above = 1 - betaincinv(n_canaries - n_guesses, n_guesses + 1, quantiles)

    def refuted(mu: float) -> bool:
        return float(np.mean(at_most(n_wrong, n_guesses, _mean_error(mu, above)))) <= alpha

    return _largest(refuted)


def _mean_error(mu: float, above: Array) -> Array:
    """How often the sign is wrong for a share ``above`` of the strongest log likelihood ratios.

    The ratio is mu y, with y ~ N(mu/2, 1) or N(-mu/2, 1): |y| exceeds t with probability
    Phi(mu/2 - t) + Phi(-mu/2 - t), and with the wrong sign with the second of the two.
    """
    low, high = np.zeros_like(above), np.full_like(above, mu / 2 + 40.0)
    for _ in range(60):
        t = (low + high) / 2
        too_low = ndtr(mu / 2 - t) + ndtr(-mu / 2 - t) > above
        low, high = np.where(too_low, t, low), np.where(too_low, high, t)
    wrong = ndtr(-mu / 2 - low)
    return wrong / (ndtr(mu / 2 - low) + wrong)


def _largest(refuted: Callable[[float], bool]) -> float:
    """The end of the parameters from 0 that are refuted, rounded down; 0 if not even 0 is."""
    low, high = 0.0, MOST
    if not refuted(low):
        return 0.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check(n_canaries: int, n_guesses: int, n_correct: int) -> None:
    if not 0 <= n_correct <= n_guesses <= n_canaries or n_guesses == 0:
        raise DpauditError(
            "DPA072",
            f"expected 0 <= n_correct <= n_guesses <= n_canaries and a guess, "
            f"got {n_correct}, {n_guesses}, {n_canaries}",
        )
