"""What a round released about one batch: its noise, and how the batch was drawn."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from .strict import Strict

NoiseFamily = Literal["gaussian", "laplace"]


class Release(Strict):
    """What one round (or ``count`` equal rounds) released about one batch of private records.

    ``noise_multiplier`` is the Gaussian's standard deviation over the L2 sensitivity of the batch
    *sum* to adding or removing one record, or the Laplace scale over its L1 sensitivity: for
    per-record clipping to C, both are noise / C whatever the adjacency asked for later. 0 means no
    noise. ``sampling`` says how the batch was drawn from the agent's records: each with
    probability ``sampling_rate`` ("poisson"), a batch of fixed size that is this fraction of the
    records ("fixed", without replacement), or all of them ("none", rate 1).

    ``clipped`` = "whole" is a release that is clipped to C itself, as the mean of a batch or an
    agent's update may be. It stays in a ball, so that no change of data moves it by more than 2C,
    and ``noise_multiplier`` is noise / 2C.
    """

    family: NoiseFamily
    noise_multiplier: NonNegativeFloat
    sampling: Literal["none", "poisson", "fixed"] = "none"
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    count: PositiveInt = 1
    clipped: Literal["records", "whole"] = "records"

    @model_validator(mode="after")
    def _a_rate_needs_a_sampling(self) -> "Release":
        if self.sampling == "none" and self.sampling_rate != 1:
            raise ValueError(
                f"sampling_rate={self.sampling_rate} without sampling; "
                'say sampling="poisson" or "fixed", or leave the rate at 1'
            )
        return self

    def noise_over(self, records: float) -> float:
        """Its noise over how far a change of so many records of a batch moves it at most."""
        return self.noise_multiplier / (1 if self.clipped == "whole" else records)
