"""Privacy against utility: what accounting leaves of each run, and what its models are worth."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpaudit.files.finding import Metric
from dpaudit.files.verdict import Verdict
from dpaudit.reports.tables import Row

from . import drawing
from .drawing import BLIND, DEFENSE, INK, MUTED, NO_DEFENSE, Axes

EDGE = 1.35  # times the largest epsilon: where what has no upper end is marked
FEW = 12  # runs that are named beside their marks; more are numbered
FAINT = 0.45  # opacity of what is not on the front
LONGEST = 24  # characters of a name
LARGE, SMALL = (7.0, 4.6), (3.7, 2.9)  # inches
LOOKS: Mapping[Verdict | None, tuple[str, str]] = {  # marker, colour
    Verdict.REFUTED: ("X", NO_DEFENSE),
    Verdict.UNSUPPORTED: ("s", NO_DEFENSE),
    Verdict.UNDERPOWERED: ("D", BLIND),
    Verdict.NOT_REFUTED: ("o", DEFENSE),
    Verdict.SUPPORTED: ("P", DEFENSE),
    None: ("^", MUTED),
}


class RunPoint(NamedTuple):
    """A run: epsilon of one record over the whole of it, and utility over its agents.

    ``epsilon.high`` is infinite where nothing bounds it, as where accounting is void.
    """

    number: int
    label: str
    verdict: Verdict | None
    epsilon: Metric
    certified: float | None
    utility: Metric


class PanelScale(NamedTuple):
    """What several panels have in common: epsilon from 0, and utility from and to."""

    largest_epsilon: float
    utility: str  # label of its axis
    low: float
    high: float
    more_is_better: bool


def privacy_utility(
    points: Sequence[RunPoint], name: str, title: str, utility: str
) -> drawing.DrawnFigure | None:
    """A mark at the upper end of epsilon and mean utility, lines over both intervals.

    What has no upper end is an arrow at the right edge, so that it lies to the right of every run
    that has one; a tick in the line is the bound that runs certify.

    Args:
        utility: the label of its axis.

    Returns None where there is nothing to draw.
    """
    if not points:
        return None
    largest = _largest_epsilon(points)

    def paint(axes: Axes) -> None:
        for point in points:
            text = point.label if len(points) <= FEW else str(point.number)
            _mark(axes, point, EDGE * largest, text)
        _epsilon_axis(axes, largest)
        axes.set_ylabel(utility, parse_math=False)
        axes.margins(y=0.12)
        _verdict_legend(axes, points)

    return drawing.draw(name, title, (7.0, 4.2), paint)


def common_scale(points: Sequence[RunPoint], utility: str, more_is_better: bool) -> PanelScale:
    """One on which all of the points are seen, with their intervals."""
    ends = [
        x
        for point in points
        for x in (point.utility.value, point.utility.low, point.utility.high)
        if x is not None and math.isfinite(x)
    ]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    if more_is_better:  # a share, whatever an interval over few seeds reaches
        low, high = max(0.0, low), min(1.0, high)
    room = 0.06 * (high - low) or 0.05
    largest = _largest_epsilon(points)
    return PanelScale(largest, utility, low - room, high + 2 * room, more_is_better)


def pareto_front(points: Sequence[RunPoint], more_is_better: bool) -> list[RunPoint]:
    """The Pareto-optimal points, in the order of epsilon.

    No other point has lower or equal epsilon and better utility. A point without an upper end of
    epsilon is not among them; of points that are alike in both the first one is.
    """
    sign = 1.0 if more_is_better else -1.0
    bounded = [p for p in points if math.isfinite(p.epsilon.value)]
    found: list[RunPoint] = []
    best = -math.inf
    for point in sorted(bounded, key=lambda p: (p.epsilon.value, -sign * p.utility.value)):
        if sign * point.utility.value > best:
            best = sign * point.utility.value
            found.append(point)
    return found


def pareto(
    points: Sequence[RunPoint], name: str, of: str, scale: PanelScale, small: bool = False
) -> drawing.DrawnFigure:
    """A mark for each point, as ``privacy_utility`` has them, and the front as steps.

    The rows of the front are its numbers.

    Args:
        points: ``epsilon.value`` is its upper end.
        of: what the points are of.
        small: one of several beside one another; else the front is numbered, from 1.
    """
    front = pareto_front(points, scale.more_is_better)

    def paint(axes: Axes) -> None:
        import seaborn as sns  # a second that pages without this figure do not wait for

        edge = EDGE * scale.largest_epsilon
        for point in (point for point in points if point not in front):
            _mark(axes, point, edge, alpha=FAINT)
        for i, point in enumerate(front, start=1):
            _mark(axes, point, edge, "" if small else str(i))
        _epsilon_axis(axes, scale.largest_epsilon)
        if front:  # and on to the right, where nothing better is
            x = [*(p.epsilon.value for p in front), axes.get_xlim()[1]]
            y = [*(p.utility.value for p in front), front[-1].utility.value]
            sns.lineplot(
                x=x, y=y, drawstyle="steps-post", color=INK, linewidth=0.8, alpha=0.6, ax=axes,
                estimator=None, label="_front", legend=False,
            )  # fmt: skip
        axes.set_ylim(scale.low, scale.high)
        axes.set_ylabel(scale.utility, parse_math=False)
        if not small:
            _verdict_legend(axes, points)

    numbered = list(enumerate(front, start=1))
    rows: list[Row] = [
        {"number": i, "row": p.label, "epsilon": p.epsilon.value, scale.utility: p.utility.value}
        for i, p in numbered
    ]
    named = "; ".join(f"{i} {p.label}" for i, p in numbered) or "nothing, as no epsilon has an end"
    title, inches = f"Privacy against utility: {of}", SMALL if small else LARGE
    return drawing.draw(name, title, inches, paint, f"On the front: {named}", rows)


def _largest_epsilon(points: Sequence[RunPoint]) -> float:
    """The largest that is finite of all that is drawn of them, at least 1."""
    known = [x for p in points for x in (*p.epsilon.ends, p.certified) if x is not None]
    return max([1.0, *(x for x in known if math.isfinite(x))])


def _mark(axes: Axes, point: RunPoint, edge: float, text: str = "", alpha: float = 1.0) -> None:
    """A point with its intervals and a text above it; ``edge`` is where an arrow begins."""
    marker, colour = LOOKS[point.verdict]
    thin: Any = {"color": colour, "linewidth": 1.2, "alpha": alpha}
    low, high = point.epsilon.ends
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
    if text:
        axes.annotate(
            drawing.clipped(text, LONGEST), (x, y), (0, 6), textcoords="offset points", fontsize=8,
            ha="center", parse_math=False,
        )  # fmt: skip


def _epsilon_axis(axes: Axes, largest: float) -> None:
    """From 0 to beyond the largest epsilon that is drawn; logarithmic where that is over 10."""
    drawing.epsilon_ticks(axes, largest)
    if largest > 10:
        axes.set_xticks([], minor=True)
    axes.set_xlim(0, EDGE * largest * (1.6 if largest > 10 else 1.15))
    axes.set_xlabel("epsilon of one record, whole run, by accounting")


def _verdict_legend(axes: Axes, points: Sequence[RunPoint]) -> None:
    """The marks of the verdicts that are drawn, above the axes."""
    from matplotlib.lines import Line2D

    drawn = {point.verdict for point in points}
    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=verdict or "no claim")
        for verdict, (marker, colour) in LOOKS.items()
        if verdict in drawn
    ]
    drawing.legend_above(axes, 4, handles=marks)
