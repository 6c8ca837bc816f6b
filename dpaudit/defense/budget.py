"""Gaussian noise on clipped gradients, of a given multiplier or one from a budget; or no noise."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, model_validator
from scipy.optimize import brentq

from dpaudit.accounting.releases import (
    BudgetDelta,
    BudgetEpsilon,
    Mechanism,
    RecordAdjacency,
    Release,
    epsilon,
)
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel

from .contract import Bracket, Defense, Setting
from .gossip import gaussian_rounds, releases

PRECISION = 1e-3  # relative, of a noise multiplier from a budget; the error is on the safe side
LEAST_LOG_SIGMA, MOST_LOG_SIGMA = -13.0, 16.0  # between which it is looked for


def refuse_unless_one_is_given(defense: Defense, one: str, other: str) -> None:
    """Raises ValueError unless exactly one of two options has a value."""
    if (getattr(defense, one) is None) == (getattr(defense, other) is None):
        raise ValueError(f"give either {one} or {other}")


class BudgetDefense(Defense, ABC):
    """A defense whose one noise multiplier is given, or follows from a budget by ``calibrate``."""

    epsilon: BudgetEpsilon | None = None
    delta: BudgetDelta = 1e-5
    noise_multiplier: Annotated[float, Field(ge=0)] | None = None  # sigma; from epsilon if absent

    @model_validator(mode="after")
    def _noise_is_given_once(self) -> Self:
        refuse_unless_one_is_given(self, "epsilon", "noise_multiplier")
        return self

    @property
    def sigma(self) -> float:
        """The noise multiplier. Raises ValueError before ``calibrate`` has set it."""
        if self.noise_multiplier is None:
            raise ValueError("the noise is not set yet: call calibrate first")
        return self.noise_multiplier

    def calibrate(self, setting: Setting) -> Self:
        """The same with ``noise_multiplier_of`` this setting, if none is given."""
        super().calibrate(setting)
        if self.noise_multiplier is not None:
            return self
        return self.model_copy(update={"noise_multiplier": self.noise_multiplier_of(setting)})

    @abstractmethod
    def noise_multiplier_of(self, setting: Setting) -> float:
        """sigma from epsilon and delta."""

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_multiplier": 0.0, "epsilon": None})


class GaussianDefense(BudgetDefense, ABC):
    """A defense whose every batch is one Gaussian release, all with one noise multiplier sigma.

    The sum over a batch of what its records add, each clipped to the L2 norm C, is sent under
    N(0, sigma^2 C^2 I). Agents draw ``batches_per_round`` batches in each of ``n_rounds`` rounds.
    """

    claims: ClassVar[str] = "(epsilon, delta)-DP over the run, one record"
    clips_records: ClassVar[bool] = True  # each record's whole gradient to norm C, and nothing else

    clip_norm: PositiveFloat = 2.0  # C
    adjacency: RecordAdjacency = "add-remove"  # that epsilon is meant for

    def noise_multiplier_of(self, setting: Setting) -> float:
        """sigma such that the agent with the fewest records is exactly (epsilon, delta)-DP."""
        return self.noise_multiplier_for(min(setting.sizes[i] for i in setting.holders))

    def clip_norm_in(self, k: int) -> float | None:
        return self.clip_norm if self.clips_records else None

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's clipped gradients under their noise."""
        return gaussian_rounds(self, setting, threat_model, victim, self.sigma)

    def noise_multiplier_for(self, size: int) -> float:
        """The least sigma that gives an agent with this many records its budget.

        Raises:
            ConfigError: next to no noise keeps to the budget, or none is certain to.
        """
        count = self.n_rounds * self.batches_per_round
        return self.noise_multiplier_at(self.sampling_rate(size), count, self.sampling)

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


class GaussianSGD(GaussianDefense, ABC):
    """A round is one noisy gradient step of every agent and an exchange of what it leads to."""

    private: ClassVar[Mapping[str, str]] = {
        "gradient": "the mean of the batch's clipped gradients, without noise"
    }

    learning_rate: PositiveFloat = 0.05  # eta

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> Mapping[str, float]:
        """eta C / B."""
        moved = self.learning_rate * self.clip_norm / self.batch_size
        return dict.fromkeys(self.messages, moved)


class NoiselessDefense(Defense, ABC):
    """A defense without noise, each of whose rounds releases the gradient of a batch as it is."""

    claims: ClassVar[str] = "none"

    def without_noise(self) -> Self:
        """Itself: it draws no noise, and random weights are part of an algorithm."""
        return self

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's gradient as it is."""
        return gaussian_rounds(self, setting, threat_model, victim, 0.0)


class NoiselessFunctionDefense(NoiselessDefense, ABC):
    """A defense without noise in which an agent's one function is what messages depend on."""

    first_release: ClassVar[int] = 1  # the first round whose messages depend on the function

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Messages of the victim that depend on its function and that no noise hides."""
        count = self.n_rounds + 1 - self.first_release
        receivers = setting.network.at(1).neighbours(victim)
        seen = any(threat_model.sees(victim, i) for i in receivers)
        releases: Mechanism = ()
        if count > 0:
            releases = (Release(family="laplace", noise_multiplier=0.0, count=count),)
        return Bracket(
            least=releases if seen else (),
            most=releases,
            assumptions=(
                "no noise: two functions that give different messages are told apart with "
                "certainty",
                "the adversary knows the initial models, and the functions of all other agents",
            ),
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
    """Logarithm of the least noise multiplier; an end of the searched range if none is right."""

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
