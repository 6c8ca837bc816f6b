"""Messages of ZeroMQ sockets, whose ends are known when all have written down their addresses."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dpaudit.errors import RunError

from .process_logs import Process, Record


class Socket(NamedTuple):
    """One end."""

    rank: int
    number: int  # its number within its process


ALL = ("zmq.PUB", "zmq.XPUB")  # send to every peer
SEVERAL = (
    "{site}: a {operator} socket with several peers, of which one gets each message; which one is "
    "not recorded: give a --transport adapter"
)


def addressed(processes: Sequence[Process], ranks: Mapping[int, int]) -> list[Process]:
    """The same processes, with ranks in the place of the addresses of their sockets.

    Args:
        ranks: by the number of a process.

    Raises RunError where it cannot be known which process a message went to.
    """
    peers = _Peers(processes, ranks)
    return [
        replace(p, records=tuple(peers.resolved(ranks.get(n, -1), r) for r in p.records))
        for n, p in enumerate(processes)
    ]


class _Peers:
    """The other ends of each socket, and who answers to which name."""

    def __init__(self, processes: Sequence[Process], ranks: Mapping[int, int]) -> None:
        self._peers: defaultdict[Socket, list[tuple[Socket, str]]] = defaultdict(list)
        self._sent: defaultdict[Socket, Counter[int]] = defaultdict(Counter)
        self._heard: defaultdict[tuple[Socket, str], Counter[int]] = defaultdict(Counter)
        ends = []
        for number, process in enumerate(processes):
            for record in process.of_kind("bound", "connected", "addressed", "heard"):
                socket = Socket(ranks[number], record["socket"])
                if record["kind"] == "heard":
                    self._heard[socket, record["id"]][record["crc32"]] += 1
                elif record["kind"] == "addressed":
                    self._sent[socket][record.get("crc32", -1)] += 1
                else:
                    ends.append((_port(record["address"]), record["kind"], socket, record["id"]))
        for port, kind, socket, _ in ends:
            others = [(other, name) for at, of, other, name in ends if at == port and of != kind]
            self._peers[socket] += others

    def resolved(self, rank: int, record: Record) -> Record:
        if record["kind"] != "addressed":
            return record
        socket = Socket(rank, record["socket"])
        peers = self._peers.get(socket, [])
        if record["to"] is not None:
            named = [peer for peer in peers if peer[1] == record["to"]]
            peers = named or self._known_by(socket, record["to"]) or peers
        found = sorted({of.rank for of, _ in peers} - {rank})
        if not found or (len(found) > 1 and record["operator"] not in ALL):
            several = SEVERAL.format(**record) if found else f"{record['site']}: no peer"
            raise RunError("DPA064", several)
        ranks = sorted({rank, *found})
        return {**record, "kind": "sent", "source": rank, "destinations": found, "ranks": ranks}

    def _known_by(self, socket: Socket, name: str) -> list[tuple[Socket, str]]:
        """Peers without a name of their own, who have sent all that this name was heard to send."""
        heard = self._heard[socket, name]
        nameless = [peer for peer in self._peers[socket] if not peer[1]]
        found = [peer for peer in nameless if heard and not heard - self._sent[peer[0]]]
        return found if len(found) == 1 else []


def _port(address: str) -> str:
    """What both ends of an address have in common: a host has several names."""
    return address.rpartition(":")[2] if address.startswith("tcp:") else address
