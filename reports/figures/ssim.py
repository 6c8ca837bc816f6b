"""SSIM of reconstructions: a mean and its interval for every round and world."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from dpaudit.files.finding import Metric
from dpaudit.reports.tables import Row

from .drawing import LOOKS, MUTED, OTHER, Drawn, _svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 3.7  # inches


class Scored(NamedTuple):
    """What was reconstructed of one message."""

    label: str
    rounds: Sequence[tuple[int, Mapping[str, Metric]]]  # SSIM by world
    rows: Sequence[Row]


def ssim_intervals(messages: Sequence[Scored], name: str, title: str) -> list[Drawn]:
    """For each message a mark at each mean SSIM and a line over its 95% interval, on one scale.

    Args:
        name: unique on the page; becomes a part of ids.
        title: what the drawings show, for those who do not see them.

    A message of which nothing is finite has no figure.
    """
    ends = [
        x
        for message in messages
        for _, ssim in message.rounds
        for metric in ssim.values()
        for x in (metric.value, metric.low, metric.high)
        if x is not None and math.isfinite(x)
    ]
    scale = (min([0.0, *ends]) - 0.05, max([1.0, *ends]) + 0.05)
    return [
        Drawn(message.label, _one(message, scale, f"{name}-{i}", title), message.rows)
        for i, message in enumerate(messages)
        if any(math.isfinite(m.value) for _, ssim in message.rounds for m in ssim.values())
    ]


def _one(message: Scored, scale: tuple[float, float], name: str, title: str) -> Markup:
    def paint(axes: "Axes") -> None:
        for y, (k, ssim) in enumerate(message.rounds):
            for world, metric in ssim.items():
                _interval(axes, y, k, world, metric)
        axes.axvline(0, color=MUTED, linewidth=0.8, label="_zero")
        rows = len(message.rounds)
        axes.set(xlabel="SSIM to the truth", xlim=scale, ylim=(rows - 0.4, -0.6))
        axes.set_yticks(range(rows), [f"round {k}" for k, _ in message.rounds], parse_math=False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        _world_legend(axes, {world for _, ssim in message.rounds for world in ssim})

    inches = (WIDTH, 1.0 + 0.34 * len(message.rounds))
    return _svg(name, f"{title}: {message.label}", inches, paint)


def _interval(axes: "Axes", row: int, k: int, world: str, metric: Metric) -> None:
    look = LOOKS.get(world, OTHER)
    y = row + {"no-defense": -0.2, "blind": 0.2}.get(world, 0.0)
    if not math.isfinite(metric.value):
        return
    if metric.low is not None and metric.high is not None:
        axes.plot([metric.low, metric.high], [y, y], color=look.colour, linewidth=1.6, label="_")
    label = f"{world}, round {k}"
    axes.plot([metric.value], [y], look.marker, color=look.colour, markersize=5, label=label)


def _world_legend(axes: "Axes", shown: set[str]) -> None:
    marks = []
    for world in (world for world in LOOKS if world in shown):
        look = LOOKS[world]
        marks += axes.plot([], [], look.marker, color=look.colour, label=world, markersize=5)
    axes.legend(
        handles=marks, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1
    )
