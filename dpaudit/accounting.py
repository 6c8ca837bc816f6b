"""From what a defense declares that it released, to epsilon and delta.

A defense lists its releases: one entry for each round's message about one batch, or for several
equal ones. Any number of them, in any order, compose adaptively. Epsilon is in nats.
"""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Literal, NamedTuple

from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import NeighboringRelation
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from dpaudit.errors import DpauditError
from dpaudit.strict import Strict

Adjacency = Literal["add-remove", "replace-one"]


class Release(Strict):
    """What one round (or ``count`` equal rounds) released about one batch of private records.

    ``noise_multiplier`` is the Gaussian's standard deviation over the L2 sensitivity of the batch
    *sum* to adding or removing one record, or the Laplace scale over its L1 sensitivity: for
    per-record clipping to C, both are noise / C whatever the adjacency asked for later. 0 means no
    noise. ``sampling`` says how the batch was drawn from the agent's records: each with
    probability ``sampling_rate`` ("poisson"), a batch of fixed size that is this fraction of the
    records ("fixed", without replacement), or all of them ("none", rate 1).
    """

    family: Literal["gaussian", "laplace"]
    noise_multiplier: NonNegativeFloat
    sampling: Literal["none", "poisson", "fixed"] = "none"
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    count: PositiveInt = 1

    @model_validator(mode="after")
    def _a_rate_needs_a_sampling(self) -> "Release":
        if self.sampling == "none" and self.sampling_rate != 1:
            raise ValueError(
                f"sampling_rate={self.sampling_rate} without sampling; "
                'say sampling="poisson" or "fixed", or leave the rate at 1'
            )
        return self


Mechanism = Sequence[Release]


class Interval(NamedTuple):
    """A number known to lie between two, both included."""

    low: float
    high: float


def epsilon(mechanism: Mechanism, delta: float, adjacency: Adjacency = "add-remove") -> Interval:
    """Bounds on the smallest epsilon such that the mechanism is (epsilon, delta)-DP."""
    if any(release.noise_multiplier == 0 for release in mechanism):
        return Interval(inf, inf)
    low, high = (_composed(mechanism, adjacency, bound) for bound in (False, True))
    return Interval(low.get_epsilon_for_delta(delta), high.get_epsilon_for_delta(delta))


def _composed(
    mechanism: Mechanism, adjacency: Adjacency, high: bool
) -> pld.PrivacyLossDistribution:
    total = pld.identity(pessimistic_estimate=high)
    for release in mechanism:
        total = total.compose(_loss(release, adjacency, high).self_compose(release.count))
    return total


def _loss(release: Release, adjacency: Adjacency, high: bool) -> pld.PrivacyLossDistribution:
    if release.sampling == "fixed":
        raise DpauditError("sampling 'fixed' is not accounted for yet")
    options = {"pessimistic_estimate": high, "use_connect_dots": high}
    if release.family == "gaussian":
        return pld.from_gaussian_mechanism(
            release.noise_multiplier,
            sampling_prob=release.sampling_rate,
            neighboring_relation=NeighboringRelation.REPLACE_ONE
            if adjacency == "replace-one"
            else NeighboringRelation.ADD_OR_REMOVE_ONE,
            **options,
        )
    if adjacency == "replace-one" and release.sampling_rate < 1:
        raise DpauditError("replace-one with sampled Laplace noise is not accounted for yet")
    shift = 2 if adjacency == "replace-one" else 1
    return pld.from_laplace_mechanism(
        release.noise_multiplier, shift, sampling_prob=release.sampling_rate, **options
    )
