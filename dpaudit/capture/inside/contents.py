"""The bytes of a tensor, as they are in memory, whatever its dtype."""

import ctypes
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .log import Content


def contents(tensors: Sequence[Tensor]) -> Iterator[Content]:
    """What a list of tensors holds now; it is read before the next one is asked for."""
    for i, tensor in enumerate(tensors):
        for name, part in _dense(str(i), tensor):
            held = _in_memory(part)
            yield Content(name, tuple(part.shape), _dtype_name(part.dtype), _bytes_of(held))


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """The CRC-32 of each content."""
    found = []
    for tensor in tensors:
        for _, part in _dense("", tensor):
            held = _in_memory(part)
            found.append(zlib.crc32(_bytes_of(held)))
    return found


def _dense(name: str, tensor: Tensor) -> Sequence[tuple[str, Tensor]]:
    """A tensor, or the indices and the values of a sparse one."""
    if tensor.layout is torch.sparse_coo:
        sparse = tensor.detach()
        return (f"{name}.indices", sparse._indices()), (f"{name}.values", sparse._values())
    return ((name, tensor),)


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


def _bytes_of(held: Tensor) -> Any:
    """A buffer over its memory, which it must outlive."""
    size = held.nbytes
    return (ctypes.c_char * size).from_address(held.data_ptr()) if size else b""


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
