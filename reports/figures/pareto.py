"""Privacy against utility of a benchmark: its rows, and the front that none of them beats."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from .drawing import INK, _svg
from .privacy_utility import (
    EDGE,
    Point,
    epsilon_axis,
    largest_epsilon,
    mark,
    verdict_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAINT = 0.45  # opacity of what is not on the front
LARGE, SMALL = (7.0, 4.6), (3.7, 2.9)  # inches


class Scale(NamedTuple):
    """What several panels have in common: epsilon from 0, and utility from and to."""

    largest_epsilon: float
    utility: str  # label of its axis
    low: float
    high: float
    more_is_better: bool


def common_scale(points: Sequence[Point], utility: str, more_is_better: bool) -> Scale:
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
    return Scale(largest_epsilon(points), utility, low - room, high + 2 * room, more_is_better)


def pareto_front(points: Sequence[Point], more_is_better: bool) -> list[Point]:
    """Those than which no other has both less epsilon, at most, and better utility.

    In the order of epsilon. What has no upper end of epsilon is not among them; of points alike in
    both the first is.
    """
    sign = 1.0 if more_is_better else -1.0
    bounded = [p for p in points if math.isfinite(p.epsilon.value)]
    found: list[Point] = []
    best = -math.inf
    for point in sorted(bounded, key=lambda p: (p.epsilon.value, -sign * p.utility.value)):
        if sign * point.utility.value > best:
            best = sign * point.utility.value
            found.append(point)
    return found


def pareto(
    points: Sequence[Point], name: str, title: str, scale: Scale, small: bool = False
) -> Markup:
    """A mark for each point, as ``privacy_utility`` has them, and the front as steps.

    Args:
        points: ``epsilon.value`` is its upper end.
        name: unique on the page; becomes a part of ids.
        small: one of several beside one another; else the front is numbered, from 1.
    """
    front = pareto_front(points, scale.more_is_better)

    def paint(axes: "Axes") -> None:
        import seaborn as sns  # a second that pages without this figure do not wait for

        edge = EDGE * scale.largest_epsilon
        for point in (point for point in points if point not in front):
            mark(axes, point, edge, alpha=FAINT)
        for i, point in enumerate(front, start=1):
            mark(axes, point, edge, "" if small else str(i))
        epsilon_axis(axes, scale.largest_epsilon)
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
            verdict_legend(axes, {point.verdict for point in points})

    return _svg(name, title, SMALL if small else LARGE, paint)
