"""How an attack's search went: its own loss by iteration, and the PSNR that it cannot see."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from dpaudit.files.finding import Column, Finding, Name

from .drawing import LOOKS, OTHER, _svg, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = list[tuple[float, float]]


class _Course(NamedTuple):
    """One search, and what of it can be drawn."""

    world: str
    loss: Points
    psnr: Points


def search_by_iteration(findings: Sequence[Finding], name: str, title: str) -> Markup | None:
    """Two panels over iterations, a line for each finding: the attacker's loss, and the PSNR.

    Args:
        name: unique on the page; becomes a part of ids.

    Returns None where no finding has a trace that can be drawn.
    """
    courses = [
        _Course(f.world or "defense", _points(f.trace, Name.LOSS), _points(f.trace, Name.PSNR))
        for f in findings
    ]
    courses = [course for course in courses if course.loss and course.psnr]
    if not courses:
        return None
    positive = all(loss > 0 for course in courses for _, loss in course.loss)

    def paint(losses: "Axes", psnr: "Axes") -> None:
        _lines(losses, [(course.world, course.loss) for course in courses])
        _lines(psnr, [(course.world, course.psnr) for course in courses])
        losses.set(ylabel="attacker's own loss", yscale="log" if positive else "linear")
        psnr.set(ylabel="oracle: PSNR (dB)")
        if positive:
            plain_numbers(losses.yaxis)
        losses.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)

    return _svg(name, title, (7.5, 2.6), paint, panels=2)


def _points(trace: Mapping[str, Sequence[float]], quantity: str) -> Points:
    points = zip(trace.get(Column.ITERATION, ()), trace.get(quantity, ()), strict=False)
    return [point for point in points if all(map(math.isfinite, point))]


def _lines(axes: "Axes", lines: Sequence[tuple[str, Points]]) -> None:
    named = set[str]()
    for world, points in lines:
        look = LOOKS.get(world, OTHER)
        axes.plot(
            [k for k, _ in points],
            [value for _, value in points],
            look.marker,
            linestyle=(0, look.dash) if look.dash else "-",
            color=look.colour,
            markersize=3,
            linewidth=1.4,
            label=None if world in named else world,
        )
        named.add(world)
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(left=0)
    axes.set_xlabel("iteration")
