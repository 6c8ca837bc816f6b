"""Messages of mpi4py: objects and buffers, from rank to rank and in collective calls.

The classes of communicators cannot be written to, so that the world is replaced by one of a
subclass, whose communicators are of it too. Operators have the names of torch.distributed. What is
put into another rank's window is a message; what a rank reads there is named.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..log import Content
from ..values import content_of, is_array, is_tensor
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
_SENDING: tuple[str, ...]
_SENDING = ("scatter", "alltoall", "scan", "spawn", "connect", "send", "neighbor", "reduce")
_SENDING += ("accept", "join", "bcast", "gather", "get_accumulate", "fetch", "compare")
_MAKING = ("Dup", "Split", "Create", "Clone", "Merge")  # communicators
_LATER = "_init"  # the end of the names of what sends when it is started
_INTO_WINDOWS = ("Put", "Rput", "Accumulate", "Raccumulate")
_READING = ("Get", "Rget", "Get_accumulate", "Rget_accumulate", "Fetch_and_op", "Compare_and_swap")
_WINDOWS = ("Create", "Allocate", "Create_dynamic")


class Hooks:
    """The classes that stand in the place of those of MPI."""

    def __init__(self, mpi: Any, log: Log, sites: Sites, player: Player | None) -> None:
        self._mpi, self._log, self._player = mpi, log, player
        self._sent = OtherTransport(log, sites)
        self.kinds: dict[type, type] = {}
        for name in ("Intracomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm"):
            own = getattr(mpi, name, None)
            if own is not None:
                self.kinds[own] = type(name, (own,), self._methods(own))
        self.persistent = self._persistent()
        self.window = type("Win", (mpi.Win,), self._of_windows(mpi.Win))

    def _methods(self, own: type) -> dict[str, Any]:
        found: dict[str, Any] = {}
        between_groups = own is getattr(self._mpi, "Intercomm", None)
        for name in dir(own):
            method = getattr(own, name)
            if name.startswith("_") or not callable(method):
                continue
            operation = None if between_groups else OPERATIONS.get(name.replace(_LATER, ""))
            if operation is not None:
                later = name.endswith(_LATER)
                found[name] = (self._preparing if later else self._sending)(method, operation)
            elif name.startswith(_MAKING):
                found[name] = self._making(method)
            elif name not in _QUIET and any(part in name.lower() for part in _SENDING):
                found[name] = self._naming(method, name)
        return found

    def _sending(self, own: Any, operation: Operation) -> Callable[..., Any]:
        @functools.wraps(own)
        def call(of: Any, *given: Any, **named: Any) -> Any:
            self._show(operation, of, given, named)
            return own(of, *given, **named)

        return call

    def _preparing(self, own: Any, operation: Operation) -> Callable[..., Any]:
        """A request that sends what the buffer holds whenever it is started."""

        @functools.wraps(own)
        def call(of: Any, *given: Any, **named: Any) -> Any:
            request = self.persistent(own(of, *given, **named))
            request.show = lambda: self._show(operation, of, given, named)
            return request

        return call

    def _persistent(self) -> Any:
        own = self._mpi.Prequest

        class Prequest(own):  # type: ignore[misc, valid-type]
            def Start(self) -> Any:
                getattr(self, "show", bool)()
                return own.Start(self)

            @classmethod
            def Startall(cls, requests: Any) -> Any:
                for request in requests:
                    getattr(request, "show", bool)()
                return own.Startall(requests)

        return Prequest

    def _of_windows(self, own: Any) -> dict[str, Any]:
        """A window that is made is of this class, too."""
        put = Operation("put", ("send", "dest"), "dest")
        found: dict[str, Any] = {
            name: self._sending(getattr(own, name), put) for name in _INTO_WINDOWS
        }
        for name in _READING:
            found[name] = self._naming(getattr(own, name), name)
        for name in (*_WINDOWS, "Allocate_shared"):
            make = getattr(own, name)

            def made(*given: Any, name: str = name, make: Any = make, **named: Any) -> Any:
                if name == "Allocate_shared":
                    self._log.unseen("what ranks write into memory that MPI shares is not recorded")
                return self.window(make(*given, **named))

            found[name] = staticmethod(functools.wraps(make)(made))
        return found

    def _show(self, operation: Operation, of: Any, given: Any, named: Any) -> None:
        """Write down what a call sends."""
        asked = {_GIVEN_AS.get(name, name): value for name, value in named.items()}
        asked = {**dict(zip(operation.arguments, given)), **asked}
        ranks, me = _ranks(of, self._mpi)
        more = {"source": ranks[me], "ranks": sorted(ranks), "group": "mpi"}
        for to, value in _messages(operation, asked, me, len(ranks), self._mpi):
            others = sorted(ranks[rank] for rank in to if rank != me and rank >= 0)
            if others:
                tag = asked.get("tag", asked.get("sendtag", 0)) if operation.to == "dest" else None
                ends = {"destinations": others, "tag": tag}
                contents = _contents(value, self._mpi)
                self._sent.write("sent", operation.operator, contents, {**more, **ends})
                if self._player is not None:
                    self._player.sent()

    def _making(self, own: Any) -> Callable[..., Any]:
        @functools.wraps(own)
        def made(of: Any, *given: Any, **named: Any) -> Any:
            result = own(of, *given, **named)
            kind = self.kinds.get(type(result))
            is_null = kind is None or result == self._mpi.COMM_NULL
            return result if kind is None or is_null else kind(result)

        return made

    def _naming(self, own: Any, name: str) -> Callable[..., Any]:
        @functools.wraps(own)
        def call(of: Any, *given: Any, **named: Any) -> Any:
            self._log.unseen(f"what MPI's {name} sends is not recorded")
            return own(of, *given, **named)

        return call


def hook_mpi(mpi: Any, log: Log, sites: Sites, player: Player | None) -> None:
    """Put a world in the place of MPI's whose messages are seen."""
    if mpi.Comm.Get_parent() != mpi.COMM_NULL:  # its ranks are those of another world
        log.unseen("what a process sends that MPI's Spawn has started is not recorded")
        return
    hooks = Hooks(mpi, log, sites, player)
    mpi.COMM_WORLD = hooks.kinds[mpi.Intracomm](mpi.COMM_WORLD)
    mpi.Prequest, mpi.Win = hooks.persistent, hooks.window


def _messages(
    operation: Operation, asked: dict[str, Any], me: int, n: int, mpi: Any
) -> Iterator[tuple[list[int], Any]]:
    """The ranks, in the communicator, that each value is for."""
    to, root, value = operation.to, asked.get("root", 0), asked.get("send")
    if value is mpi.IN_PLACE:  # what is sent lies in the receive buffer
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


def _ranks(of: Any, mpi: Any) -> tuple[list[int], int]:
    """The ranks of a communicator or a window, by those of all processes, and this one's place."""
    known = of.__dict__.get("_dpaudit_ranks")
    if known is None:
        group, world = of.Get_group(), mpi.COMM_WORLD.Get_group()
        places = list(range(group.Get_size()))
        ranks = list(mpi.Group.Translate_ranks(group, places, world))
        of.__dict__["_dpaudit_ranks"] = known = ranks, group.Get_rank()
    return known
