"""What successes of reconstructions prove: more of them than a claim allows.

A claim bounds the success of one reconstruction by gamma(kappa), with kappa the success of a blind
guess (``dpaudit.accounting.reconstruction``). Of n targets,

    in runs of their own    the successes are at most binomial with success gamma
    in one run              their expected share is gamma at most, however targets depend on one
                            another, so that a share x or more has probability gamma / x at most
                            (Markov's inequality)

Both follow from what is claimed of one record alone. Nothing better does for one run: a mechanism
that gives all records away at once in a share gamma of its runs may keep to its claim.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpaudit.accounting.binomial import more_than, quantile
from dpaudit.accounting.reconstruction import least_epsilon, least_mu, under_epsilon, under_mu

from .bounds import clopper_pearson

QUANTILES = (np.arange(64) + 0.5) / 64  # quantiles of successes, for an expectation


class Promise(Protocol):
    """What a claim says of a reconstruction."""

    def gamma(self, kappa: float) -> float:
        """The most that any attacker succeeds."""
        ...

    def least(self, success: float, kappa: float) -> float:
        """The least parameter of such a claim that allows a success."""
        ...


@dataclass(frozen=True)
class EpsilonPromise:
    """(epsilon, delta)-DP."""

    epsilon: float
    delta: float

    def gamma(self, kappa: float) -> float:
        return float(under_epsilon(kappa, self.epsilon, self.delta))

    def least(self, success: float, kappa: float) -> float:
        return least_epsilon(success, kappa, self.delta)


@dataclass(frozen=True)
class MuPromise:
    """mu-GDP."""

    mu: float

    def gamma(self, kappa: float) -> float:
        return float(under_mu(kappa, self.mu))

    def least(self, success: float, kappa: float) -> float:
        return least_mu(success, kappa)


@dataclass(frozen=True)
class Successes:
    """How many of n reconstructions succeeded, at least, each with a blind chance of kappa at most.

    Args:
        kappa: an upper bound on the blind success of each, above 0.
        apart: whether each was made in a run of its own.
    """

    hits: int
    n: int
    kappa: float
    apart: bool

    def p_value(self, promise: Promise) -> float:
        """p-value of the hypothesis that the promise is kept."""
        gamma = promise.gamma(self.kappa)
        if self.hits == 0:
            return 1.0
        if self.apart:
            return float(more_than(self.hits - 1, self.n, gamma))
        return min(1.0, gamma * self.n / self.hits)

    def bound(self, promise: Promise, alpha: float) -> float:
        """The largest lower bound on the promise's parameter with this probability of error."""
        least = alpha * self.hits / self.n
        if self.apart:
            least = 1 - float(clopper_pearson(self.n - self.hits, self.n, alpha))
        return promise.least(least, self.kappa)

    def ceiling(self, promise: Promise, alpha: float) -> float:
        """The bound, had all of them succeeded."""
        return Successes(self.n, self.n, self.kappa, self.apart).bound(promise, alpha)

    def expected(self, promise: Promise, alpha: float, success: float) -> float:
        """The mean bound of runs apart that succeed with this probability."""
        counts = quantile(QUANTILES, self.n, success).astype(int)
        likely = (Successes(int(k), self.n, self.kappa, True) for k in counts)
        return float(np.mean([one.bound(promise, alpha) for one in likely]))


def needed(promise: Promise, kappa: float, alpha: float) -> float:
    """How many successes in runs apart refute a promise, if none fails; infinite if none do."""
    gamma = promise.gamma(kappa)
    if gamma >= 1:
        return np.inf
    return 1.0 if gamma <= 0 else float(np.floor(np.log(alpha) / np.log(gamma)) + 1)
