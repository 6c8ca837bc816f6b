"""Bounds from the sum of what all canaries' channels show, where these are Gaussian.

What is bounded is how many times as loud a canary's channel is as declared. Its channel is a part
of the view, so that an epsilon of it is one of the view: a claim is refuted where the accounted
epsilon of the least such channel, at the claim's delta, exceeds it. That rests on Gaussian noise of
one scale, independent between channels, which is tested on the canaries that are not there and not
proven; the scale itself is bounded. Both together may err with probability ``CHECKED``, which is
taken off alpha and added to each p-value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from scipy.optimize import brentq

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import epsilon
from dpaudit.defense.gossip import releases
from dpaudit.files.finding import Column, Metric, Name
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.statistics.sums import (
    MOST_FACTOR,
    CanarySum,
    channel_noise_test,
    noise_scale,
)

from .channels import Evidence

CHECKED = 1e-4  # of taking noise for what it is not, or its scale for too small or too large
ONE_DEVIATION = 0.15865525393145707  # of a normal law lies above one standard deviation
LEVELS = tuple(0.05 / 2**i for i in range(6))  # of an audit's statements, up to 32 of them
NEAR = 2e-4  # relative, of the factor at which an epsilon is reached
NOTE = (
    "bound of the sum of all canaries' scores: holds for Gaussian noise of one scale, independent "
    "between channels, which is tested here on the canaries that are not there (p = {p:.2g}; at "
    "{low:.4g} to {high:.4g} times the declared scale), and not proven"
)


def not_gaussian(adversary: Adversary) -> str | None:
    """Why the channels of an adversary's view are not Gaussian by the protocol; None: they are."""
    leak, game = adversary.leak, adversary.game
    if leak.has_laplace:
        return "the noise is not Gaussian"
    if leak.noiseless:
        return "a message shows the record without noise"
    if not any(squared.low > 0 for squared in leak.by_use):
        return "the view shows nothing of the record"
    if nonlinearity(game, adversary.threat_model, adversary.n_rounds) is not None:
        return "the defense's step is not linear in noise and record"
    return None


def not_separate(adversary: Adversary) -> str | None:
    """Why batches are not told apart in a channel; None: they are, or there is only one draw."""
    if adversary.leak.separate or adversary.game.is_lasting:
        return None
    return "a record's effect outlasts its round"


@dataclass(frozen=True)
class Summed:
    """The statistic of one run's canaries."""

    law: CanarySum
    sizes: Array  # [T]
    value: float
    note: str

    @classmethod
    def of(cls, evidence: Evidence, rate: float) -> "Summed | str":
        """The statistic, or why there is none: what the channels' noise is not."""
        assert evidence.channels is not None
        (seen, sizes), included = evidence.channels, np.asarray(evidence.included, bool)
        if included.all() or not included.any():
            return "the coins made all canaries alike"
        noise = seen[~included]
        what, p = channel_noise_test(noise, sizes)
        if p <= CHECKED / 2:
            return f"the noise of the channels is not independent and Gaussian: {what}, p = {p:.1g}"
        scale = noise_scale(noise, CHECKED / 4)
        law = CanarySum(sizes, rate, int(included.sum()), int((~included).sum()), scale)
        note = NOTE.format(p=p, low=scale.low, high=scale.high)
        return cls(law, sizes, law.statistic(seen, sizes, included), note)

    @classmethod
    def expected(cls, sizes: Array, rate: float, n_canaries: int) -> "Summed":
        """What is to be expected of a run with the declared noise."""
        half = n_canaries // 2
        scale = noise_scale(np.ones((half, len(sizes))), CHECKED / 4)
        law = CanarySum(sizes, rate, n_canaries - half, half, scale)
        return cls(law, sizes, law.mean(), "")

    def factor(self, alpha: float) -> float:
        """How many times the declared size the channels exceed."""
        return self.law.largest_refuted(self.value, alpha - CHECKED)

    @cached_property
    def factor_error(self) -> float:
        """The standard error of that factor."""
        middle, below = (self.law.largest_refuted(self.value, p) for p in (0.5, ONE_DEVIATION))
        return middle - below

    def epsilon(self, factor: float, delta: float) -> float:
        """Of channels so many times as loud as declared, from below."""
        if factor == 0:
            return 0.0
        multipliers = 1 / (factor * self.sizes)
        how = "none" if self.law.rate == 1 else "poisson"
        return epsilon(releases(multipliers, how, self.law.rate), delta).low  # type: ignore[arg-type]

    def p_value(self, claimed: float, delta: float) -> float:
        """The smallest alpha at which the claim is refuted."""
        factor = _least_beyond(lambda factor: self.epsilon(factor, delta) - claimed)
        return min(1.0, self.law.tail(self.value, factor) + CHECKED)


def bound_metrics(found: Summed, claimed: float, delta: float, alpha: float) -> dict[str, Metric]:
    """What a run's sum proves of epsilon, and says of the claim."""
    n, factor = found.law.n_present + found.law.n_absent, found.factor(alpha)
    bound = found.epsilon(factor, delta)
    error = found.epsilon(factor + found.factor_error, delta) - bound
    metrics: dict[str, Metric] = {
        Name.EPSILON_LOWER_BOUND: Metric(value=bound, n=n, standard_error=error),
        Name.CLAIMED_EPSILON: Metric(value=claimed),
        Name.DELTA: Metric(value=delta),
        Name.CONFIDENCE: Metric(value=1 - alpha),
        Name.P_VALUE: Metric(value=found.p_value(claimed, delta)),
        Name.CANARIES: Metric(value=n),
        Name.NOISE_FACTOR: Metric(value=1 / factor if factor else inf),
    }
    if found.law.rate == 1:
        metrics[Name.MU_LOWER_BOUND] = Metric(value=factor * found.law.mu, n=n)
    return metrics


def power_metrics(
    sizes: Array, rate: float, n_canaries: int, delta: float, alpha: float
) -> dict[str, Metric]:
    """What could be expected before the run, of the declared noise.

    There is no ceiling: the less noise there really is, the more any number of canaries proves. So
    it is not their number that a refutation needs.
    """
    expected = Summed.expected(sizes, rate, n_canaries)
    return {
        Name.CEILING: Metric(value=inf, n=n_canaries),
        Name.EXPECTED_BOUND: Metric(value=expected.epsilon(expected.factor(alpha), delta)),
    }


def by_level(found: Summed, delta: float) -> dict[str, tuple[float, ...]]:
    """What the run's sum proves of epsilon at each level."""
    certified = tuple(found.epsilon(found.factor(level), delta) for level in LEVELS)
    return {Column.LEVEL: LEVELS, Column.CERTIFIED: certified}


def _least_beyond(excess: Callable[[float], float]) -> float:
    """The least factor at which a rising excess is positive, rounded up; else the largest."""
    low, high = 0.0, 1.0
    while excess(high) <= 0:
        if high >= MOST_FACTOR:
            return high
        low, high = high, 2 * high
    return float(brentq(excess, low, high, xtol=NEAR * high, rtol=NEAR)) + 2 * NEAR * high
