"""How an attack's search went: its own loss by iteration, and the PSNR that it cannot see."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from dpaudit.files.finding import Column, Finding, Name
from dpaudit.reports.tables import Row, wide

from .drawing import LOOKS, OTHER, Drawn, _svg, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = list[tuple[float, float]]
Scale = tuple[str, tuple[float, float]]  # its kind, and its ends


class _Course(NamedTuple):
    """One search, and what of it can be drawn."""

    world: str
    rounds: tuple[int, ...]
    loss: Points
    psnr: Points
    rows: list[Row]


def search_by_iteration(findings: Sequence[Finding], name: str, title: str) -> list[Drawn]:
    """For each round two panels over iterations: the attacker's loss and the PSNR, on one scale.

    Args:
        name: unique on the page; becomes a part of ids.
        title: what the drawings show, for those who do not see them.

    What has no trace that can be drawn has no figure.
    """
    courses = [
        _Course(
            f.world or "defense",
            f.rounds,
            _points(f.trace, Name.LOSS),
            _points(f.trace, Name.PSNR),
            [{"world": f.world, **row} for row in wide(f.trace)],
        )
        for f in findings
    ]
    courses = [course for course in courses if course.loss and course.psnr]
    scales = [_scale([y for c in courses for _, y in c.loss], logarithmic=True)]
    scales += [_scale([y for c in courses for _, y in c.psnr], logarithmic=False)]
    figures = []
    for i, rounds in enumerate(dict.fromkeys(course.rounds for course in courses)):
        own = [course for course in courses if course.rounds == rounds]
        said = f"round {', '.join(map(str, rounds))}" if rounds else "round not stated"
        drawing = _one(own, scales, f"{name}-{i}", f"{title}, {said}")
        rows = [row for course in own for row in course.rows]
        figures.append(Drawn(said, drawing, rows, rounds))
    return figures


def _one(courses: Sequence[_Course], scales: Sequence[Scale], name: str, title: str) -> Markup:
    def paint(losses: "Axes", psnr: "Axes") -> None:
        _lines(losses, [(course.world, course.loss) for course in courses])
        _lines(psnr, [(course.world, course.psnr) for course in courses])
        losses.set(ylabel="attacker's own loss", yscale=scales[0][0], ylim=scales[0][1])
        psnr.set(ylabel="oracle: PSNR (dB)", ylim=scales[1][1])
        if scales[0][0] == "log":
            plain_numbers(losses.yaxis)
        losses.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, columnspacing=1)

    return _svg(name, title, (5.0, 2.2), paint, panels=2)


def _scale(values: Sequence[float], logarithmic: bool) -> Scale:
    """Limits that all rounds share, with room around; logarithmic where all is above 0."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if logarithmic and low > 0:
        room = max((high / low) ** 0.06, 1.05)
        return "log", (low / room, high * room)
    room = 0.06 * (high - low) or 0.5
    return "linear", (low - room, high + room)


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
