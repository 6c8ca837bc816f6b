"""What an audit knows of a claim's epsilon, on one axis: where the marks and the ticks stand.

The template of the page draws it. Places are in percent of the width, so that text keeps its size
on a phone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dpaudit.files.result import EpsilonRange
from dpaudit.reports.numbers import at_least, at_most, number

LEFT, RIGHT, END = 2.0, 88.0, 98.0  # of 0, of the largest number, of what is infinite
WIDEST = 20.0  # times the smallest number: beyond it the axis is logarithmic
DECADES = 4  # at most
MOST_TICKS = 5
LABELS: Mapping[str, str] = {
    "claimed": "claimed: epsilon at most {}",
    "certified": "certified: at least {}",
    "accounted": "accounted as declared: {}",
    "measured": "measured: at most {}",
}
ROUNDED = {"certified": at_least, "measured": at_most}  # outward; the others to the nearest


class Mark(NamedTuple):
    """A number on the axis, with its label."""

    name: str  # a key of LABELS
    says: str
    at: float
    is_infinite: bool

    @property
    def anchor(self) -> str:
        """The side of the mark on which its label has room."""
        return "start" if self.at < 33 else "end" if self.at > 67 else "middle"


class RangeDrawing(NamedTuple):
    """Marks and ticks of an axis of epsilon."""

    marks: Sequence[Mark]
    ticks: Sequence[tuple[float, str]]

    @property
    def says(self) -> str:
        """The same in words."""
        return f"epsilon on one axis; {'; '.join(mark.says for mark in self.marks)}"

    def mark(self, name: str) -> Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)


def range_drawing(claimed: float | None, known: EpsilonRange, void: bool = False) -> RangeDrawing:
    """The claim, and what is certified, accounted and measured; what is no number has no mark.

    Args:
        claimed: epsilon; None if the claim has none.
        void: whether what is accounted was disproved: it has no upper end then.
    """
    if void:
        known = known.model_copy(update={"accounted": math.inf})
    values = {"claimed": claimed, **known.model_dump()}
    shown = {name: x for name, x in values.items() if x is not None and not math.isnan(x)}
    finite = [x for x in shown.values() if 0 < x < math.inf]
    scale = _Scale.of(finite)
    marks = []
    for name, says in LABELS.items():
        if name in shown:
            x = shown[name]
            at = END if x == math.inf else scale.place(max(x, 0.0))
            text = says.format(ROUNDED.get(name, number)(x))
            if x == math.inf and name != "certified":
                end = "void" if void and name == "accounted" else "no upper end"
                text = f"{says.partition(':')[0]}: {end}"
            marks.append(Mark(name, text, round(at, 2), x == math.inf))
    ticks = [(round(scale.place(x), 2), number(x)) for x in scale.ticks()]
    return RangeDrawing(marks, ticks)


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
        return LEFT + (RIGHT - LEFT) * self._up(x) / self._up(self.largest)

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
