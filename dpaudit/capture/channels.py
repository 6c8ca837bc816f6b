"""Who sent what to whom on the channels of processes that do not know each other's ranks.

The name of a channel is "HERE>THERE" for who writes to it, or the number of a pipe. A message
counts once: where its sender has shown it, what its receiver has shown is a receipt; and where a
library has shown what passes on a connection, the bytes of the socket are left out.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from .addresses import addressed
from .process_logs import Process, Record
from .process_ranks import ranks_of

SOCKET = "socket"  # the operator of bytes of TCP
BESIDE = "{} of {} left out, beside those of torch.distributed, MPI, ZeroMQ or the tap"
NOBODY = "{} went to processes that were not recorded: {}"
INSIDE = "{} stayed in one process, where tap.send alone shows messages: {}"


def routed(processes: Sequence[Process]) -> tuple[list[Process], list[str]]:
    """The same processes, in which all messages have ends, and what was left out of them.

    Where torch.distributed, MPI, ZeroMQ or the tap show messages, others are left out. So are those
    that are no more than the length of the next one, which that shows.

    Raises RunError where it cannot be known which process a message went to.
    """
    processes = [_without_lengths(process) for process in processes]
    posted = [record for process in processes for record in process.of_kind("posted")]
    kinds = ", ".join(sorted({_kind(record) for record in posted}))
    left_out = [BESIDE.format(_counted(len(posted)), kinds)] if posted else []
    if any(process.of_kind("addressed") for process in processes):
        processes = addressed(processes, ranks_of(processes))
    if not posted or any(process.of_kind("sent") for process in processes):
        return list(processes), left_out
    return _on_channels(processes, ranks_of(processes), posted)


def _without_lengths(process: Process) -> Process:
    lengths = {record["framed"] for record in process.of_kind("posted") if "framed" in record}
    if not lengths:
        return process
    kept = (r for r in process.records if r["kind"] != "posted" or r["sequence"] not in lengths)
    return replace(process, records=tuple(kept))


def _on_channels(
    processes: Sequence[Process], ranks: dict[int, int], posted: Sequence[Record]
) -> tuple[list[Process], list[str]]:
    readers, lost = _Readers(processes), {NOBODY: Counter[str](), INSIDE: Counter[str]()}
    seen = {_ends(record) for record in posted if record["operator"] != SOCKET}
    shown = {r["channel"] for r in posted if not r["back"] and r["operator"] != SOCKET}
    found = []
    for number, process in enumerate(processes):
        records = []
        for record in process.records:
            if record["kind"] == "posted":
                if record["operator"] == SOCKET and _ends(record) in seen:
                    continue
                if record["back"] and _turned(record["channel"]) in shown:
                    continue
                others = {ranks[other] for other in readers.of(record, number)} - {ranks[number]}
                if not others:
                    lost[INSIDE if readers.is_own(record, number) else NOBODY][_kind(record)] += 1
                    continue
                record = _sent(record, ranks[number], sorted(others))
            records.append(record)
        found.append(replace(process, records=tuple(records)))
    return found, [_said(text, kinds) for text, kinds in lost.items() if kinds]


def _said(text: str, kinds: Counter[str]) -> str:
    by = ", ".join(f"{n} by {kind}" for kind, n in kinds.items())
    return text.format(_counted(kinds.total()), by)


def _counted(n: int) -> str:
    return f"{n} message{'' if n == 1 else 's'}"


def _kind(record: Record) -> str:
    return str(record["operator"]).partition(".")[0]


def _turned(channel: str) -> str:
    """The channel of what comes from the other end."""
    here, _, there = channel.partition(">")
    return f"{there}>{here}"


def _ends(record: Record) -> frozenset[str]:
    """The two addresses of a connection, whichever side sends."""
    return frozenset(record["channel"].split(">"))


def _sent(record: Record, rank: int, others: list[int]) -> Record:
    """A posted message as one that has ends."""
    source, to = (others[0], [rank]) if record["back"] else (rank, others)
    ends = {"source": source, "destinations": to, "ranks": sorted({source, *to})}
    return {**record, "kind": "sent", **ends}


class _Readers:
    """Which process a message on a channel is for."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._readers: defaultdict[str, dict[int, deque[int]]] = defaultdict(dict)
        self._other: dict[str, str] = {}
        self._passed: defaultdict[str, list[str]] = defaultdict(list)
        for number, process in enumerate(processes):
            for record in process.of_kind("paired"):
                one, other = record["channels"]
                self._other |= {one: other, other: one}
            for record in process.of_kind("passed"):
                self._passed[record["channel"]].append(record["to"])
            for record in process.of_kind("took"):
                taken = self._readers[record["channel"]].setdefault(number, deque())
                if record["crc32"] is not None:
                    taken.append(record["crc32"])
            for record in process.of_kind("posted"):
                reading = self._readers[_turned(record["channel"])]
                if record["back"] and number in reading:
                    reading[number].append(record["crc32"])

    def of(self, record: Record, number: int) -> list[int]:
        """The other ends of a message; of several readers the one that has read it."""
        known = self._at(record)
        readers = {other: taken for other, taken in known.items() if other != number}
        for other, taken in readers.items():
            if len(readers) > 1 and record["crc32"] in taken:
                taken.remove(record["crc32"])
                return [other]
        return list(readers)

    def is_own(self, record: Record, number: int) -> bool:
        """Whether the process itself is at the other end."""
        return number in self._at(record)

    def _at(self, record: Record) -> dict[int, deque[int]]:
        channel = str(record["channel"])
        found = dict(self._readers.get(self._other.get(channel, channel), {}))
        for other in self._passed.get(channel, ()):
            found |= self._readers.get(other, {})
        return found
