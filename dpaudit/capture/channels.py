"""Who sent what to whom on the channels of processes that do not know each other's ranks.

The rank of a process of multiprocessing is its number there, less one, and that of the process that
starts them is the next one. Other processes are ranked in the order of the ports at which they are
reached.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from .process_logs import Process, Record

SOCKET = "socket"  # the operator of bytes of TCP
BESIDE = (
    "{} messages of pipes, sockets, HTTP or gRPC beside those of torch.distributed or the tap are "
    "left out"
)
NOBODY = "{} messages went to processes that were not recorded: {}"


def routed(processes: Sequence[Process]) -> tuple[list[Process], list[str]]:
    """The same processes, in which messages on channels have ends, and what was left out of them.

    A message counts once: where torch.distributed or the tap show messages, others are left out.
    """
    posted = sum(len(process.of_kind("posted")) for process in processes)
    if not posted:
        return list(processes), []
    if any(process.of_kind("sent", "addressed") for process in processes):
        return list(processes), [BESIDE.format(posted)]
    ranks, readers, lost = _ranks(processes), _Readers(processes), defaultdict[str, int](int)
    seen = {_ends(r) for p in processes for r in p.of_kind("posted") if r["operator"] != SOCKET}
    found = []
    for number, process in enumerate(processes):
        records = []
        for record in process.records:
            if record["kind"] == "posted":
                if record["operator"] == SOCKET and _ends(record) in seen:
                    continue  # the client of HTTP has shown it
                others = readers.of(record, number)
                if not others:
                    lost[record["operator"].partition(".")[0]] += 1
                    continue
                record = _sent(record, ranks[number], [ranks[other] for other in others])
            records.append(record)
        found.append(replace(process, records=tuple(records)))
    said = ", ".join(f"{n} by {kind}" for kind, n in lost.items())
    return found, [NOBODY.format(sum(lost.values()), said)] if lost else []


def _ends(record: Record) -> frozenset[str]:
    """The two addresses of a connection, whichever side sends."""
    return frozenset(record["channel"].split(">"))


def _sent(record: Record, rank: int, others: list[int]) -> Record:
    """A posted message as one that has ends."""
    source, to = (others[0], [rank]) if record["back"] else (rank, sorted(set(others) - {rank}))
    ends = {"source": source, "destinations": to, "ranks": sorted({source, *to})}
    return {**record, "kind": "sent", **ends}


class _Readers:
    """Which process a message on a channel is for."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._readers: defaultdict[str, dict[int, deque[int]]] = defaultdict(dict)
        self._other: dict[str, str] = {}
        for number, process in enumerate(processes):
            for record in process.of_kind("paired"):
                one, other = record["channels"]
                self._other |= {one: other, other: one}
            for record in process.of_kind("took"):
                taken = self._readers[record["channel"]].setdefault(number, deque())
                if record["crc32"] is not None:
                    taken.append(record["crc32"])

    def of(self, record: Record, number: int) -> list[int]:
        """The other ends of a message; of several readers the one that has read it."""
        channel = str(record["channel"])
        known = self._readers.get(self._other.get(channel, channel), {})
        readers = {other: taken for other, taken in known.items() if other != number}
        for other, taken in readers.items():
            if len(readers) > 1 and record["crc32"] in taken:
                taken.remove(record["crc32"])
                return [other]
        return list(readers)


def _ranks(processes: Sequence[Process]) -> dict[int, int]:
    """By the number of a process that has channels."""
    using = [n for n, p in enumerate(processes) if p.of_kind("posted", "took")]
    identities = {
        n: tuple(about.get("identity", ()))
        for n in using
        for about in processes[n].of_kind("process")
    }
    if any(identities.values()):
        ranks = {n: one[0] - 1 for n, one in identities.items() if len(one) == 1}
        rest = [n for n in using if n not in ranks]
        first = max(ranks.values(), default=-1) + 1
        return {**ranks, **{n: first + i for i, n in enumerate(rest)}}
    return {n: rank for rank, n in enumerate(sorted(using, key=lambda n: _order(processes[n])))}


def _order(process: Process) -> tuple[int, str]:
    """By the lowest port at which others reach it: those of servers are below those of clients."""
    channels = [str(record["channel"]) for record in process.of_kind("took")]
    ends = [one.rpartition(":")[2] for one in channels if not one.startswith("pipe:")]
    ports = [int(end) for end in ends if end.isdecimal()]
    return min(ports, default=2**16), process.path.name
