"""Curves over rounds: how the agents' models fared, and the figures of a reproduced paper."""

import math
from collections.abc import Iterator, Mapping, Sequence

from dpaudit.files.published import ExperimentLine, ExperimentResult
from dpaudit.files.result import Curve
from dpaudit.reports.tables import CROWD, Row

from . import drawing
from .drawing import LOOKS, OTHER, SERIES, Axes, DrawnFigure

AXIS = {
    "loss": "test loss",
    "accuracy": "test accuracy",
    "consensus_distance": "consensus distance",
}
LONGEST = 28  # characters of a run's name in a legend
MARKED = 12  # rounds at most that a line marks
FAR = 50.0  # times the smallest value: a paper's figure is drawn on a logarithmic axis


def training_curve(
    utility: Mapping[str, Curve], quantity: str, name: str, rows: Sequence[Row] = ()
) -> DrawnFigure | None:
    """Loss, accuracy or consensus distance over rounds; a thin line for each agent and their mean.

    Of more than ``CROWD`` agents a band from the lowest to the highest. What is not finite is left
    out, of the mean too.

    Returns None where nothing finite was recorded.
    """
    worlds = {
        world: (curve.rounds, [(*row,) if isinstance(row, Sequence) else (row,) for row in values])
        for world, curve in utility.items()
        if (values := getattr(curve, quantity))
    }
    every = [x for _, rows in worlds.values() for row in rows for x in row if math.isfinite(x)]
    if not every:
        return None
    loss = next(iter(utility.values())).loss_is
    label = loss if quantity == "loss" else AXIS[quantity]
    low, high = min(every), max(every)

    def paint(axes: Axes) -> None:
        for world, (rounds, rows) in worlds.items():
            _world(axes, world, rounds, rows)
        axes.set_xlabel("round")
        drawing.whole_rounds(axes)
        axes.set_ylabel(label, parse_math=False)
        if quantity == "consensus_distance" and 0 < 100 * low < high:
            axes.set_yscale("log")
            drawing.plain_numbers(axes.yaxis)
        elif low >= 0:
            axes.set_ylim(bottom=0)
        axes.legend()

    title = f"{label} over rounds: {' and '.join(worlds)}"
    caption = "Training, a thin line for each agent"
    return drawing.draw(name, title, (4.0, 2.7), paint, caption, rows)


def _world(axes: Axes, world: str, rounds: Sequence[int], rows: Sequence[Sequence[float]]) -> None:
    look = LOOKS.get(world, OTHER)
    agents = max(map(len, rows))
    for agent in range(agents) if 1 < agents <= CROWD else ():
        own = [row[agent] if agent < len(row) else math.nan for row in rows]
        axes.plot(rounds, own, color=look.colour, dashes=look.dash, linewidth=0.6, alpha=0.35)
    finite = {k: own for k, row in zip(rounds, rows, strict=True)
              if (own := [x for x in row if math.isfinite(x)])}  # fmt: skip
    if agents > CROWD:
        lowest, highest = ([end(row) for row in finite.values()] for end in (min, max))
        axes.fill_between(list(finite), lowest, highest, color=look.colour, alpha=0.2, linewidth=0)
    axes.plot(
        list(finite), [sum(row) / len(row) for row in finite.values()], color=look.colour,
        dashes=look.dash, linewidth=2, marker=look.marker if len(finite) <= MARKED else None,
        markersize=5, label=world,
    )  # fmt: skip


def training_by_run(
    curves: Mapping[str, Curve], by_accuracy: bool, name: str
) -> DrawnFigure | None:
    """A line for each run: the mean over its agents, in a band from the lowest to the highest.

    Args:
        curves: under the defense, by what names each run.
        by_accuracy: whether accuracy is drawn, and not the loss.

    Returns None where nothing finite was recorded.
    """
    label = "test accuracy" if by_accuracy else next((c.loss_is for c in curves.values()), "")
    rows: list[Row] = [
        {"run": run, "round": k, "agent": agent, label: value}
        for run, curve in curves.items()
        for k, own in zip(curve.rounds, curve.accuracy if by_accuracy else curve.loss, strict=True)
        for agent, value in enumerate(own)
        if math.isfinite(value)
    ]
    runs = list(dict.fromkeys(str(row["run"]) for row in rows))
    if not runs:
        return None
    looks = {run: SERIES[i % len(SERIES)] for i, run in enumerate(runs)}

    def paint(axes: Axes) -> None:
        import pandas as pd
        import seaborn as sns  # a second that pages without this figure do not wait for

        sns.lineplot(
            pd.DataFrame(rows), x="round", y=label, errorbar=("pi", 100), ax=axes, legend=False,
            hue="run", palette={run: look.colour for run, look in looks.items()},
            style="run", dashes={run: look.dash for run, look in looks.items()},
        )  # fmt: skip
        for line, run in zip(axes.lines, runs, strict=True):
            line.set_label(drawing.clipped(run, LONGEST))
        drawing.whole_rounds(axes)
        axes.set_ylabel(label, parse_math=False)
        drawing.legend_above(axes, 2)

    caption = f"{label} over rounds: mean over agents, in a band from the lowest to the highest"
    inches = (5.4, 3.0 + 0.18 * ((len(runs) + 1) // 2))
    return drawing.draw(name, f"{caption}, of {', '.join(runs)}", inches, paint, caption, rows)


def drawn_by_label(result: ExperimentResult) -> Iterator[DrawnFigure]:
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
        yield _panel(f"figure{i}", caption, result, lines)


def _is_far(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > FAR * min(values)


def _panel(
    name: str, title: str, result: ExperimentResult, lines: list[ExperimentLine]
) -> DrawnFigure:
    by_first: dict[str, list[ExperimentLine]] = {}
    for line in lines:
        by_first.setdefault(line.labels.get(result.columns[0], ""), []).append(line)
    values = [line.ours.value for line in lines if line.ours is not None]
    places = [line.at for line in lines if line.at is not None]

    def paint(axes: Axes) -> None:
        for i, (label, points) in enumerate(by_first.items()):
            look = SERIES[i % len(SERIES)]
            x = [point.at or 0.0 for point in points]
            ours = [point.ours for point in points if point.ours is not None]
            axes.plot(x, [m.value for m in ours], color=look.colour, dashes=look.dash,
                      marker=look.marker, markersize=3, linewidth=1.5, label=label)  # fmt: skip
            ends = [(m.low, m.high) for m in ours if m.low is not None and m.high is not None]
            if len(ends) == len(ours):
                low, high = zip(*ends, strict=True)
                axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
        spread = [axis for axis, of in ((axes.yaxis, values), (axes.xaxis, places)) if _is_far(of)]
        axes.set(**{f"{axis.axis_name}scale": "log" for axis in spread}, xlabel=result.at)
        drawing.plain_numbers(*spread)
        axes.set_ylabel(lines[0].quantity, parse_math=False)
        if any(by_first):
            drawing.legend_above(axes, 2)

    return drawing.draw(name, title, (4.6, 3.4), paint)
