"""Where the agents and links of a communication graph go on a page."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dpaudit.files.result import GraphSummary


class DrawnLink(NamedTuple):
    """A straight line between two agents; an arrow where only one direction is meant."""

    x1: float
    y1: float
    x2: float
    y2: float
    read: bool
    arrow: bool
    sender: int  # one of two where both directions are meant
    receiver: int


class GraphDrawing(NamedTuple):
    """Where an adversary's graph goes in an SVG: all in units of its viewBox."""

    width: float
    height: float
    radius: float
    agents: tuple[tuple[float, float], ...]
    links: tuple[DrawnLink, ...]  # in drawing order: links that are read lie on top


def graph_drawing(graph: GraphSummary, read: Sequence[tuple[int, int]]) -> GraphDrawing:
    """The graph with the links that an adversary reads marked."""
    width, height = 240.0, 190.0
    radius = 11.0 if graph.n_agents <= 12 else 8.0 if graph.n_agents <= 24 else 4.0
    agents = _placed(graph.positions, width, height, radius + 6)
    present, seen = set(graph.links), set(read)
    links = []
    for i, j in sorted(present):
        both_ways = (j, i) in present and ((i, j) in seen) == ((j, i) in seen)
        if i == j or (both_ways and i > j):
            continue
        ends = (*agents[i], *agents[j])
        line = ends if both_ways else _shortened(*ends, by=radius + 2, aside=2.5)
        links.append(
            DrawnLink(*line, read=(i, j) in seen, arrow=not both_ways, sender=i, receiver=j)
        )
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
