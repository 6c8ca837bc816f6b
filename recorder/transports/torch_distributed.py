"""Every call of torch.distributed, recorded on its way to the backend that carries it out.

A kernel of each operator stands where the dispatcher chooses the backend, which every caller
passes, of Python, of C++ and in inference mode, and hands the call on as it is. What is sent is
read before the program goes on, and before the call where its result takes the place of what is
sent; what is received once the program has waited for it. Works are distinguished by the
address of their Python object, which torch makes once as long as it is held.

A torch whose dispatcher cannot be asked has the methods of its process groups replaced instead.
All callers of Python pass these; those of C++, such as functional collectives, do not.
"""

from __future__ import annotations

import json
import time
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..draws.torch_draws import dispatches
from ..log import Content
from ..values import bytes_of, dtype_name, in_memory
from .decoding import collective_in
from .encoders import hook_collectives
from .operators import OPERATORS, Arguments, Operator, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from ..log import Log, Sites
    from ..player import Player

MOST_AWAITED = 1000
FILLED = frozenset(("all_gather", "gather", "scatter"))  # send an object of each rank
# Methods of process groups by the operator that they come down to, and their arguments.
METHODS = {
    "send": ("send", ("tensors", "dst", "tag")),
    "recv": ("recv_", ("tensors", "src", "tag")),
    "recv_anysource": ("recv_any_source_", ("tensors", "tag")),
    "broadcast": ("broadcast_", ("tensors", "options")),
    "allreduce": ("allreduce_", ("tensors", "options")),
    "allreduce_coalesced": ("allreduce_coalesced_", ("tensors", "options")),
    "reduce": ("reduce_", ("tensors", "options")),
    "allgather": ("allgather_", ("output_tensors", "input_tensors")),
    "allgather_coalesced": ("allgather_coalesced_", ("output_lists", "input_list")),
    "_allgather_base": ("_allgather_base_", ("output_tensor", "input_tensor")),
    "gather": ("gather_", ("output_tensors", "input_tensors", "options")),
    "scatter": ("scatter_", ("output_tensors", "input_tensors", "options")),
    "reduce_scatter": ("reduce_scatter_", ("output_tensors", "input_tensors")),
    "_reduce_scatter_base": ("_reduce_scatter_base_", ("output_tensor", "input_tensor")),
    "alltoall": ("alltoall_", ("output_tensors", "input_tensors")),
    "alltoall_base": (
        "alltoall_base_",
        ("output", "input", "output_split_sizes", "input_split_sizes"),
    ),
}
_LIBRARIES: list[Any] = []  # keeps the registered kernels alive


class Group(NamedTuple):
    """A process group, seen from this process."""

    name: str  # the same in all processes
    ranks: list[int]  # rank in this group -> rank in the default group
    me: int  # rank in this group


class Awaited(NamedTuple):
    """A call whose results are not there yet; it holds the work, so that no other has its place."""

    work: Any
    operator: Operator
    call: Arguments
    group: Group
    number: int  # number of the call in this group, or of the receive on this link


class MessageRecorder:
    """The kernels of one process, and what they wait for."""

    def __init__(self, log: Log, sites: Sites, player: Player | None) -> None:
        self._is_completed = dist.Work.is_completed
        self._log, self._sites, self._player = log, sites, player
        self._awaited: dict[int, Awaited] = {}
        self._groups: dict[int, tuple[dict[int, int], Group]] = {}  # by the id of their source
        self._heads: dict[Hashable, str] = {}

    def kernel(self, name: str, operator: Operator) -> Callable[..., Any]:
        """What stands for an operator where the backend is chosen."""
        op = getattr(torch.ops.c10d, name).default
        names = [argument.name for argument in op._schema.arguments]
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def handed_on(keys: Any, *given: Any) -> Any:
            call = dict(zip(names, given))
            group = self._group(dist.ProcessGroup.unbox(call["process_group"]))
            return self._passed(
                operator,
                call,
                group,
                lambda: op.redispatch(keys & below, *given),
                lambda result: dist.Work.unbox(
                    result[-1] if isinstance(result, (tuple, list)) else result
                ),
            )

        return handed_on

    def method(self, own: Any, name: str) -> Callable[..., Any]:
        """What stands for a method of process groups."""
        of, names = METHODS[name]
        operator = OPERATORS[of]

        def handed_on(of_group: Any, *given: Any, **named: Any) -> Any:
            call = _as_operator({**dict(zip(names, given)), **named})
            if call is None:
                self._log.unseen(f"a call of ProcessGroup.{name} in a form that is not known")
                return own(of_group, *given, **named)
            group = self._group(of_group)
            return self._passed(
                operator, call, group, lambda: own(of_group, *given, **named), lambda work: work
            )

        return handed_on

    def _passed(
        self,
        operator: Operator,
        call: Arguments,
        group: Group,
        run: Callable[[], Any],
        work_of: Callable[[Any], Any],
    ) -> Any:
        """The result of a call, which is recorded as it passes."""
        number = self._number(call, group)
        now = time.time()
        if operator.overwrites:
            self._record_sent(operator, call, group, number, now)
        result = run()
        if not operator.overwrites:  # it is on its way while it is written down
            self._record_sent(operator, call, group, number, now)
        if operator.receives is not nothing:
            self._await(Awaited(work_of(result), operator, call, group, number))
        return result

    def completed(self, work: Any) -> None:
        """The program has waited for a work: what it brought is there, and its checksum is kept."""
        awaited = self._awaited.pop(id(work), None)
        if awaited is None:
            return
        _, operator, call, group, number = awaited
        for sources, tensors in operator.receives(call, group.me, len(group.ranks)):
            anyone = not sources
            source = work._source_rank() if anyone else sources[0]
            if anyone:
                number = self._log.count((group.name, call["tag"], "from", source))
            tag, rank = call.get("tag"), group.ranks[group.me]
            head = self._head(
                "received", group.name, tag, anyone=anyone, source=group.ranks[source], rank=rank
            )
            self._log.end(f'{head}, "number": {number}, "crc32": {checksums(tensors)}')

    def _group(self, group: Any) -> Group:
        known = _ranks_by_group().get(group)
        if known is None:
            return Group(_name_of(group), list(range(group.size())), group.rank())
        if id(known) not in self._groups:  # it is held, and so no other has its id
            ranks = sorted(known, key=known.__getitem__)
            self._groups[id(known)] = known, Group(_name_of(group), ranks, group.rank())
        return self._groups[id(known)][1]

    def _number(self, call: Arguments, group: Group) -> int:
        """How many calls came before it: collective ones of its group, or others on its link."""
        if "tag" not in call:
            return self._log.count(group.name)
        for end, way in (("dst", "to"), ("src", "from")):
            if end in call:
                return self._log.count((group.name, call["tag"], way, call[end]))
        return 0  # a receive from any rank knows its sender when it is complete

    def _record_sent(
        self, operator: Operator, call: Arguments, group: Group, number: int, now: float
    ) -> None:
        sides = operator.sends(call, group.me, len(group.ranks))
        messages = [(to, tensors) for to, tensors in sides if to]
        if not messages:
            return
        site, tag = self._sites.here(), call.get("tag")
        occurrence = self._log.count((operator.name, site))
        for to, tensors in messages:
            head = self._head(
                "sent",
                group.name,
                tag,
                operator=operator.name,
                site=site,
                ranks=tuple(group.ranks),
                source=group.ranks[group.me],
                destinations=tuple([group.ranks[rank] for rank in to]),
            )
            with self._log.lock:
                numbers = f'"sequence": {self._log.number()}, "time": {now!r}'
                begun = f'{head}, {numbers}, "occurrence": {occurrence}, "number": {number}'
                shown = numbers_of_objects(tensors, operator.name)
                if shown:  # they are not the bytes by which a receiver knows them
                    begun += f', "checksums": {checksums(tensors)}'
                self._log.end(begun, shown or contents(tensors))
                if self._player is not None:
                    self._player.sent()

    def _head(self, kind: str, group: str, tag: int | None, **known: Hashable) -> str:
        """The beginning of a record as JSON, which the calls of one line have in common."""
        key = kind, group, tag, *known.values()
        if key not in self._heads:
            about = {"kind": kind, "group": group, "tag": tag, **known}
            self._heads[key] = json.dumps(about)[:-1]
        return self._heads[key]

    def _await(self, awaited: Awaited) -> None:
        """Works that only C++ waits for are let go, unread, once there are many."""
        if len(self._awaited) >= MOST_AWAITED:
            for key, other in list(self._awaited.items()):
                if self._is_completed(other.work):
                    self._awaited.pop(key, None)
        self._awaited[id(awaited.work)] = awaited


def record(log: Log, sites: Sites, player: Player | None = None) -> None:
    """Put the kernels in place, or the methods, and see the program wait.

    Args:
        player: of a world of an audit, which counts each message.
    """
    if not dist.is_available():
        return
    recorder = MessageRecorder(log, sites, player)
    hook_collectives(dist.distributed_c10d)
    if dispatches() and hasattr(dist.ProcessGroup, "unbox") and hasattr(dist.Work, "unbox"):
        library = torch.library.Library("c10d", "IMPL")
        _LIBRARIES.append(library)
        for name, operator in OPERATORS.items():
            if hasattr(torch.ops.c10d, name):
                kernel = recorder.kernel(name, operator)
                library.impl(name, kernel, "BackendSelect", with_keyset=True)
    else:
        log.unseen(
            f"torch {torch.__version__} has no dispatcher that can be asked: messages of C++, such "
            "as those of functional collectives and of DistributedDataParallel, are not recorded"
        )
        for name in METHODS:
            if hasattr(dist.ProcessGroup, name):
                own = getattr(dist.ProcessGroup, name)
                setattr(dist.ProcessGroup, name, recorder.method(own, name))

    def noted(own: Any) -> Any:
        def call(work: Any, *given: Any, **named: Any) -> Any:
            done = own(work, *given, **named)
            if done is not False:
                recorder.completed(work)
            return done

        return call

    for name in ("wait", "synchronize", "is_completed"):
        setattr(dist.Work, name, noted(getattr(dist.Work, name)))


def _as_operator(call: Arguments) -> Arguments | None:
    """A call of a method by the names of the operator's schema; None: in another form."""
    options = call.pop("options", call.pop("opts", None))
    root = getattr(options, "rootRank", None)
    if root is not None:
        call["root_rank"] = root
    for name, value in call.items():
        if isinstance(value, Tensor) and name in ("tensors", "output_tensors", "input_tensors"):
            return None
    return call


def _ranks_by_group() -> Any:
    """By process group, the ranks in it by those of all processes, as this torch keeps them."""
    c10d = dist.distributed_c10d
    world = getattr(c10d, "_world", None)
    return c10d._pg_group_ranks if world is None else world.pg_group_ranks


def _name_of(group: Any) -> str:
    """The name of a process group, the same in all processes."""
    name = getattr(group, "group_name", None)
    names = getattr(dist.distributed_c10d, "_pg_names", {})
    return str(names.get(group, "default") if name is None else name)


def contents(tensors: Sequence[Tensor]) -> Iterator[Content]:
    """What a list of tensors holds now; it is read before the next one is asked for.

    Of a sparse tensor it is the indices and the values.
    """
    for i, tensor in enumerate(tensors):
        parts = {str(i): tensor}
        if tensor.layout is torch.sparse_coo:
            sparse = tensor.detach()
            parts = {f"{i}.indices": sparse._indices(), f"{i}.values": sparse._values()}
        for name, part in parts.items():
            held = in_memory(part)  # keeps the memory alive while the buffer is read
            yield Content(name, tuple(part.shape), dtype_name(part.dtype), bytes_of(held))


def numbers_of_objects(tensors: Sequence[Tensor], operator: str) -> list[Content]:
    """Numbers of the objects whose pickled bytes are the one tensor that is sent."""
    if len(tensors) != 1 or tensors[0].dtype is not torch.uint8 or tensors[0].ndim != 1:
        return []
    held = in_memory(tensors[0])
    return collective_in(bytes(bytes_of(held)), "0", is_filled=operator in FILLED)


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """The CRC-32 of each content."""
    return [zlib.crc32(content.data) for content in contents(tensors)]
