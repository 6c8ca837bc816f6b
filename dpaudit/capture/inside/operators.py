"""What each operator of torch.distributed sends to whom, and what it receives from whom.

A call is seen as its arguments by the names of the operator's schema. ``me`` and ``n`` are this
process's rank in the group and the size of the group; ranks here are those of the group. What a
process sends to itself is no message.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

Arguments = dict[str, Any]
Sides = Iterator[tuple[Sequence[int], Sequence[Tensor]]]  # ranks, and the tensors that pass

Reader = Callable[[Arguments, int, int], Sides]  # of one call, this rank and the group's size


class Operator(NamedTuple):
    """How to read the calls of one operator of the namespace c10d."""

    name: str  # as torch.distributed calls the function
    sends: Reader  # to whom
    receives: Reader  # from whom, to be read once it is complete
    overwrites: bool = True  # may write to what it sends, before the program goes on


def nothing(call: Arguments, me: int, n: int) -> Sides:
    """Nothing passes."""
    yield from ()


def _others(me: int, n: int) -> list[int]:
    return [rank for rank in range(n) if rank != me]


def _listed(argument: Any) -> Sequence[Tensor]:
    return [argument] if isinstance(argument, Tensor) else argument


def _peer(argument: str) -> Reader:
    """All tensors, to or from the one rank that an argument names."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        yield [call[argument]], call["tensors"]

    return sides


def _from_anyone(call: Arguments, me: int, n: int) -> Sides:
    yield [], call["tensors"]


def _all(argument: str) -> Reader:
    """The same tensors to all others."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        yield _others(me, n), _listed(call[argument])

    return sides


def _root(argument: str) -> Reader:
    """All tensors, to or from the root, of every other rank."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        if call["root_rank"] != me:
            yield [call["root_rank"]], _listed(call[argument])

    return sides


def _at_root(of_root: Reader) -> Reader:
    """What passes at the root alone."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        if call["root_rank"] == me:
            yield from of_root(call, me, n)

    return sides


def _places(argument: str) -> Reader:
    """Lists in which each rank has its place, one for each tensor."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        for rank in _others(me, n):
            yield [rank], [each[rank] for each in call[argument] if len(each) > rank]

    return sides


def _one_each(argument: str) -> Reader:
    """One tensor for each rank."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        for rank in _others(me, n):
            yield [rank], [call[argument][rank]]

    return sides


def _parts(argument: str) -> Reader:
    """Tensors that hold as many equal parts as there are ranks, a part for or from each."""

    def sides(call: Arguments, me: int, n: int) -> Sides:
        rows = [tensor.detach().reshape(n, -1) for tensor in _listed(call[argument])]
        for rank in _others(me, n):
            yield [rank], [row[rank] for row in rows]

    return sides


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
    """Of a reduction only what is contributed is recorded."""
    return Operator(name, sends, nothing)


def _gathered(sends: Reader, receives: Reader) -> Operator:
    return Operator("all_gather", sends, receives, False)


OPERATORS = {
    "send": Operator("send", _peer("dst"), nothing, False),
    "recv_": Operator("recv", nothing, _peer("src")),
    "recv_any_source_": Operator("recv", nothing, _from_anyone),
    "broadcast_": Operator("broadcast", _at_root(_all("tensors")), _root("tensors"), False),
    "allreduce_": _reduced("all_reduce", _all("tensors")),
    "allreduce_coalesced_": _reduced("all_reduce", _all("tensors")),
    "reduce_": _reduced("reduce", _root("tensors")),
    "allgather_": _gathered(_all("input_tensors"), _places("output_tensors")),
    "allgather_coalesced_": _gathered(_all("input_list"), _places("output_lists")),
    "_allgather_base_": _gathered(_all("input_tensor"), _parts("output_tensor")),
    "allgather_into_tensor_coalesced_": _gathered(_all("inputs"), _parts("outputs")),
    "gather_": Operator(
        "gather", _root("input_tensors"), _at_root(_places("output_tensors")), False
    ),
    "scatter_": Operator("scatter", _at_root(_places("input_tensors")), _root("output_tensors")),
    "reduce_scatter_": _reduced("reduce_scatter", _places("input_tensors")),
    "_reduce_scatter_base_": _reduced("reduce_scatter", _parts("input_tensor")),
    "reduce_scatter_tensor_coalesced_": _reduced("reduce_scatter", _parts("inputs")),
    "alltoall_": Operator("all_to_all", _one_each("input_tensors"), _one_each("output_tensors")),
    "alltoall_base_": Operator(
        "all_to_all",
        _split("input", "input_split_sizes"),
        _split("output", "output_split_sizes"),
    ),
}
