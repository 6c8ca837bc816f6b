"""Privacy against utility: what accounting leaves of each run, and what its models are worth."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from dpaudit.files.finding import Metric
from dpaudit.files.verdict import Verdict

from .drawing import BLIND, DEFENSE, MUTED, NO_DEFENSE, _svg
from .epsilon import TICKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EDGE = 1.35  # times the largest epsilon: where what has no upper end is marked
FEW = 12  # runs that are named beside their marks; more are numbered
LONGEST = 24  # characters of a name
LOOKS: Mapping[Verdict | None, tuple[str, str]] = {  # marker, colour
    Verdict.REFUTED: ("X", NO_DEFENSE),
    Verdict.UNSUPPORTED: ("s", NO_DEFENSE),
    Verdict.UNDERPOWERED: ("D", BLIND),
    Verdict.NOT_REFUTED: ("o", DEFENSE),
    None: ("^", MUTED),
}


class Point(NamedTuple):
    """A run: epsilon of one record over the whole of it, and utility over its agents.

    ``epsilon.high`` is infinite where nothing bounds it, as where accounting is void.
    """

    number: int
    label: str
    verdict: Verdict | None
    epsilon: Metric
    certified: float | None
    utility: Metric


def privacy_utility(points: Sequence[Point], name: str, title: str, utility: str) -> Markup | None:
    """A mark at the upper end of epsilon and mean utility, lines over both intervals.

    What has no upper end is an arrow at the right edge, so that it lies to the right of every run
    that has one; a tick in the line is the bound that runs certify.

    Args:
        utility: the label of its axis.

    Returns None where there is nothing to draw.
    """
    if not points:
        return None
    largest = largest_epsilon(points)

    def paint(axes: "Axes") -> None:
        for point in points:
            text = point.label if len(points) <= FEW else str(point.number)
            mark(axes, point, EDGE * largest, text)
        epsilon_axis(axes, largest)
        axes.set_ylabel(utility, parse_math=False)
        axes.margins(y=0.12)
        verdict_legend(axes, {point.verdict for point in points})

    return _svg(name, title, (7.0, 4.2), paint)


def largest_epsilon(points: Sequence[Point]) -> float:
    """The largest that is finite of all that is drawn of them, at least 1."""
    known = [x for p in points for x in (*_ends(p), p.certified) if x is not None]
    return max([1.0, *(x for x in known if math.isfinite(x))])


def _ends(point: Point) -> tuple[float, float]:
    """Lower and upper end of epsilon; the value where no ends are known."""
    epsilon = point.epsilon
    low = epsilon.value if epsilon.low is None else epsilon.low
    return low, epsilon.value if epsilon.high is None else epsilon.high


def mark(axes: "Axes", point: Point, edge: float, text: str = "", alpha: float = 1.0) -> None:
    """A point with its intervals and a text above it; ``edge`` is where an arrow begins."""
    marker, colour = LOOKS[point.verdict]
    thin: Any = {"color": colour, "linewidth": 1.2, "alpha": alpha}
    low, high = _ends(point)
    x, y = (high if math.isfinite(high) else edge), point.utility.value
    axes.plot([min(low, x), x], [y, y], **thin)
    if point.utility.low is not None and point.utility.high is not None:
        axes.plot([x, x], [point.utility.low, point.utility.high], **thin)
    if point.certified is not None and math.isfinite(point.certified):
        axes.plot([point.certified], [y], "|", color=colour, markersize=9, alpha=alpha)
    axes.plot([x], [y], marker, color=colour, markersize=6, alpha=alpha, label=point.label)
    if math.isinf(high):
        arrow = {"arrowstyle": "->", "color": colour, "alpha": alpha}
        axes.annotate("", (1.12 * edge, y), (x, y), arrowprops=arrow)
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    if text:
        axes.annotate(
            text, (x, y), (0, 6), textcoords="offset points", fontsize=8, ha="center",
            parse_math=False,
        )  # fmt: skip


def epsilon_axis(axes: "Axes", largest: float) -> None:
    """From 0 to beyond the largest epsilon that is drawn; logarithmic where that is over 10."""
    if largest > 10:
        axes.set_xscale("symlog", linthresh=1.0)
        ticks = [tick for tick in TICKS if tick <= largest]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
    axes.set_xlim(0, EDGE * largest * (1.6 if largest > 10 else 1.15))
    axes.set_xlabel("epsilon of one record, whole run, by accounting")


def verdict_legend(axes: "Axes", verdicts: set[Verdict | None]) -> None:
    """The marks of some verdicts, above the axes."""
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=verdict or "no claim")
        for verdict, (marker, colour) in LOOKS.items()
        if verdict in verdicts
    ]
    axes.legend(handles=marks, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
