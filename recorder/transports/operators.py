"""What each operator of torch.distributed sends to whom, and what it receives from whom.

A call is seen as its arguments by the names of the operator's schema. ``me`` and ``n`` are this
process's rank in the group and the size of the group; ranks here are those of the group. What a
process sends to itself is no message.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, NamedTuple, Sequence, Tuple

from torch import Tensor

Arguments = Dict[str, Any]
Sides = Iterator[Tuple[Sequence[int], Sequence[Tensor]]]  # ranks, and the tensors that pass

Reader = Callable[[Arguments, int, int], Sides]  # arguments: a call, this rank, the group's size


class Operator(NamedTuple):
    """How to read the calls of one operator of the namespace c10d."""

    name: str  # of the function in torch.distributed
    sends: Reader  # receivers and contents
    receives: Reader  # senders and contents, read once the call is complete
    overwrites: bool = True  # may write to what it sends, before the program goes on


def nothing(call: Arguments, me: int, n: int) -> Sides:
    """Nothing passes."""
    yield from ()


def _others(call: Arguments, me: int, n: int) -> list[int]:
    return [rank for rank in range(n) if rank != me]


def _listed(argument: Any) -> Sequence[Tensor]:
    return [argument] if isinstance(argument, Tensor) else argument


def _whole(argument: str, ranks: Callable[[Arguments, int, int], list[int]] = _others) -> Reader:
    """The same tensors to or from several ranks, all others if it is not said which."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        yield ranks(call, me, n), _listed(call[argument])

    return sides


def _peer(argument: str) -> Reader:
    """All tensors, to or from the one rank that an argument names."""
    return _whole("tensors", lambda call, me, n: [call[argument]])


def _root(argument: str) -> Reader:
    """All tensors, to or from the root, of every other rank."""
    return _if_root(False, _whole(argument, lambda call, me, n: [call["root_rank"]]))


def _if_root(is_root: bool, reader: Reader) -> Reader:
    """What passes at the root alone, or at all others."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        if (call["root_rank"] == me) is is_root:
            yield from reader(call, me, n)

    return sides


def _each(argument: str, part: Callable[[Any, int, int], list[Tensor]]) -> Reader:
    """Reader in which each other rank sends or gets its own part of an argument."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        for rank in _others(call, me, n):
            yield [rank], part(call[argument], rank, n)

    return sides


def _own(argument: str) -> Reader:
    """One tensor for each rank."""
    return _each(argument, lambda given, rank, n: [given[rank]])


def _places(argument: str) -> Reader:
    """Lists in which each rank has its place, one for each tensor."""
    return _each(argument, lambda lists, rank, n: [one[rank] for one in lists if len(one) > rank])


def _parts(argument: str) -> Reader:
    """Tensors that hold as many equal parts as there are ranks, a part for or from each."""
    return _each(
        argument, lambda given, rank, n: [t.detach().reshape(n, -1)[rank] for t in _listed(given)]
    )


def _split(argument: str, sizes: str) -> Reader:
    """A tensor whose rows are cut in the sizes given, or in equal parts."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        tensor = call[argument].detach()
        counts = call[sizes] or [tensor.shape[0] // n] * n
        for rank, part in enumerate(tensor.split(counts)):
            if rank != me and part.numel():
                yield [rank], [part]

    return sides


def _reduced(name: str, sends: Reader) -> Operator:
    """An operator of a reduction, of which only the contributions are recorded."""
    return Operator(name, sends, nothing)


def _gathered(sends: str, receives: Reader) -> Operator:
    return Operator("all_gather", _whole(sends), receives, False)


OPERATORS = {
    "send": Operator("send", _peer("dst"), nothing, False),
    "recv_": Operator("recv", nothing, _peer("src")),
    "recv_any_source_": Operator(
        "recv", nothing, _whole("tensors", lambda call, me, n: [])
    ),  # the sender may be any rank
    "broadcast_": Operator("broadcast", _if_root(True, _whole("tensors")), _root("tensors"), False),
    "allreduce_": _reduced("all_reduce", _whole("tensors")),
    "allreduce_coalesced_": _reduced("all_reduce", _whole("tensors")),
    "reduce_": _reduced("reduce", _root("tensors")),
    "allgather_": _gathered("input_tensors", _places("output_tensors")),
    "allgather_coalesced_": _gathered("input_list", _places("output_lists")),
    "_allgather_base_": _gathered("input_tensor", _parts("output_tensor")),
    "allgather_into_tensor_coalesced_": _gathered("inputs", _parts("outputs")),
    "gather_": Operator(
        "gather", _root("input_tensors"), _if_root(True, _places("output_tensors")), False
    ),
    "scatter_": Operator(
        "scatter", _if_root(True, _places("input_tensors")), _root("output_tensors")
    ),
    "reduce_scatter_": _reduced("reduce_scatter", _places("input_tensors")),
    "_reduce_scatter_base_": _reduced("reduce_scatter", _parts("input_tensor")),
    "reduce_scatter_tensor_coalesced_": _reduced("reduce_scatter", _parts("inputs")),
    "alltoall_": Operator("all_to_all", _own("input_tensors"), _own("output_tensors")),
    "alltoall_base_": Operator(
        "all_to_all",
        _split("input", "input_split_sizes"),
        _split("output", "output_split_sizes"),
    ),
}
