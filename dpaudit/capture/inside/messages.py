"""Every call of torch.distributed, recorded on its way to the backend that carries it out.

A kernel of each operator stands where the dispatcher chooses the backend, which every caller
passes, of Python, of C++ and in inference mode, and hands the call on as it is. What is sent is
read before, what is received once the program has waited for it. Works are told apart by the
address of their Python object, which torch makes once as long as it is held.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.library import Library

from .contents import contents, hashes
from .log import Log
from .operators import OPERATORS, Arguments, Operator, nothing
from .sites import Sites

MOST_AWAITED = 1000
_WORK: Any = dist.Work
_WAIT, _SYNCHRONIZE, _IS_COMPLETED = _WORK.wait, _WORK.synchronize, _WORK.is_completed
_LIBRARY = Library("c10d", "IMPL")
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


class Group(NamedTuple):
    """A process group, seen from this process."""

    name: str  # the same in all processes
    ranks: list[int]  # of the default group, by rank in this group
    me: int  # rank in this group

    @classmethod
    def of(cls, boxed: Any) -> "Group":
        group = dist.ProcessGroup.unbox(boxed)
        known = dist.distributed_c10d._world.pg_group_ranks.get(group)
        ranks = list(range(group.size())) if known is None else sorted(known, key=known.__getitem__)
        return cls(group.group_name, ranks, group.rank())


class Awaited(NamedTuple):
    """A call whose results are not there yet; it holds the work, so that no other has its place."""

    work: Any
    operator: Operator
    call: Arguments
    group: Group
    number: int  # of the calls of this group, or of the receives on this link


class Recorder:
    """The kernels of one process, and what they wait for."""

    def __init__(self, log: Log, sites: Sites, player: Any) -> None:
        self._log, self._sites, self._player = log, sites, player
        self._awaited: dict[int, Awaited] = {}

    def kernel(self, name: str, operator: Operator) -> Callable[..., Any]:
        """What stands for an operator where the backend is chosen."""
        op = getattr(torch.ops.c10d, name).default
        names = [argument.name for argument in op._schema.arguments]

        def handed_on(keys: Any, *given: Any) -> Any:
            call = dict(zip(names, given, strict=False))
            group = Group.of(call["process_group"])
            number = self._number(call, group)
            self._record_sent(operator, call, group, number)
            result = op.redispatch(keys & _BELOW, *given)
            if operator.receives is not nothing:
                boxed = result[-1] if isinstance(result, tuple | list) else result
                work = _WORK.unbox(boxed)
                self._await(Awaited(work, operator, call, group, number))
            return result

        return handed_on

    def completed(self, work: Any) -> None:
        """The program has waited for a work: what it brought is there, and its hash is recorded."""
        awaited = self._awaited.pop(id(work), None)
        if awaited is None:
            return
        _, operator, call, group, number = awaited
        for sources, tensors in operator.receives(call, group.me, len(group.ranks)):
            anyone = not sources
            source = work._source_rank() if anyone else sources[0]
            if anyone:
                number = self._log.count((group.name, call["tag"], "from", source))
            self._log.write(
                {
                    "kind": "received",
                    "group": group.name,
                    "number": number,
                    "tag": call.get("tag"),
                    "anyone": anyone,
                    "source": group.ranks[source],
                    "rank": group.ranks[group.me],
                    "sha256": hashes(tensors),
                }
            )

    def _number(self, call: Arguments, group: Group) -> int:
        """How many calls came before it: collective ones of its group, or others on its link."""
        if "tag" not in call:
            return self._log.count(group.name)
        if "dst" in call:
            return self._log.count((group.name, call["tag"], "to", call["dst"]))
        if "src" in call:
            return self._log.count((group.name, call["tag"], "from", call["src"]))
        return 0  # of a receive from anyone it is known when it is complete

    def _record_sent(self, operator: Operator, call: Arguments, group: Group, number: int) -> None:
        sides = operator.sends(call, group.me, len(group.ranks))
        messages = [(to, tensors) for to, tensors in sides if to]
        if not messages:
            return
        site = self._sites.here()
        occurrence = self._log.count((operator.name, site))
        for to, tensors in messages:
            with self._log.lock:
                record = {
                    "kind": "sent",
                    "sequence": self._log.number(),
                    "time": time.time(),
                    "operator": operator.name,
                    "site": site,
                    "occurrence": occurrence,
                    "group": group.name,
                    "ranks": group.ranks,
                    "number": number,
                    "tag": call.get("tag"),
                    "source": group.ranks[group.me],
                    "destinations": [group.ranks[rank] for rank in to],
                }
                self._log.write(record, contents(tensors))
                if self._player is not None:
                    self._player.sent()

    def _await(self, awaited: Awaited) -> None:
        """Works that only C++ waits for are let go, unhashed, once there are many."""
        if len(self._awaited) >= MOST_AWAITED:
            for key, other in list(self._awaited.items()):
                if _IS_COMPLETED(other.work):
                    self._awaited.pop(key, None)
        self._awaited[id(awaited.work)] = awaited


def record(log: Log, sites: Sites, player: Any = None) -> None:
    """Put the kernels in place, and see the program wait.

    Args:
        player: of a world of an audit, which is told of each message.
    """
    recorder = Recorder(log, sites, player)
    for name, operator in OPERATORS.items():
        _LIBRARY.impl(name, recorder.kernel(name, operator), "BackendSelect", with_keyset=True)

    def wait(work: Any, *given: Any, **named: Any) -> Any:
        done = _WAIT(work, *given, **named)
        recorder.completed(work)
        return done

    def synchronize(work: Any) -> None:
        _SYNCHRONIZE(work)
        recorder.completed(work)

    def is_completed(work: Any) -> bool:
        done: bool = _IS_COMPLETED(work)
        if done:
            recorder.completed(work)
        return done

    _WORK.wait = wait
    _WORK.synchronize = synchronize
    _WORK.is_completed = is_completed
