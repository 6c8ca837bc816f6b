"""Which round each message belongs to: from a line that starts them, or the period of the calls."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import prod
from re import sub
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dpaudit.files.recorded import RecordedDraw, RecordedEvent

from .simulation import TAP

Line = TypeVar("Line", RecordedEvent, RecordedDraw)
RoundsFound = dict[tuple[int, int], int | None]  # (process, sequence) -> round
LONGEST_PERIOD = 1000  # calls of one process in one round
FEWEST = 1 / 3  # least share of a process's calls that must repeat to count as rounds
SMALL = 0.1  # messages below this share of the largest one are small
MOST = 0.8  # a shorter period counts if it explains this share of what the best one does


class ProgramCall(NamedTuple):
    """What one process did in one call: it sent, or it drew."""

    sequence: int  # number of its first event
    site: str
    sent: tuple[Hashable, ...] = ()  # operator, shapes and dtypes of each event; none of a draw
    tags: tuple[int | None, ...] = ()
    destinations: tuple[tuple[int, ...], ...] = ()
    size: int = 0  # numbers of its largest message
    agent: int | None = None  # the agent, if the tap was told
    process: int = 0


def rounds_of(
    events: Sequence[RecordedEvent], draws: Sequence[RecordedDraw], starts_at: str | None = None
) -> RoundsFound:
    """The round of each event and draw; a draw has the round of the next message.

    Args:
        starts_at: a call site, of messages or draws, at which each round of a process starts. Calls
            there that follow one another directly are of one round, until one repeats what another
            sent to the same destinations. None: rounds are the period of (call site, shapes, tag,
            destinations) in the calls of a process; if there is none, the period without
            destinations, which rotate in some programs, or without tags, which count rounds in
            others, whichever explains more; then without both. Where each process that sends does
            so in one call, or shows the tap one message of each name, that is one round. Where a
            process has shown ``dpaudit.tap`` what several agents send, each agent stands in the
            place of a process: workers serve agents in any order.
    """
    found: RoundsFound = {}
    of_process = _by_process(events, draws)
    together = of_process if starts_at else [a for p in of_process for a in _by_agent(p)]
    by_agent = len(together) > len(of_process)
    once = [_sends_once([call for call in calls if call.sent]) for calls in together]
    for calls, sends_once in zip(together, once, strict=True):
        if starts_at:
            starts = _at_site(calls, starts_at)
        elif all(once) or (by_agent and sends_once):
            first_sent = next((call.sequence for call in calls if call.sent), None)
            starts = [call.sequence == first_sent for call in calls]
        else:
            starts = _by_period(calls)
        for call, number in zip(calls, _numbers(calls, starts), strict=True):
            found[call.process, call.sequence] = number
    first: dict[Hashable, int] = {}  # event of each call
    for event in events:
        start = first.setdefault(_call(event), event.sequence)
        found[event.process, event.sequence] = found[event.process, start]
    return found


def numbered(lines: Sequence[Line], rounds: RoundsFound) -> list[Line]:
    """The same events or draws with their rounds."""
    return [
        line.model_copy(update={"round": rounds.get((line.process, line.sequence))})
        for line in lines
    ]


def start_site(events: Sequence[RecordedEvent], draws: Sequence[RecordedDraw]) -> str | None:
    """The call site that gives every message the round it has, if a single one does."""
    first: dict[int, RecordedEvent] = {}
    for event in events:
        if event.round == 1:
            first.setdefault(event.process, event)
    sites = {event.call_site for event in first.values()}
    if len(sites) != 1:
        return None
    (site,) = sites
    again = rounds_of(events, draws, site)
    same = all(event.round == again[event.process, event.sequence] for event in events)
    return site if same else None


def _call(event: RecordedEvent) -> tuple[int, str, str, int]:
    return event.process, event.operator, event.call_site, event.occurrence


def _by_process(
    events: Sequence[RecordedEvent], draws: Sequence[RecordedDraw]
) -> list[list[ProgramCall]]:
    """The calls of each process in their order."""
    calls: defaultdict[int, list[ProgramCall]] = defaultdict(list)
    together: defaultdict[tuple[int, str, str, int], list[RecordedEvent]] = defaultdict(list)
    for event in events:
        together[_call(event)].append(event)
    for (process, operator, site, _), sent in together.items():
        what = tuple((operator, *((t.shape, t.dtype) for t in e.tensors)) for e in sent)
        tags, to = tuple(e.tag for e in sent), tuple(e.destinations for e in sent)
        size = max(sum(prod(t.shape) for t in e.tensors) for e in sent)
        agent = sent[0].source if operator == TAP else None
        call = ProgramCall(sent[0].sequence, site, what, tags, to, size, agent, process)
        calls[process].append(call)
    for draw in draws:
        calls[draw.process].append(ProgramCall(draw.sequence, draw.call_site, process=draw.process))
    return [sorted(listed, key=lambda call: call.sequence) for listed in calls.values()]


def _by_agent(calls: list[ProgramCall]) -> list[list[ProgramCall]]:
    """The calls of one process apart for the agents that it tells of; draws go before a message."""
    agents: list[int | None] = [call.agent for call in calls if call.sent]
    if None in agents or len({*agents}) < 2:
        return [calls]
    parts: defaultdict[int | None, list[ProgramCall]] = defaultdict(list)
    following = agents[-1]
    for call in reversed(calls):
        following = call.agent if call.sent else following
        parts[following].append(call)
    return [part[::-1] for part in parts.values()]


def _numbers(calls: Sequence[ProgramCall], starts: Sequence[bool]) -> list[int | None]:
    """The round of each call, from which of them start one."""
    numbers: list[int | None] = list(map(int, np.cumsum(starts)))
    following = None  # round of the next message
    for i in reversed(range(len(calls))):
        if calls[i].sent:
            following = numbers[i] or None
        numbers[i] = following
    return numbers


def _sends_once(sending: Sequence[ProgramCall]) -> bool:
    """Whether there is one message, or one of each name; names with numbers may count rounds."""
    names = {sub(r"\d+", "", call.site) for call in sending}
    shown = all(call.agent is not None for call in sending)
    return len(sending) <= 1 or (shown and len(names) == len(sending))


def _at_site(calls: Sequence[ProgramCall], site: str) -> list[bool]:
    starts, before = [], ""
    seen: set[ProgramCall] = set()
    for call in calls:
        known = call._replace(sequence=0)
        start = call.site == site and (before != site or known in seen)
        seen = {known} if start else seen | {known} if call.site == site else seen
        starts.append(start)
        before = call.site
    return starts


def _by_period(calls: Sequence[ProgramCall]) -> list[bool]:
    """Which calls start a round.

    Lines that send little, such as a loss after every batch, do not make more rounds than those
    that send the models. What they send belongs to the round of the next large message then.
    """
    sending = [call for call in calls if call.sent]
    sizes: defaultdict[str, int] = defaultdict(int)
    for call in sending:
        sizes[call.site] = max(sizes[call.site], call.size)
    largest = max(sizes.values(), default=0)
    large = [call for call in sending if not is_small(sizes[call.site], largest)]
    of_all, of_large = _starts(sending), _starts(large)
    if not of_large or len(of_all) <= len(of_large):
        return [call.sequence in of_all for call in calls]
    starts, at = set(), [call.sequence for call in large]
    for start in of_large:
        before = max((one for one in at if one < start), default=-1)
        starts.add(min(c.sequence for c in sending if before < c.sequence <= start))
    return [call.sequence in starts for call in calls]


def is_small(size: int, largest: int) -> bool:
    """Whether a line that never sends more sends little beside the largest message."""
    return size < largest and size <= max(1, SMALL * largest)


def _starts(sending: Sequence[ProgramCall]) -> set[int]:
    """The calls that start a round by the period of all of them, by sequence."""
    whole = [call._replace(sequence=0) for call in sending]
    none: Any = ()
    for ways in ([()], [("destinations",), ("tags",)], [("destinations", "tags")]):
        left_out = [dict.fromkeys(names, none) for names in ways]
        tried = [[call._replace(**fields) for call in whole] for fields in left_out]
        periods = [(period, keys) for keys in tried if (period := _period(keys)) is not None]
        if not periods:
            continue
        found, keys = max(periods, key=lambda period: period[0].explained)
        key = keys[found.start]
        every = keys[found.start : found.start + found.length].count(key)
        at = [i for i, other in enumerate(keys) if other == key]  # before they repeat, too
        return {sending[i].sequence for i in at[at.index(found.start) % every :: every]}
    return set()


class Period(NamedTuple):
    start: int  # index of the first call that repeats
    length: int  # calls after which they do
    explained: int  # number of calls that the period explains


def _period(keys: Sequence[ProgramCall]) -> Period | None:
    """After how many calls these repeat; None if they do not.

    Calls that repeat in between, but are made in other lines, such as those of an evaluation every
    few rounds, do not make a period longer.
    """
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)
    covered = {
        period: inside
        for period in range(1, min(len(codes) // 2, LONGEST_PERIOD) + 1)
        if (inside := _repeated(codes, period)).any()
    }
    best = max((inside.sum() for inside in covered.values()), default=0)
    for period, inside in covered.items():
        explained = {call.site for call, within in zip(keys, inside, strict=True) if within}
        left = {call.site for call, within in zip(keys, inside, strict=True) if not within}
        whole = inside.sum() == best
        if inside.sum() >= FEWEST * len(codes) and (
            whole or (inside.sum() >= MOST * best and not explained & left)
        ):
            return Period(int(inside.argmax()), period, int(inside.sum()))
    return None


def _repeated(codes: "np.ndarray[tuple[int], np.dtype[np.int_]]", period: int) -> np.ndarray:
    """Which calls lie in a stretch of at least two periods, and are some of the longest's."""
    same = np.concatenate([[False], codes[:-period] == codes[period:], [False]]).astype(int)
    begin, end = (np.flatnonzero(np.diff(same) == step) for step in (1, -1))
    inside, longest = np.zeros(len(codes), dtype=bool), codes[:0]
    for a, b in zip(begin, end, strict=True):
        if b - a >= period:
            inside[a : b + period] = True
            longest = max(longest, codes[a : b + period], key=len)
    return inside & np.isin(codes, longest)
