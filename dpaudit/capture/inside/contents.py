"""The bytes of a tensor, as they are in memory, whatever its dtype."""

import ctypes
import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .log import Content


def contents(tensors: Sequence[Tensor]) -> Iterator[Content]:
    """What a list of tensors holds now; it is read before the next one is asked for."""
    for i, tensor in enumerate(tensors):
        for name, part in _dense(str(i), tensor.detach()):
            held = _in_memory(part)
            size = held.numel() * held.element_size()
            data = (ctypes.c_char * size).from_address(held.data_ptr()) if size else b""
            yield Content(name, tuple(part.shape), str(part.dtype).removeprefix("torch."), data)


def hashes(tensors: Sequence[Tensor]) -> list[str]:
    """The SHA-256 of each content."""
    return [hashlib.sha256(content.data).hexdigest() for content in contents(tensors)]


def _dense(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor, or the indices and the values of a sparse one."""
    if tensor.layout == torch.sparse_coo:
        yield f"{name}.indices", tensor._indices()
        yield f"{name}.values", tensor._values()
    else:
        yield name, tensor


def _in_memory(tensor: Tensor) -> Tensor:
    """On the CPU, in row-major order and with nothing left to be done lazily."""
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()
