"""Whose the addresses of ZeroMQ sockets are: from addresses to ranks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from dpaudit.errors import RunError

from .gathered import Process, Record

ALL = ("zmq.PUB", "zmq.XPUB")  # send to every peer
SEVERAL = (
    "{site}: a {operator} socket with several peers, of which one gets each message; which one is "
    "not recorded: give a --transport adapter"
)


def addressed(processes: Sequence[Process]) -> list[Process]:
    """The same processes, with ranks in the place of the addresses of their sockets.

    The rank of a process is its place among those with sockets: first those that bind, in the order
    of the addresses that they are bound to, then those that only connect. Others have none.

    Raises:
        RunError: it cannot be known which process a message went to.
    """
    if not any(process.of_kind("addressed") for process in processes):
        return list(processes)
    using = sorted((p for p in processes if _sockets(p)), key=_order)
    peers = _Peers(using)
    resolved = [
        replace(process, records=tuple(peers.resolved(rank, r) for r in process.records))
        for rank, process in enumerate(using)
    ]
    return resolved + [process for process in processes if not _sockets(process)]


def _sockets(process: Process) -> list[Record]:
    return [record for kind in ("bound", "connected") for record in process.of_kind(kind)]


def _order(process: Process) -> tuple[bool, list[str], list[str]]:
    bound = sorted(record["address"] for record in process.of_kind("bound"))
    return not bound, bound, sorted(r["id"] + r["address"] for r in process.of_kind("connected"))


class _Peers:
    """Which ranks the other ends of each socket belong to, and by which names."""

    def __init__(self, processes: Sequence[Process]) -> None:
        ends = defaultdict(list)
        for rank, process in enumerate(processes):
            for record in _sockets(process):
                ends[_port(record["address"])].append((record["kind"], rank, record["id"]))
        self._peers: defaultdict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
        for rank, process in enumerate(processes):
            for record in _sockets(process):
                other = [e for e in ends[_port(record["address"])] if e[0] != record["kind"]]
                self._peers[rank, record["socket"]] += [(of, name) for _, of, name in other]

    def resolved(self, rank: int, record: Record) -> Record:
        if record["kind"] != "addressed":
            return record
        peers = self._peers[rank, record["socket"]]
        if record["to"] is not None:
            peers = [peer for peer in peers if peer[1] == record["to"]] or peers
        found = sorted({of for of, _ in peers} - {rank})
        if not found or (len(found) > 1 and record["operator"] not in ALL):
            raise RunError(
                "DPA064", SEVERAL.format(**record) if found else f"{record['site']}: no peer"
            )
        ranks = sorted({rank, *found})
        return {**record, "kind": "sent", "source": rank, "destinations": found, "ranks": ranks}


def _port(address: str) -> str:
    """What both ends of an address have in common: a host has several names."""
    return address.rpartition(":")[2] if address.startswith("tcp:") else address
