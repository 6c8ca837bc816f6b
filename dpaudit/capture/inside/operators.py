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


class Operator(NamedTuple):
    """How to read the calls of one operator of the namespace c10d."""

    name: str  # as torch.distributed calls the function
    sends: Callable[[Arguments, int, int], Sides]  # to whom
    receives: Callable[[Arguments, int, int], Sides]  # from whom, to be read once it is complete
    overwrites: bool = True  # may write to what it sends, before the program goes on


def _others(me: int, n: int) -> list[int]:
    return [rank for rank in range(n) if rank != me]


def nothing(call: Arguments, me: int, n: int) -> Sides:
    yield from ()


def _to_destination(call: Arguments, me: int, n: int) -> Sides:
    yield [call["dst"]], call["tensors"]


def _from_source(call: Arguments, me: int, n: int) -> Sides:
    yield [call["src"]], call["tensors"]


def _from_anyone(call: Arguments, me: int, n: int) -> Sides:
    yield [], call["tensors"]


def _to_all(argument: str) -> Callable[[Arguments, int, int], Sides]:
    def sends(call: Arguments, me: int, n: int) -> Sides:
        yield _others(me, n), _listed(call[argument])

    return sends


def _to_root(argument: str) -> Callable[[Arguments, int, int], Sides]:
    def sends(call: Arguments, me: int, n: int) -> Sides:
        if call["root_rank"] != me:
            yield [call["root_rank"]], _listed(call[argument])

    return sends


def _from_root(call: Arguments, me: int, n: int) -> Sides:
    if call["root_rank"] != me:
        yield [call["root_rank"]], call["tensors"]


def _broadcast(call: Arguments, me: int, n: int) -> Sides:
    if call["root_rank"] == me:
        yield _others(me, n), call["tensors"]


def _gathered(call: Arguments, me: int, n: int) -> Sides:
    """A list for each tensor, in which each rank has its place."""
    for rank in _others(me, n):
        yield [rank], [outputs[rank] for outputs in call["output_tensors"] if len(outputs) > rank]


def _gathered_at_root(call: Arguments, me: int, n: int) -> Sides:
    if call["root_rank"] == me:
        yield from _gathered(call, me, n)


def _coalesced_gathered(call: Arguments, me: int, n: int) -> Sides:
    for rank in _others(me, n):
        yield [rank], [outputs[rank] for outputs in call["output_lists"]]


def _parts(argument: str) -> Callable[[Arguments, int, int], Sides]:
    """Tensors that hold as many equal parts as there are ranks, a part for or from each."""

    def parts(call: Arguments, me: int, n: int) -> Sides:
        rows = [tensor.detach().reshape(n, -1) for tensor in _listed(call[argument])]
        for rank in _others(me, n):
            yield [rank], [row[rank] for row in rows]

    return parts


def _one_each(argument: str) -> Callable[[Arguments, int, int], Sides]:
    def each(call: Arguments, me: int, n: int) -> Sides:
        for rank in _others(me, n):
            yield [rank], [call[argument][rank]]

    return each


def _scattered(call: Arguments, me: int, n: int) -> Sides:
    if call["root_rank"] == me:
        for rank in _others(me, n):
            yield [rank], [inputs[rank] for inputs in call["input_tensors"]]


def _scattered_from_root(call: Arguments, me: int, n: int) -> Sides:
    if call["root_rank"] != me:
        yield [call["root_rank"]], call["output_tensors"]


def _reduced_parts(call: Arguments, me: int, n: int) -> Sides:
    for rank in _others(me, n):
        yield [rank], [inputs[rank] for inputs in call["input_tensors"]]


def _split(argument: str, sizes: str) -> Callable[[Arguments, int, int], Sides]:
    """A tensor whose rows are cut in the sizes given, or in equal parts."""

    def split(call: Arguments, me: int, n: int) -> Sides:
        tensor = call[argument].detach()
        counts = call[sizes] or [tensor.shape[0] // n] * n
        for rank, part in enumerate(tensor.split(counts)):
            if rank != me and part.numel():
                yield [rank], [part]

    return split


def _listed(argument: Any) -> Sequence[Tensor]:
    return [argument] if isinstance(argument, Tensor) else argument


OPERATORS = {
    "send": Operator("send", _to_destination, nothing, False),
    "recv_": Operator("recv", nothing, _from_source),
    "recv_any_source_": Operator("recv", nothing, _from_anyone),
    "broadcast_": Operator("broadcast", _broadcast, _from_root, False),
    "allreduce_": Operator("all_reduce", _to_all("tensors"), nothing),
    "allreduce_coalesced_": Operator("all_reduce", _to_all("tensors"), nothing),
    "reduce_": Operator("reduce", _to_root("tensors"), nothing),
    "allgather_": Operator("all_gather", _to_all("input_tensors"), _gathered, False),
    "allgather_coalesced_": Operator(
        "all_gather", _to_all("input_list"), _coalesced_gathered, False
    ),
    "_allgather_base_": Operator(
        "all_gather", _to_all("input_tensor"), _parts("output_tensor"), False
    ),
    "allgather_into_tensor_coalesced_": Operator(
        "all_gather", _to_all("inputs"), _parts("outputs"), False
    ),
    "gather_": Operator("gather", _to_root("input_tensors"), _gathered_at_root, False),
    "scatter_": Operator("scatter", _scattered, _scattered_from_root),
    "reduce_scatter_": Operator("reduce_scatter", _reduced_parts, nothing),
    "_reduce_scatter_base_": Operator("reduce_scatter", _parts("input_tensor"), nothing),
    "reduce_scatter_tensor_coalesced_": Operator("reduce_scatter", _parts("inputs"), nothing),
    "alltoall_": Operator("all_to_all", _one_each("input_tensors"), _one_each("output_tensors")),
    "alltoall_base_": Operator(
        "all_to_all",
        _split("input", "input_split_sizes"),
        _split("output", "output_split_sizes"),
    ),
}
