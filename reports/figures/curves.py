"""How the agents' models fared: loss, accuracy and consensus distance over rounds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpaudit.files.result import Curve
from dpaudit.reports.tables import CROWD, Row

from .drawing import LOOKS, OTHER, SERIES, Drawn, _svg, plain_numbers, whole_rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXIS = {
    "loss": "test loss",
    "accuracy": "test accuracy",
    "consensus_distance": "consensus distance",
}
LONGEST = 28  # characters of a run's name in a legend
MARKED = 12  # rounds at most that a line marks


def training_curve(utility: Mapping[str, Curve], quantity: str, name: str) -> Markup | None:
    """Loss, accuracy or consensus distance over rounds; a thin line for each agent and their mean.

    Of more than ``CROWD`` agents a band from the lowest to the highest.

    Returns None where nothing finite was recorded.
    """
    worlds = {
        world: (curve.rounds, [_agents(row) for row in values])
        for world, curve in utility.items()
        if (values := getattr(curve, quantity))
    }
    every = [x for _, rows in worlds.values() for row in rows for x in row if math.isfinite(x)]
    if not every:
        return None
    loss = next(iter(utility.values())).loss_is
    label = loss if quantity == "loss" else AXIS[quantity]
    low, high = min(every), max(every)

    def paint(axes: "Axes") -> None:
        for world, (rounds, rows) in worlds.items():
            _world(axes, world, rounds, rows)
        axes.set_xlabel("round")
        whole_rounds(axes)
        axes.set_ylabel(label, parse_math=False)
        if quantity == "consensus_distance" and 0 < 100 * low < high:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        elif low >= 0:
            axes.set_ylim(bottom=0)
        axes.legend()

    title = f"{label} over rounds: {' and '.join(worlds)}"
    return _svg(name, title, (4.0, 2.7), paint)


def _of_runs(curves: Mapping[str, Curve], by_accuracy: bool, said: str) -> Iterator[Row]:
    for run, curve in curves.items():
        drawn = curve.accuracy if by_accuracy else curve.loss
        for k, values in zip(curve.rounds, drawn, strict=True):
            for agent, value in enumerate(values):
                if math.isfinite(value):
                    yield {"run": run, "round": k, "agent": agent, said: value}


def training_by_run(curves: Mapping[str, Curve], by_accuracy: bool, name: str) -> Drawn | None:
    """A line for each run: the mean over its agents, in a band from the lowest to the highest.

    Args:
        curves: under the defense, by what names each run.
        by_accuracy: whether accuracy is drawn, and not the loss.
        name: unique on the page; becomes a part of ids.

    Returns None where nothing finite was recorded.
    """
    said = "test accuracy" if by_accuracy else next((c.loss_is for c in curves.values()), "")
    rows = [*_of_runs(curves, by_accuracy, said)]
    runs = list(dict.fromkeys(str(row["run"]) for row in rows))
    if not runs:
        return None
    looks = {run: SERIES[i % len(SERIES)] for i, run in enumerate(runs)}

    def paint(axes: "Axes") -> None:
        import pandas as pd
        import seaborn as sns  # a second that pages without this figure do not wait for

        sns.lineplot(
            pd.DataFrame(rows), x="round", y=said, errorbar=("pi", 100), ax=axes, legend=False,
            hue="run", palette={run: look.colour for run, look in looks.items()},
            style="run", dashes={run: look.dash for run, look in looks.items()},
        )  # fmt: skip
        for line, run in zip(axes.lines, runs, strict=True):
            line.set_label(run if len(run) <= LONGEST else f"{run[: LONGEST - 1]}…")
        whole_rounds(axes)
        axes.set_ylabel(said, parse_math=False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    caption = f"{said} over rounds: mean over agents, in a band from the lowest to the highest"
    inches = (5.4, 3.0 + 0.18 * ((len(runs) + 1) // 2))
    return Drawn(caption, _svg(name, f"{caption}, of {', '.join(runs)}", inches, paint), rows)


def _agents(row: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(row) if isinstance(row, Sequence) else (row,)


def _world(
    axes: "Axes", world: str, rounds: Sequence[int], rows: Sequence[Sequence[float]]
) -> None:
    """What is not finite is left out, of the mean too."""
    look = LOOKS.get(world, OTHER)
    agents = max(map(len, rows))
    for agent in range(agents) if 1 < agents <= CROWD else ():
        own = [row[agent] if agent < len(row) else math.nan for row in rows]
        axes.plot(rounds, own, color=look.colour, dashes=look.dash, linewidth=0.6, alpha=0.35)
    finite = [
        (k, [x for x in row if math.isfinite(x)]) for k, row in zip(rounds, rows, strict=True)
    ]
    finite = [(k, row) for k, row in finite if row]
    means = [(k, sum(row) / len(row)) for k, row in finite]
    if agents > CROWD:
        lowest, highest = ([of(row) for _, row in finite] for of in (min, max))
        axes.fill_between(
            [k for k, _ in finite], lowest, highest, color=look.colour, alpha=0.2, linewidth=0
        )
    axes.plot(
        [k for k, _ in means],
        [mean for _, mean in means],
        color=look.colour,
        dashes=look.dash,
        linewidth=2,
        marker=look.marker if len(means) <= MARKED else None,
        markersize=5,
        label=world,
    )
