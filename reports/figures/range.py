"""What an audit knows of a claim's epsilon, on one axis: where the marks and the ticks stand.

The template of the page draws it. Places are in percent of the width, so that text keeps its size
on a phone.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dpaudit.files.result import EpsilonRange
from dpaudit.reports.numbers import at_least, at_most, number

LEFT, RIGHT, END = 2.0, 88.0, 98.0  # places of 0, of the largest number, and of infinity
WIDEST = 20.0  # times the smallest number: beyond it the axis is logarithmic
DECADES = 4  # decades of the axis, at most
MOST_TICKS = 5
SAFE, OPPOSITE = 33, 67  # range in which a label has room on both sides


class Mark(NamedTuple):
    """What stands on the axis from one number to another, with its label."""

    says: str
    low: float
    high: float
    is_open: bool = False  # whether it has no upper end

    @property
    def at(self) -> float:
        """Where its label stands: in its middle."""
        return (self.low + self.high) / 2

    @property
    def anchor(self) -> str:
        """The side of the mark on which its label has room."""
        return "start" if self.at < SAFE else "end" if self.at > OPPOSITE else "middle"


class RangeDrawing(NamedTuple):
    """An axis of epsilon: its ticks, and what stands on it; None where nothing is known."""

    claimed: Mark | None
    measured: Mark | None
    accounted: Mark | None
    ticks: Sequence[tuple[float, str]]

    @property
    def says(self) -> str:
        """The same in words."""
        marks = (self.claimed, self.measured, self.accounted)
        return f"epsilon on one axis; {'; '.join(mark.says for mark in marks if mark)}"


def range_drawing(claimed: float | None, known: EpsilonRange, void: bool = False) -> RangeDrawing:
    """The claim, the interval that the audit leaves of epsilon, and what the noise accounts for.

    Args:
        claimed: epsilon; None if the claim has none.
        void: whether what is accounted was disproved: it has no upper end then.
    """
    accounted = math.inf if void else known.accounted
    numbers = (claimed, known.certified, known.measured, accounted)
    scale = _Scale.of([x for x in numbers if x is not None and 0 < x < math.inf])

    def single(says: str, x: float | None) -> Mark | None:
        if x is None or math.isnan(x):
            return None
        at = scale.place(x)
        return Mark(says.format(number(x)), at, at, x == math.inf)

    end = "void" if void else "no upper end" if accounted == math.inf else "{}"
    ticks = [(scale.place(x), number(x)) for x in scale.ticks()]
    return RangeDrawing(
        single("claimed epsilon: {}", claimed),
        _interval(known.certified, known.measured, scale),
        single(f"accounted as declared: {end}", accounted),
        ticks,
    )


def _interval(certified: float, measured: float, scale: "_Scale") -> Mark | None:
    """From what is certified to what is measured, rounded outward."""
    low, high = (None if math.isnan(x) else x for x in (certified, measured))
    if low is None and high is None:
        return None
    low, high = low or 0.0, math.inf if high is None else high
    if low == math.inf:
        says = "no finite epsilon"
    elif high == math.inf:
        says = f"{at_least(low)} or more" if low > 0 else "no bound"
    else:
        says = f"{at_least(low)} to {at_most(high)}" if low > 0 else f"at most {at_most(high)}"
    return Mark(f"measured: {says}", scale.place(low), scale.place(high), high == math.inf)


class _Scale(NamedTuple):
    """From 0 to the largest number; linear, or linear to a decade and logarithmic from there."""

    largest: float
    decade: float | None

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "_Scale":
        largest, least = max(numbers, default=1.0), min(numbers, default=1.0)
        if largest <= WIDEST * least:
            return cls(largest, None)
        least = max(least, largest / 10.0**DECADES)
        return cls(largest, 10.0 ** math.floor(math.log10(least)))

    def place(self, x: float) -> float:
        if x == math.inf:
            return END
        return round(LEFT + (RIGHT - LEFT) * self._up(max(x, 0.0)) / self._up(self.largest), 2)

    def _up(self, x: float) -> float:
        if self.decade is None:
            return x
        return 0.5 * x / self.decade if x <= self.decade else 0.5 + math.log10(x / self.decade)

    def ticks(self) -> list[float]:
        """Round numbers from 0."""
        if self.decade is not None:
            n = math.floor(math.log10(self.largest / self.decade) + 1e-9)
            return [0.0, *(self.decade * 10.0**i for i in range(n + 1))]
        rough = self.largest / (MOST_TICKS - 1)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        return [i * step for i in range(math.floor(self.largest / step + 1e-9) + 1)]
