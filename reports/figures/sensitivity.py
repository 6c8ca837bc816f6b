"""Sensitivity by round: what was measured beside the stated bound, on a logarithmic scale."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpaudit.files.finding import Column, Finding, Role
from dpaudit.reports.tables import wide

from .drawing import INK, SERIES, Drawn, _svg, plain_numbers, whole_rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOUND = Column.STATED_BOUND


def sensitivity_figures(findings: Sequence[Finding], name: str) -> list[Drawn]:
    """Each finding on sensitivity whose series can be drawn, by its title."""
    found = [f for f in findings if f.role is Role.SENSITIVITY and f.series]
    drawn = [(f, sensitivity_by_round(f, f"{name}{i}")) for i, f in enumerate(found)]
    return [Drawn(f.title, svg, list(wide(f.series))) for f, svg in drawn if svg is not None]


def sensitivity_by_round(finding: Finding, name: str) -> Markup | None:
    """Marks for each kind of neighbour, and a line for the bound.

    Args:
        finding: its series has the columns "round", one for each kind of neighbour, and the bound
            if one is stated.
        name: unique on the page; becomes a part of ids.

    Returns None where no column has a number above 0.
    """
    series = dict(finding.series)
    rounds = series.pop(Column.ROUND, ())
    drawn = {column: _above_0(rounds, values) for column, values in series.items()}
    heights = [value for points in drawn.values() for _, value in points]
    if not heights:
        return None
    low, high = min(heights), max(heights)

    def paint(axes: "Axes") -> None:
        _points(drawn, axes)
        axes.set(xlabel="round", ylabel="norm of the difference", yscale="log")
        axes.set_ylim(min(low / 2, high / 20), high * 2)  # a decade at least
        plain_numbers(axes.yaxis)
        whole_rounds(axes)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)

    title = f"{finding.title}: measured by round, beside the stated bound if there is one"
    return _svg(name, title, (4.4, 3.1), paint)


def _points(drawn: Mapping[str, Sequence[tuple[float, float]]], axes: "Axes") -> None:
    kinds = [column for column in drawn if column != BOUND]
    for i, kind in enumerate(kinds):
        look = SERIES[min(i, len(SERIES) - 1)]
        x, y = zip(*drawn[kind], strict=True) if drawn[kind] else ((), ())
        axes.plot(x, y, look.marker, color=look.colour, markersize=5, alpha=0.8, label=kind)
    if drawn.get(BOUND):
        x, y = zip(*drawn[BOUND], strict=True)
        marker = "_" if len(x) == 1 else None  # one round has no line
        axes.plot(x, y, color=INK, linewidth=1.4, marker=marker, markersize=18, label=BOUND)


def _above_0(rounds: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """What a logarithmic scale can show."""
    points = zip(rounds, values, strict=True)
    return [(k, value) for k, value in points if math.isfinite(value) and value > 0]
