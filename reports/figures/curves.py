"""How the agents' models fared: loss, accuracy and consensus distance over rounds."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpaudit.files.result import Curve

from .drawing import LOOKS, OTHER, _svg, plain_numbers, whole_rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXIS = {
    "loss": "test loss",
    "accuracy": "test accuracy",
    "consensus_distance": "consensus distance",
}
MARKED = 12  # rounds at most that a line marks


def training_curve(utility: Mapping[str, Curve], quantity: str, name: str) -> Markup | None:
    """Loss, accuracy or consensus distance over rounds; a thin line for each agent and their mean.

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


def _agents(row: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(row) if isinstance(row, Sequence) else (row,)


def _world(
    axes: "Axes", world: str, rounds: Sequence[int], rows: Sequence[Sequence[float]]
) -> None:
    """What is not finite is left out, of the mean too."""
    look = LOOKS.get(world, OTHER)
    agents = max(map(len, rows))
    for agent in range(agents) if agents > 1 else ():
        own = [row[agent] if agent < len(row) else math.nan for row in rows]
        axes.plot(rounds, own, color=look.colour, dashes=look.dash, linewidth=0.6, alpha=0.35)
    finite = [
        (k, [x for x in row if math.isfinite(x)]) for k, row in zip(rounds, rows, strict=True)
    ]
    means = [(k, sum(row) / len(row)) for k, row in finite if row]
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
