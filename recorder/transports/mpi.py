"""Messages of mpi4py: objects and buffers, from rank to rank and in collective calls.

The classes of communicators cannot be written to, so that the world is replaced by one of a
subclass, whose communicators are of it too. Operators have the names of torch.distributed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..log import Content
from ..values import content_of, is_array, is_tensor, library
from .decoding import numbers_in
from .zeromq import OtherTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..log import Log, Sites
    from ..player import Player


class Operation(NamedTuple):
    """How a method sends: its operator, the names of its arguments, and to whom."""

    operator: str
    arguments: tuple[str, ...]
    to: str  # "dest", "root", "all", "from root", "each" or "each from root"


_TO_ONE = ("send", "ssend", "bsend", "isend", "issend", "ibsend")
_BUFFERS_TO_ONE = ("Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend")
_BOTH = ("send", "recv")
OPERATIONS = {
    **{name: Operation("send", ("send", "dest", "tag"), "dest") for name in _TO_ONE},
    **{name: Operation("send", ("send", "dest", "tag"), "dest") for name in _BUFFERS_TO_ONE},
    **{
        name: Operation("send", ("send", "dest", "sendtag"), "dest")
        for name in ("sendrecv", "Sendrecv", "Isendrecv")
    },
    **{
        name: Operation("broadcast", ("send", "root"), "from root")
        for name in ("bcast", "Bcast", "Ibcast")
    },
    "scatter": Operation("scatter", ("send", "root"), "each from root"),
    "Scatter": Operation("scatter", (*_BOTH, "root"), "each from root"),
    "Iscatter": Operation("scatter", (*_BOTH, "root"), "each from root"),
    "gather": Operation("gather", ("send", "root"), "root"),
    **{
        name: Operation("gather", (*_BOTH, "root"), "root")
        for name in ("Gather", "Gatherv", "Igather", "Igatherv")
    },
    "allgather": Operation("all_gather", ("send",), "all"),
    **{
        name: Operation("all_gather", _BOTH, "all")
        for name in ("Allgather", "Allgatherv", "Iallgather", "Iallgatherv")
    },
    "alltoall": Operation("all_to_all", ("send",), "each"),
    "Alltoall": Operation("all_to_all", _BOTH, "each"),
    "Ialltoall": Operation("all_to_all", _BOTH, "each"),
    "reduce": Operation("reduce", ("send", "op", "root"), "root"),
    "Reduce": Operation("reduce", (*_BOTH, "op", "root"), "root"),
    "Ireduce": Operation("reduce", (*_BOTH, "op", "root"), "root"),
    "allreduce": Operation("all_reduce", ("send", "op"), "all"),
    "Allreduce": Operation("all_reduce", (*_BOTH, "op"), "all"),
    "Iallreduce": Operation("all_reduce", (*_BOTH, "op"), "all"),
}
_GIVEN_AS = {"sendobj": "send", "obj": "send", "sendbuf": "send", "buf": "send", "recvbuf": "recv"}
_QUIET = ("barrier", "Barrier", "Ibarrier", "recv", "irecv", "Recv", "Irecv", "mprobe", "probe")
_SENDING = ("scatter", "alltoall", "scan", "spawn", "connect", "send", "neighbor", "reduce")
_MAKING = ("Dup", "Split", "Create", "Clone")  # communicators


def hook_mpi(mpi: Any, log: Log, sites: Sites, player: Player | None) -> None:
    """Put a world in the place of MPI's whose messages are seen."""
    sent = OtherTransport(log, sites)
    kinds: dict[type, type] = {}
    for name in ("Intracomm", "Cartcomm", "Graphcomm", "Distgraphcomm"):
        own = getattr(mpi, name, None)
        if own is not None:
            kinds[own] = type(name, (own,), _methods(own, mpi, kinds, sent, log, player))
    mpi.COMM_WORLD = kinds[mpi.Intracomm](mpi.COMM_WORLD)


def _methods(
    own: type,
    mpi: Any,
    kinds: dict[type, type],
    sent: OtherTransport,
    log: Log,
    player: Player | None,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dir(own):
        method = getattr(own, name)
        if name.startswith("_") or not callable(method):
            continue
        if name in OPERATIONS:
            found[name] = _sending(method, OPERATIONS[name], mpi, sent, player)
        elif name.startswith(_MAKING):
            found[name] = _making(method, kinds)
        elif name not in _QUIET and any(part in name.lower() for part in _SENDING):
            found[name] = _naming(method, name, log)
    return found


def _sending(
    own: Any, operation: Operation, mpi: Any, sent: OtherTransport, player: Player | None
) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        asked = {_GIVEN_AS.get(name, name): value for name, value in named.items()}
        asked = {**dict(zip(operation.arguments, given)), **asked}
        ranks, me = _ranks(self, mpi), self.Get_rank()
        more = {"source": ranks[me], "ranks": sorted(ranks), "group": "mpi"}
        for to, value in _messages(operation, asked, me, len(ranks), mpi):
            others = sorted(ranks[rank] for rank in to if rank != me and rank >= 0)
            if others:
                tag = asked.get("tag", asked.get("sendtag", 0)) if operation.to == "dest" else None
                ends = {"destinations": others, "tag": tag}
                sent.write("sent", operation.operator, _contents(value, mpi), {**more, **ends})
                if player is not None:
                    player.sent()
        return own(self, *given, **named)

    return call


def _messages(
    operation: Operation, asked: dict[str, Any], me: int, n: int, mpi: Any
) -> Iterator[tuple[list[int], Any]]:
    """The ranks, in the communicator, that each value is for."""
    to, root, value = operation.to, asked.get("root", 0), asked.get("send")
    if value is mpi.IN_PLACE:  # what it sends lies where it receives
        value = asked.get("recv")
        if operation.operator == "all_gather":
            value = _part(value, me, n)
    if to == "dest":
        yield [asked["dest"]], value
    elif to == "root" or (to == "from root" and me == root):
        yield [root] if to == "root" else list(range(n)), value
    elif to == "all":
        yield list(range(n)), value
    elif to == "each" or (to == "each from root" and me == root):
        for rank in range(n):
            yield [rank], _part(value, rank, n)


def _part(value: Any, rank: int, n: int) -> Any:
    """What one rank gets of a list, or of a buffer of equal parts."""
    buffer = value[0] if isinstance(value, (list, tuple)) and _is_buffer(value) else value
    if is_array(buffer):
        return buffer.reshape(-1).reshape(n, -1)[rank]
    return buffer[rank]


def _is_buffer(value: Any) -> bool:
    """Whether a list is one of a buffer and of how it is laid out."""
    return len(value) > 1 and (is_array(value[0]) or is_tensor(value[0])) and not is_array(value[1])


def _contents(value: Any, mpi: Any) -> list[Content]:
    if isinstance(value, (list, tuple)) and value and _is_buffer(value):
        count, value = value[1], value[0]
        value = value.reshape(-1)[:count] if isinstance(count, int) else value
    if is_array(value) or is_tensor(value):
        return [content_of(value)]
    found = numbers_in(value)
    data = b"" if found else bytes(mpi.pickle.dumps(value))
    return found or [Content("0", (len(data),), "uint8", data)]


def _ranks(comm: Any, mpi: Any) -> list[int]:
    """The ranks of a communicator, by those of all processes."""
    known = comm.__dict__.get("_dpaudit_ranks")
    if known is None:
        group, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
        places = list(range(group.Get_size()))
        known = list(mpi.Group.Translate_ranks(group, places, world))
        comm.__dict__["_dpaudit_ranks"] = known
    return list(known)


def _making(own: Any, kinds: dict[type, type]) -> Callable[..., Any]:
    @functools.wraps(own)
    def made(self: Any, *given: Any, **named: Any) -> Any:
        result = own(self, *given, **named)
        kind = kinds.get(type(result))
        is_null = kind is None or result == library("mpi4py.MPI").COMM_NULL
        return result if kind is None or is_null else kind(result)

    return made


def _naming(own: Any, name: str, log: Log) -> Callable[..., Any]:
    @functools.wraps(own)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        log.unseen(f"what MPI's {name} sends is not recorded")
        return own(self, *given, **named)

    return call
