"""One HTML page of a recorded program: who sent what to whom in which round, from which line."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from dpaudit.files.recorded import Draw, Event
from dpaudit.files.result import GraphSummary
from dpaudit.memory import size_text
from dpaudit.text import lines

from .figures.graph import GraphDrawing, graph_drawing
from .html import pages

MOST_ROWS = 300  # of the table of messages
ITEM_BYTES = {"64": 8, "32": 4, "16": 2, "8": 1}  # by the digits that end a dtype's name


class Row(NamedTuple):
    """Messages of one line of the program that differ in nothing that the page shows."""

    round: int | None
    source: int
    destinations: tuple[int, ...]
    operator: str
    call_site: str
    what: str
    number: int
    inconsistent: int


class Site(NamedTuple):
    """All that one line of the program sent, or drew, with one operator."""

    call_site: str
    operator: str
    ranks: str
    what: str
    number: int
    rounds: str


class Traffic:
    """What the page shows of a recording.

    Args:
        command: as it was typed.
    """

    def __init__(self, command: str, events: Sequence[Event], draws: Sequence[Draw]) -> None:
        self.command, self.events, self.draws = command, events, draws

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for e in self.events for rank in (e.source, *e.destinations)})

    @property
    def rounds(self) -> int:
        return max((e.round or 0 for e in self.events), default=0)

    @property
    def size(self) -> str:
        return size_text(sum(map(_size, self.events)))

    @property
    def inconsistent(self) -> int:
        return sum(event.inconsistent for event in self.events)

    @property
    def drawing(self) -> GraphDrawing:
        links = {(e.source, rank) for e in self.events for rank in e.destinations}
        n = max(self.ranks, default=0) + 1
        turns = [2 * math.pi * i / n for i in range(n)]
        graph = GraphSummary(
            name="captured",
            n_agents=n,
            links=tuple(sorted(links)),
            positions=tuple((math.sin(turn), math.cos(turn)) for turn in turns),
            spectral_gap=0.0,
        )
        return graph_drawing(graph, graph.links)

    @cached_property
    def messages(self) -> list[Row]:
        """By round, line and source; equal ones of a round once, with their number."""
        counts: Counter[tuple[object, ...]] = Counter()
        raced: Counter[tuple[object, ...]] = Counter()
        rows = {}
        for event in self.events:
            row = Row(
                event.round,
                event.source,
                event.destinations,
                event.operator,
                event.call_site,
                _what(event),
                0,
                0,
            )
            rows[row] = row
            counts[row] += 1
            raced[row] += event.inconsistent
        found = [row._replace(number=counts[row], inconsistent=raced[row]) for row in rows]
        lines_met = list(dict.fromkeys(row.call_site for row in found))
        place = {site: i for i, site in enumerate(lines_met)}
        return sorted(found, key=lambda r: (r.round or 0, place[r.call_site], r.source))

    @property
    def shown(self) -> list[Row]:
        return self.messages[:MOST_ROWS]

    @property
    def sites(self) -> list[Site]:
        """The lines that send, in the order of their first messages."""
        of_site = defaultdict(list)
        for event in self.events:
            of_site[event.call_site, event.operator].append(event)
        return [
            Site(
                *key,
                _listed(e.source for e in found),
                _kinds(map(_what, found)),
                len(found),
                _span(e.round for e in found),
            )
            for key, found in of_site.items()
        ]

    @property
    def draw_sites(self) -> list[Site]:
        """The lines that draw random numbers, in the order of their first draws."""
        of_site = defaultdict(list)
        for draw in self.draws:
            of_site[draw.call_site, draw.operator].append(draw)
        return [
            Site(
                *key,
                _listed(d.rank for d in found if d.rank is not None),
                _kinds(map(_drawn, found)),
                len(found),
                _span(d.round for d in found),
            )
            for key, found in of_site.items()
        ]


def render(command: str, events: Sequence[Event], draws: Sequence[Draw]) -> str:
    """A recording as one HTML page.

    Args:
        command: the command that was recorded, as it was typed.
    """
    traffic = Traffic(command, events, draws)
    return lines(pages().get_template("captured.html.j2").render(traffic=traffic))


def _size(event: Event) -> int:
    def of(dtype: str) -> int:
        digits = next((size for text, size in ITEM_BYTES.items() if dtype.endswith(text)), 1)
        return digits

    return sum(math.prod(t.shape) * of(t.dtype) for t in event.tensors)


def _what(event: Event) -> str:
    """float32 [3, 2], int64 []."""
    return ", ".join(f"{t.dtype} {list(t.shape)}" for t in event.tensors)


def _drawn(draw: Draw) -> str:
    parameters = ", ".join("?" if p is None else f"{p:.3g}" for p in draw.parameters)
    return f"({parameters}) {draw.dtype} {list(draw.shape)}"


def _kinds(texts: Iterable[str]) -> str:
    """The first of several different texts, and how many more there are."""
    found = list(dict.fromkeys(texts))
    return found[0] + (f" and {len(found) - 1} more kinds" if len(found) > 1 else "")


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(ranks))))


def _span(rounds: Iterable[int | None]) -> str:
    """1 to 12; none."""
    known = sorted({number for number in rounds if number is not None})
    if not known:
        return "none"
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
