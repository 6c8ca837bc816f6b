"""What torch.nn.parallel sends among devices, where each device is the CPU.

A tensor stays on the first device, and each other device has a copy. All functions can be
differentiated, so that they also stand in for the autograd functions that call them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch


def broadcast(tensor: Any, devices: Any = None, *, out: Any = None) -> Any:
    """A tensor on each device."""
    if out is None:
        return (tensor, *(tensor.clone() for _ in devices[1:]))
    for copy in out:
        copy.copy_(tensor)
    return tuple(out)


def broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
    """For each device, all tensors."""
    return list(zip(*(broadcast(tensor, devices) for tensor in tensors)))


def reduce_add(inputs: Any, destination: Any = None) -> Any:
    """The sum of one tensor from each device."""
    total = inputs[0].clone()
    for one in inputs[1:]:
        total = total + one
    return total


def reduce_add_coalesced(inputs: Any, destination: Any = None, buffer_size: int = 0) -> Any:
    """The sums of several tensors from each device."""
    return tuple(map(reduce_add, zip(*inputs)))


def scatter(
    tensor: Any,
    devices: Any = None,
    chunk_sizes: Any = None,
    dim: int = 0,
    streams: Any = None,
    *,
    out: Any = None,
) -> Any:
    """A part of a tensor for each device."""
    if out is not None:
        chunk_sizes = [part.size(dim) for part in out]
    if chunk_sizes is None:
        parts = tensor.chunk(len(devices), dim)
    else:
        parts = tensor.split(list(chunk_sizes), dim)
    if out is None:
        return tuple(part.clone() for part in parts)
    for part, into in zip(parts, out):
        into.copy_(part)
    return tuple(out)


def gather(tensors: Any, dim: int = 0, destination: Any = None, *, out: Any = None) -> Any:
    """The parts of all devices as one; scalars become a vector."""
    parts = [part.view(1) if part.dim() == 0 else part for part in tensors]
    return torch.cat(parts, dim) if out is None else torch.cat(parts, dim, out=out)


def parallel_apply(modules: Any, inputs: Any, kwargs: Any = None, devices: Any = None) -> Any:
    """Each module on its own inputs, one after the other."""
    named = kwargs or [{}] * len(inputs)
    return [
        module(*(one if isinstance(one, (list, tuple)) else (one,)), **(own or {}))
        for module, one, own in zip(modules, inputs, named)
    ]


def _flat(devices: Any, *tensors: Any) -> Any:
    return tuple(t for copies in broadcast_coalesced(tensors, devices) for t in copies)


def _sums(destination: Any, n: int, *grads: Any) -> Any:
    return reduce_add_coalesced([grads[i : i + n] for i in range(0, len(grads), n)])


def answer_among_devices() -> None:
    """Replace torch's own functions wherever torch has imported them."""
    functions: Any = import_module("torch.nn.parallel._functions")
    functions.Broadcast.apply = staticmethod(_flat)
    functions.ReduceAddCoalesced.apply = staticmethod(_sums)
    functions.Scatter.apply = staticmethod(
        lambda devices, sizes, dim, tensor: scatter(tensor, devices, sizes, dim)
    )
    functions.Gather.apply = staticmethod(lambda to, dim, *tensors: gather(tensors, dim))
    ours = (broadcast, broadcast_coalesced, reduce_add, reduce_add_coalesced, scatter, gather)
    for name in ("torch.nn.parallel.comm", "torch.cuda.comm"):
        for function in ours:
            setattr(import_module(name), function.__name__, function)
    theirs = sys.modules["torch.nn.parallel.parallel_apply"].__dict__["parallel_apply"]
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.nn.parallel") and getattr(module, "parallel_apply", 0) is theirs:
            setattr(module, "parallel_apply", parallel_apply)  # noqa: B010
