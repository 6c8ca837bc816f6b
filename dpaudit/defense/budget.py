"""Gaussian noise on clipped gradients, of a multiplier that is given or follows from a budget."""

import math
from abc import ABC
from functools import cache
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, model_validator
from scipy.optimize import brentq

from dpaudit.accounting.releases import BudgetDelta, BudgetEpsilon, RecordAdjacency, epsilon
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel

from .contract import Bracket, Defense, Setting
from .gossip import known_rounds, releases, replayed

PRECISION = (
    1e-3  # relative, of a noise multiplier found from a budget; the error is on the safe side
)
LEAST_LOG_SIGMA, MOST_LOG_SIGMA = -13.0, 16.0  # between which it is looked for


class GaussianDefense(Defense, ABC):
    """A defense whose every batch is one Gaussian release, all with one noise multiplier sigma.

    The sum over a batch of what its records add, each clipped to the L2 norm C, is sent under
    N(0, sigma^2 C^2 I). Agents draw ``batches_per_round`` batches in each of ``n_rounds`` rounds.
    """

    clip_norm: PositiveFloat = 2.0  # C
    epsilon: BudgetEpsilon | None = None
    delta: BudgetDelta = 1e-5
    adjacency: RecordAdjacency = "add-remove"  # that epsilon is meant for
    noise_multiplier: Annotated[float, Field(ge=0)] | None = None  # sigma; from epsilon if absent

    @model_validator(mode="after")
    def _noise_is_given_once(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either epsilon or noise_multiplier")
        return self

    @property
    def sigma(self) -> float:
        """The noise multiplier. Raises ValueError before ``calibrate`` has set it."""
        if self.noise_multiplier is None:
            raise ValueError("the noise is not set yet: call calibrate first")
        return self.noise_multiplier

    def calibrate(self, setting: Setting) -> Self:
        """sigma such that the agent with the fewest records is exactly (epsilon, delta)-DP."""
        if self.noise_multiplier is not None:
            return self
        fewest = min(setting.sizes[i] for i in setting.holders)
        return self.model_copy(update={"noise_multiplier": self.noise_multiplier_for(fewest)})

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_multiplier": 0.0, "epsilon": None})

    def clip_norm_in(self, k: int) -> float | None:
        return self.clip_norm

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's clipped gradients under their noise."""
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        return replayed(self, setting, victim, np.full(self.n_rounds, self.sigma), known)

    def noise_multiplier_for(self, size: int) -> float:
        """The least sigma that gives an agent with this many records its budget.

        Raises:
            ConfigError: next to no noise keeps to the budget, or none is certain to.
        """
        rate = min(1.0, self.batch_size / size)
        count = self.n_rounds * self.batches_per_round
        return self.noise_multiplier_at(rate, count, self.sampling)

    def noise_multiplier_at(
        self, rate: float, count: int, sampling: Literal["none", "fixed", "poisson"]
    ) -> float:
        """The least sigma with which this many releases keep to the budget.

        Raises:
            ConfigError: next to no noise does, or none is certain to.
        """
        assert self.epsilon is not None
        asked = self.epsilon, self.delta, self.adjacency
        log_sigma = _least_log_sigma(*asked, rate, count, sampling)
        if log_sigma in (LEAST_LOG_SIGMA, MOST_LOG_SIGMA):
            raise ConfigError("DPA041", self._unspent(log_sigma))
        return math.exp(log_sigma)

    def _unspent(self, log_sigma: float) -> str:
        """Why there is no sigma up to this one, or down to it."""
        sigma = math.exp(log_sigma)
        budget = f"epsilon = {self.epsilon:g} at delta = {self.delta:g}"
        if log_sigma > 0:
            return (
                f"defense.delta: no noise_multiplier up to {sigma:.0e} is certain to keep "
                f"{budget}, as rounding errors of the accounting, up to 1e-9, count as delta; "
                "expected a larger delta, or noise_multiplier instead of epsilon"
            )
        return (
            f"defense.delta: {budget} is kept with next to no noise (noise_multiplier "
            f"{sigma:.0e}), as a record is drawn less often than that; expected delta far below "
            "1 / (number of records), or noise_multiplier instead of epsilon"
        )


@cache  # of seconds, and asked for by every process of an audit several times
def _least_log_sigma(
    budget: float,
    delta: float,
    adjacency: RecordAdjacency,
    rate: float,
    count: int,
    sampling: Literal["none", "fixed", "poisson"],
) -> float:
    """Of the noise multiplier; one of the ends between which it is looked for if none is right."""

    def excess(log_sigma: float) -> float:
        mechanism = releases([math.exp(log_sigma)] * count, sampling, rate)
        spent = epsilon(mechanism, delta, adjacency).high
        return math.log(min(max(spent, 1e-9), 1e9) / budget)  # nearly straight, and finite

    low = high = 0.0
    while excess(high) > 0:
        if high == MOST_LOG_SIGMA:
            return high
        low, high = high, high + 1
    while low == high or excess(low) < 0:
        if low == LEAST_LOG_SIGMA:
            return low
        low -= 1
    return float(brentq(excess, low, high, xtol=PRECISION)) + PRECISION
