"""The figures of a reproduced paper: a quantity along rounds, a line for each method."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpaudit.files.experiment_result import ExperimentLine, ExperimentResult

from .drawing import SERIES, _svg, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

FAR = 50.0  # times the smallest value: drawn on a logarithmic axis


def drawn_by_label(result: ExperimentResult) -> Iterator[tuple[str, Markup]]:
    """A panel for each quantity and all labels but the first column's, which are its lines."""
    if not result.at:
        return
    panels: dict[tuple[str, ...], list[ExperimentLine]] = {}
    for line in result.lines:
        if line.ours is not None and line.at is not None and math.isfinite(line.ours.value):
            of = tuple(line.labels.get(column, "") for column in result.columns[1:])
            panels.setdefault((line.quantity, *of), []).append(line)
    for i, (named, lines) in enumerate(panels.items()):
        caption = ", ".join(part for part in named if part)
        yield caption, _panel(f"figure{i}", caption, result, lines)


def _panel(name: str, title: str, result: ExperimentResult, lines: list[ExperimentLine]) -> Markup:
    by_first: dict[str, list[ExperimentLine]] = {}
    for line in lines:
        by_first.setdefault(line.labels.get(result.columns[0], ""), []).append(line)
    values = [line.ours.value for line in lines if line.ours is not None]
    places = [line.at for line in lines if line.at is not None]

    def paint(axes: "Axes") -> None:
        for i, (label, points) in enumerate(by_first.items()):
            look = SERIES[i % len(SERIES)]
            x = [point.at or 0.0 for point in points]
            y = [point.ours.value for point in points if point.ours is not None]
            axes.plot(x, y, color=look.colour, dashes=look.dash, marker=look.marker,
                      markersize=3, linewidth=1.5, label=label)  # fmt: skip
            spans = [p.ours for p in points if p.ours is not None]
            if all(s.low is not None and s.high is not None for s in spans):
                axes.fill_between(
                    x, [s.low or 0 for s in spans], [s.high or 0 for s in spans],
                    color=look.colour, alpha=0.15, linewidth=0,
                )  # fmt: skip
        logarithmic: list[Axis] = []
        if min(values) > 0 and max(values) > FAR * min(values):
            axes.set_yscale("log")
            logarithmic.append(axes.yaxis)
        if min(places) > 0 and max(places) > FAR * min(places):
            axes.set_xscale("log")
            logarithmic.append(axes.xaxis)
        plain_numbers(*logarithmic)
        axes.set_xlabel(result.at)
        axes.set_ylabel(lines[0].quantity, parse_math=False)
        if any(by_first):
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return _svg(name, title, (4.6, 3.4), paint)
