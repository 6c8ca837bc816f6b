"""Every call of torch.distributed, recorded on its way to the backend that carries it out.

A kernel of each operator stands where the dispatcher chooses the backend, which every caller
passes, of Python, of C++ and in inference mode, and hands the call on as it is. What is sent is
read before the program goes on, and before the call where its result takes the place of what is
sent; what is received once the program has waited for it. Works are distinguished by the
address of their Python object, which torch makes once as long as it is held.
"""

import ctypes
import json
import time
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.library import Library

from .log import Content, Log, Sites
from .operators import OPERATORS, Arguments, Operator, nothing

MOST_AWAITED = 1000
_WORK: Any = dist.Work
_IS_COMPLETED = _WORK.is_completed
_LIBRARY = Library("c10d", "IMPL")
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


class Group(NamedTuple):
    """A process group, seen from this process."""

    name: str  # the same in all processes
    ranks: list[int]  # of the default group, by rank in this group
    me: int  # rank in this group


class Awaited(NamedTuple):
    """A call whose results are not there yet; it holds the work, so that no other has its place."""

    work: Any
    operator: Operator
    call: Arguments
    group: Group
    number: int  # of the calls of this group, or of the receives on this link


class MessageRecorder:
    """The kernels of one process, and what they wait for."""

    def __init__(self, log: Log, sites: Sites, player: Any) -> None:
        self._log, self._sites, self._player = log, sites, player
        self._awaited: dict[int, Awaited] = {}
        self._groups: dict[int, tuple[dict[int, int], Group]] = {}  # by what they were read from
        self._heads: dict[Hashable, str] = {}

    def kernel(self, name: str, operator: Operator) -> Callable[..., Any]:
        """What stands for an operator where the backend is chosen."""
        op = getattr(torch.ops.c10d, name).default
        names = [argument.name for argument in op._schema.arguments]

        def handed_on(keys: Any, *given: Any) -> Any:
            call = dict(zip(names, given, strict=False))
            group = self._group(call["process_group"])
            number = self._number(call, group)
            now = time.time()
            if operator.overwrites:
                self._record_sent(operator, call, group, number, now)
            result = op.redispatch(keys & _BELOW, *given)
            if not operator.overwrites:  # it is on its way while it is written down
                self._record_sent(operator, call, group, number, now)
            if operator.receives is not nothing:
                boxed = result[-1] if isinstance(result, tuple | list) else result
                work = _WORK.unbox(boxed)
                self._await(Awaited(work, operator, call, group, number))
            return result

        return handed_on

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

    def _group(self, boxed: Any) -> Group:
        group = dist.ProcessGroup.unbox(boxed)
        known = dist.distributed_c10d._world.pg_group_ranks.get(group)
        if known is None:
            return Group(group.group_name, list(range(group.size())), group.rank())
        if id(known) not in self._groups:  # it is held, and so no other has its id
            ranks = sorted(known, key=known.__getitem__)
            self._groups[id(known)] = known, Group(group.group_name, ranks, group.rank())
        return self._groups[id(known)][1]

    def _number(self, call: Arguments, group: Group) -> int:
        """How many calls came before it: collective ones of its group, or others on its link."""
        if "tag" not in call:
            return self._log.count(group.name)
        for end, way in (("dst", "to"), ("src", "from")):
            if end in call:
                return self._log.count((group.name, call["tag"], way, call[end]))
        return 0  # of a receive from anyone it is known when it is complete

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
                self._log.end(begun, contents(tensors))
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
                if _IS_COMPLETED(other.work):
                    self._awaited.pop(key, None)
        self._awaited[id(awaited.work)] = awaited


def record(log: Log, sites: Sites, player: Any = None) -> None:
    """Put the kernels in place, and see the program wait.

    Args:
        player: of a world of an audit, which counts each message.
    """
    recorder = MessageRecorder(log, sites, player)
    for name, operator in OPERATORS.items():
        _LIBRARY.impl(name, recorder.kernel(name, operator), "BackendSelect", with_keyset=True)

    def noted(own: Any) -> Any:
        def call(work: Any, *given: Any, **named: Any) -> Any:
            done = own(work, *given, **named)
            if done is not False:
                recorder.completed(work)
            return done

        return call

    for name in ("wait", "synchronize", "is_completed"):
        setattr(_WORK, name, noted(getattr(_WORK, name)))


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
            held = _in_memory(part)  # as long as the buffer over its memory is read
            size = held.nbytes
            data = (ctypes.c_char * size).from_address(held.data_ptr()) if size else b""
            yield Content(name, tuple(part.shape), _dtype_name(part.dtype), data)


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """The CRC-32 of each content."""
    return [zlib.crc32(content.data) for content in contents(tensors)]


def _in_memory(tensor: Tensor) -> Tensor:
    """On the CPU, in row-major order and with nothing left to be done lazily."""
    if tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
