"""One HTML page of a recorded program: who sent what to whom in which round, from which line."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from dpaudit.files.recorded import RecordedDraw, RecordedEvent
from dpaudit.files.result import GraphSummary
from dpaudit.memory import size_text
from dpaudit.text import lines

from .figures.graph import graph_drawing
from .html import pages

MOST_ROWS = 300  # rows of the table of messages
ITEM_BYTES = {"64": 8, "32": 4, "16": 2, "8": 1}  # digits at the end of a dtype's name -> bytes
_Call = TypeVar("_Call", RecordedEvent, RecordedDraw)


class MessageRow(NamedTuple):
    """Messages of one line of the program that differ in nothing that the page shows."""

    first: RecordedEvent
    what: str
    number: int
    inconsistent: int


class CallSite(NamedTuple):
    """All that one line of the program sent, or drew, with one operator."""

    call_site: str
    operator: str
    ranks: str
    what: str
    number: int
    rounds: str


def render(command: str, events: Sequence[RecordedEvent], draws: Sequence[RecordedDraw]) -> str:
    """A recording as one HTML page.

    Args:
        command: the command that was recorded, as it was typed.
    """
    ranks = sorted({rank for event in events for rank in (event.source, *event.destinations)})
    links = tuple(sorted({(e.source, rank) for e in events for rank in e.destinations}))
    n = max(ranks, default=0) + 1
    turns = [2 * math.pi * i / n for i in range(n)]
    positions = tuple((math.sin(turn), math.cos(turn)) for turn in turns)
    graph = GraphSummary(
        name="captured", n_agents=n, links=links, positions=positions, spectral_gap=0.0
    )
    messages = _messages(events)
    page = pages().get_template("captured.html.j2").render(
        command=command,
        events=events,
        draws=draws,
        ranks=ranks,
        rounds=max((event.round or 0 for event in events), default=0),
        size=size_text(sum(map(_size, events))),
        inconsistent=sum(event.inconsistent for event in events),
        drawing=graph_drawing(graph, links),
        messages=messages[:MOST_ROWS],
        more=len(messages) - MOST_ROWS,
        sites=_sites(events, _what, lambda event: event.source),
        draw_sites=_sites(draws, _drawn, lambda draw: draw.rank),
    )  # fmt: skip
    return lines(page)


def _messages(events: Sequence[RecordedEvent]) -> list[MessageRow]:
    """By round, line and source; equal ones of a round once, with their number."""
    alike = defaultdict(list)
    for e in events:
        alike[e.round, e.source, e.destinations, e.operator, e.call_site, _what(e)].append(e)
    place = {site: i for i, site in enumerate(dict.fromkeys(e.call_site for e in events))}
    rows = [
        MessageRow(own[0], what, len(own), sum(e.inconsistent for e in own))
        for (*_, what), own in alike.items()
    ]
    return sorted(
        rows, key=lambda r: (r.first.round or 0, place[r.first.call_site], r.first.source)
    )


def _sites(
    calls: Sequence[_Call], what: Callable[[_Call], str], rank: Callable[[_Call], int | None]
) -> list[CallSite]:
    """The lines that made calls, in the order of the first ones."""
    of_site = defaultdict(list)
    for call in calls:
        of_site[call.call_site, call.operator].append(call)
    sites = []
    for key, own in of_site.items():
        kinds = list(dict.fromkeys(map(what, own)))
        more = f" and {len(kinds) - 1} more kinds" if len(kinds) > 1 else ""
        ranks = ", ".join(map(str, _known(map(rank, own))))
        rounds: list[int] = _known(call.round for call in own)
        span = " to ".join(map(str, dict.fromkeys([*rounds[:1], *rounds[-1:]]))) or "none"
        sites.append(CallSite(*key, ranks, kinds[0] + more, len(own), span))
    return sites


def _known(numbers: Iterable[int | None]) -> list[int]:
    return sorted({number for number in numbers if number is not None})


def _size(event: RecordedEvent) -> int:
    """Size of a message in bytes."""
    return sum(
        math.prod(t.shape) * next((n for end, n in ITEM_BYTES.items() if t.dtype.endswith(end)), 1)
        for t in event.tensors
    )


def _what(event: RecordedEvent) -> str:
    """float32 [3, 2], int64 []."""
    return ", ".join(f"{t.dtype} {list(t.shape)}" for t in event.tensors)


def _drawn(draw: RecordedDraw) -> str:
    parameters = ", ".join("?" if p is None else f"{p:.3g}" for p in draw.parameters)
    return f"({parameters}) {draw.dtype} {list(draw.shape)}"
