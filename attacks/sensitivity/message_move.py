"""How far one message of one round moves, beside what is stated of it."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from dpaudit.defense import Stated
from dpaudit.files.finding import WITHIN_BOUND


class Row(NamedTuple):
    """One message of one round."""

    message: str
    round: int
    norm: int
    moved: Mapping[str, float]  # kind of neighbour -> norm of the message's difference
    stated: float | None
    tolerance: float  # rounding that these norms may contain
    noiseless: bool = False  # it moved, and noise of the round makes no difference to it
    processed: bool = False  # it moved too far, as a function of values under the declared noise
    by_releases: bool = False  # the bound is that of the declared releases, not the stated one
    weighted: bool = False  # lengths are in units of noise that is not alike in all coordinates
    beyond: float | None = None  # the larger one that the defense states then
    agent: int | None = None  # owner of the record; None: the victim

    @property
    def measured(self) -> float:
        return max(self.moved.values())

    @property
    def exceeds(self) -> bool:
        """By more than rounding: of sums, or of public numbers in float32, as of a rotation."""
        return self.stated is not None and (self.measured == inf or self.measured > self.most)

    @property
    def most(self) -> float:
        """What is within the stated bound."""
        assert self.stated is not None
        return self.stated * WITHIN_BOUND + self.tolerance

    @property
    def counts(self) -> bool:
        """Whether it speaks against what is stated."""
        return (self.exceeds or self.noiseless) and not self.processed


def lesser(stated: Stated | None, declared: Stated | None) -> tuple[Stated | None, float | None]:
    """The bound that counts, and what is stated where the declared one is less."""
    if stated is None or declared is None:
        return stated or declared, None
    less = declared.norm == stated.norm and declared.value < stated.value
    return (declared, stated.value) if less else (stated, None)
