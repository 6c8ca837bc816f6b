"""A result's own numbers as inline SVG, in the colours of the page's theme, light or dark.

Every drawing is deterministic: no date, salted ids, matplotlib's own defaults whatever the user's.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup, escape

from dpaudit.files.finding import Metric
from dpaudit.files.result import Curve, GraphSummary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Drawn in the colour on the left, shown in the variable of audit.css on the right.
INK, MUTED, RULE = "#0d0a01", "#0d0a02", "#0d0a03"
DEFENSE, NO_DEFENSE, BLIND = "#0d0a04", "#0d0a05", "#0d0a06"
THEME = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    DEFENSE: "var(--defense)",
    NO_DEFENSE: "var(--no-defense)",
    BLIND: "var(--blind)",
}


# Who wants the figures of a page as files is handed each one with its name, once it is drawn.
KEEP: ContextVar[Callable[[str, "Figure"], None] | None] = ContextVar("KEEP", default=None)


class Look(NamedTuple):
    colour: str
    marker: str
    dash: tuple[int, ...]  # on, off, in line widths; empty: solid


# Marker and dash tell the worlds apart where colour does not.
LOOKS = {
    "no-defense": Look(NO_DEFENSE, "s", (3, 2)),
    "defense": Look(DEFENSE, "o", ()),
    "blind": Look(BLIND, "D", (1, 1)),
}
OTHER = Look(MUTED, "^", (5, 1, 1, 1))

_STYLE = {
    "text.parse_math": False,  # a name with dollar signs is a name
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's font
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": RULE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))

AXIS = {
    "loss": "test loss",
    "accuracy": "test accuracy",
    "consensus_distance": "consensus distance",
}


def training_curve(utility: Mapping[str, Curve], quantity: str, name: str) -> Markup | None:
    """Loss, accuracy or consensus distance over rounds; a thin line for each agent and their mean.

    Returns None where nothing finite was recorded.
    """
    frame = _long_form(utility, quantity)
    if frame.empty:
        return None
    worlds = list(frame["world"].unique())
    loss = next(iter(utility.values())).loss_is
    label = loss if quantity == "loss" else AXIS[quantity]

    def paint(axes: "Axes") -> None:
        _lines(frame, worlds, axes)
        axes.set_xlabel("round")
        whole_rounds(axes)
        axes.set_ylabel(label, parse_math=False)
        low, high = frame["value"].min(), frame["value"].max()
        if quantity == "consensus_distance" and 0 < 100 * low < high:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        elif low >= 0:
            axes.set_ylim(bottom=0)
        axes.legend()

    title = f"{label} over rounds: {' and '.join(worlds)}"
    return _svg(name, title, (4.4, 2.9), paint)


def ssim_intervals(
    groups: Sequence[tuple[str, Sequence[tuple[int, Mapping[str, Metric]]]]], name: str, title: str
) -> Markup | None:
    """A mark at each mean SSIM and a line over its 95% interval, for every round and world.

    Args:
        groups: (label, [(round, SSIM by world), ...]), set apart from one another.
        name: unique on the page; becomes a part of ids.
        title: what the drawing shows, for those who do not see it.

    Returns None where there is nothing finite to draw.
    """
    rows = [row for _, group in groups for row in group]
    if not any(math.isfinite(m.value) for _, ssim in rows for m in ssim.values()):
        return None

    def paint(axes: "Axes") -> None:
        for y, (_, ssim) in enumerate(rows):
            for world, metric in ssim.items():
                _interval(axes, y, world, metric)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        axes.set(xlabel="SSIM to the truth (1 = identical)", ylim=(len(rows) - 0.5, -0.5))
        labels = [label for text, group in groups for label in _row_labels(text, group)]
        axes.set_yticks(range(len(rows)), labels, parse_math=False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        for end in accumulate(len(group) for _, group in groups[:-1]):
            axes.axhline(end - 0.5, color=RULE, linewidth=0.8)
        _world_legend(axes, {world for _, ssim in rows for world in ssim})

    return _svg(name, title, (7.5, 0.9 + 0.22 * len(rows)), paint)


def _row_labels(text: str, group: Sequence[tuple[int, object]]) -> list[str]:
    """The group is named at its first round."""
    labels = [f"round {k}" for k, _ in group]
    return [f"{text},  {label}" if i == 0 else label for i, label in enumerate(labels)]


def _long_form(utility: Mapping[str, Curve], quantity: str) -> "pd.DataFrame":
    """Columns round, world, agent, value; what is not finite is left out."""
    import pandas as pd

    frame = pd.DataFrame(
        [
            (k, world, agent, float(value))
            for world, curve in utility.items()
            if getattr(curve, quantity)
            for k, row in zip(curve.rounds, getattr(curve, quantity), strict=True)
            for agent, value in enumerate(row if isinstance(row, tuple) else (row,))
        ],
        columns=["round", "world", "agent", "value"],
    )
    return frame[frame["value"].map(math.isfinite)] if len(frame) else frame


def _lines(frame: "pd.DataFrame", worlds: list[str], axes: "Axes") -> None:
    import seaborn as sns

    looks = {world: LOOKS.get(world, OTHER) for world in worlds}
    shared = {
        "data": frame,
        "x": "round",
        "y": "value",
        "hue": "world",
        "style": "world",
        "palette": {world: look.colour for world, look in looks.items()},
        "dashes": {world: look.dash for world, look in looks.items()},
        "ax": axes,
    }
    if frame["agent"].nunique() > 1:
        thin = {"linewidth": 0.6, "alpha": 0.35, "legend": False}
        sns.lineplot(**shared, **thin, units="agent", estimator=None)
    marks = {"markers": {w: look.marker for w, look in looks.items()}, "markeredgewidth": 0}
    few = frame["round"].nunique() <= 12
    sns.lineplot(**shared, **(marks if few else {}), errorbar=None, linewidth=2, markersize=5)


def _interval(axes: "Axes", row: int, world: str, metric: Metric) -> None:
    look = LOOKS.get(world, OTHER)
    y = row + {"no-defense": -0.2, "blind": 0.2}.get(world, 0.0)
    if not math.isfinite(metric.value):
        return
    if metric.low is not None and metric.high is not None:
        axes.plot([metric.low, metric.high], [y, y], color=look.colour, linewidth=1.6)
    axes.plot([metric.value], [y], look.marker, color=look.colour, markersize=5)


def _world_legend(axes: "Axes", shown: set[str]) -> None:
    for world in (world for world in LOOKS if world in shown):
        look = LOOKS[world]
        axes.plot([], [], look.marker, color=look.colour, label=world, markersize=5)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)


def whole_rounds(axes: "Axes") -> None:
    """No fractions of a round on the axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plain_numbers(*every: "Axis") -> None:
    """On logarithmic axes, for which matplotlib would write mathematics."""
    from matplotlib.ticker import LogFormatter

    for axis in every:
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))


def _svg(
    name: str,
    title: str,
    inches: tuple[float, float],
    paint: Callable[..., None],
    panels: int = 1,
) -> Markup:
    """What ``paint`` makes of so many axes side by side."""
    from matplotlib import style
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with style.context(["default", _STYLE | {"svg.hashsalt": name}]):  # restored afterwards
        figure = Figure(figsize=inches, layout="constrained")
        paint(*figure.subplots(1, panels, squeeze=False)[0])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # the page has fonts of its own
            figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
            keep = KEEP.get()
            if keep is not None:
                keep(name, figure)
    return _inline(buffer.getvalue(), name, title)


def _inline(svg: str, name: str, title: str) -> Markup:
    """matplotlib's file as a part of an HTML page: themed, titled, its ids not those of others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<[^>]+>", lambda tag: _page_tag(tag[0], name), svg)
    head, body = re.sub(r"\s*\n\s*", " ", svg).split(">", 1)
    label = f'role="img" aria-labelledby="{name}-title"><title id="{name}-title">{escape(title)}'
    return Markup(f"{head} {label}</title>{body}")


def _page_tag(tag: str, name: str) -> str:
    """One tag of matplotlib's: colours to theme variables, ids made unique, no font, no size."""
    for colour, variable in THEME.items():
        tag = tag.replace(colour, variable)
    tag = re.sub(r'\sid="', f' id="{name}-', tag)
    tag = re.sub(r'\s(?:xlink:)?href="#', f' href="#{name}-', tag)
    tag = tag.replace("url(#", f"url(#{name}-")
    tag = re.sub(r"\sfont-family:[^;\"]*;?", "", tag)
    if tag.startswith("<svg"):
        tag = re.sub(r'\s(?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", tag)
    return tag


class DrawnLink(NamedTuple):
    """A straight line between two agents; an arrow where only one direction is meant."""

    x1: float
    y1: float
    x2: float
    y2: float
    read: bool
    arrow: bool


class GraphDrawing(NamedTuple):
    """Where an adversary's graph goes in an SVG: all in units of its viewBox."""

    width: float
    height: float
    radius: float
    agents: tuple[tuple[float, float], ...]
    links: tuple[DrawnLink, ...]  # those not read first, so that the read ones lie on top


def graph_drawing(graph: GraphSummary, read: Sequence[tuple[int, int]]) -> GraphDrawing:
    """The graph with the links that an adversary reads marked."""
    width, height = 240.0, 190.0
    radius = 11.0 if graph.n_agents <= 12 else 8.0 if graph.n_agents <= 24 else 4.0
    agents = _placed(graph.positions, width, height, radius + 5)
    present, seen = set(graph.links), set(read)
    links = []
    for i, j in sorted(present):
        both_ways = (j, i) in present and ((i, j) in seen) == ((j, i) in seen)
        if i == j or (both_ways and i > j):
            continue
        ends = (*agents[i], *agents[j])
        line = ends if both_ways else _shortened(*ends, by=radius + 2, aside=2.5)
        links.append(DrawnLink(*line, read=(i, j) in seen, arrow=not both_ways))
    return GraphDrawing(width, height, radius, agents, tuple(sorted(links, key=lambda a: a.read)))


def _placed(
    positions: Sequence[tuple[float, float]], width: float, height: float, margin: float
) -> tuple[tuple[float, float], ...]:
    """Positions stretched to the drawing; what has no extent is centred."""

    def stretched(values: list[float], size: float) -> list[float]:
        low, extent = min(values, default=0.0), max(values, default=0.0) - min(values, default=0.0)
        if extent == 0:
            return [size / 2] * len(values)
        return [margin + (v - low) / extent * (size - 2 * margin) for v in values]

    xs = stretched([x for x, _ in positions], width)
    ys = stretched([-y for _, y in positions], height)
    return tuple((round(x, 1), round(y, 1)) for x, y in zip(xs, ys, strict=True))


def _shortened(
    x1: float, y1: float, x2: float, y2: float, by: float, aside: float
) -> tuple[float, float, float, float]:
    """A line that ends at the agents' rims, moved to its left so that two directions part."""
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    shift_x, shift_y = dy * aside, -dx * aside
    ends = (x1 + dx * by, y1 + dy * by, x2 - dx * by, y2 - dy * by)
    shift = (shift_x, shift_y, shift_x, shift_y)
    a, b, c, d = (round(end + move, 1) for end, move in zip(ends, shift, strict=True))
    return a, b, c, d
