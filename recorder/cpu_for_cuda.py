"""The CPU answers what a program asks of CUDA, and gloo where it asks for nccl.

A device that is named "cuda" is read as "cpu". What moves between devices is copied, as it would
be, so that no tensor shares memory with its copy on the other side.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._device import _device_constructors
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICES = 4  # that a program sees if it does not know how many of its processes run here
_TENSOR: Any = torch.Tensor
_MODULE: Any = torch.nn.Module
_CUDA: Any = torch.cuda
_TORCH: Any = torch
_GENERATOR: Any = torch.Generator


class _OfAnyDevice(type):
    """Makes generators of the CPU, and knows them all as its own."""

    def __call__(cls, device: Any = None) -> Any:
        return _GENERATOR()

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _GENERATOR)


class Generator(metaclass=_OfAnyDevice):
    """In the place of torch's own, as a class that annotations may name."""


class Idle:
    """A stream or an event: there is nothing to wait for."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Idle) -> float:
        return 0.0

    def record(self, *given: Any) -> None:
        pass

    wait = synchronize = wait_stream = wait_event = record_event = record


def answer_for_cuda() -> None:
    """Right after torch was imported; all that comes later finds the CPU."""
    _answer_of_devices()
    for name in ("zeros", "ones", "empty", "full", "tensor"):
        _replace(_TENSOR, f"new_{name}", _on_cpu)
    for constructor in _device_constructors():
        _replace(torch, constructor.__name__, _on_cpu)
    for name in ("load", "as_tensor"):
        _replace(torch, name, _on_cpu)
    _TORCH.Generator = Generator
    _answer_of_tensors()
    _answer_of_distributed()


def _replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Only what is there: constructors of other namespaces keep theirs."""
    if hasattr(owner, name):
        setattr(owner, name, change(getattr(owner, name)))


def _without_cuda(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in which every device is the CPU."""

    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def answered(*given: Any, **named: Any) -> Any:
        if isinstance(named.get("device"), int):
            named["device"] = "cpu"
        if isinstance(named.get("map_location"), (str, dict)):
            named["map_location"] = "cpu"
        for asked in ("pin_memory", "non_blocking"):
            named.pop(asked, None)
        cpu = {key: _without_cuda(value) for key, value in named.items()}
        return function(*map(_without_cuda, given), **cpu)

    return answered


def _answer_of_devices() -> None:
    """A function of its own for every name: torch keeps a table of them, each with one entry."""
    count = int(os.environ.get("LOCAL_WORLD_SIZE", DEVICES))
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *given: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "CPU",
        "get_device_capability": lambda device=None: (8, 0),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
    }
    for name in ("init", "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        answers[name] = lambda *given, **named: None
    for name in ("manual_seed", "manual_seed_all"):
        answers[name] = lambda seed: torch.default_generator.manual_seed(int(seed))
    for name in ("current_stream", "default_stream", "stream", "device", "Stream", "Event"):
        answers[name] = type(name, (Idle,), {})
    for name, answer in answers.items():
        setattr(_CUDA, name, answer)
    for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Byte", "Bool"):
        setattr(_CUDA, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


def _answer_of_tensors() -> None:
    to = _on_cpu(_TENSOR.to)

    def moved(tensor: Any, *given: Any, **named: Any) -> Any:
        moves = any(isinstance(v, (str, torch.device)) for v in (*given, *named.values()))
        result = to(tensor, *given, **named)
        return result.clone() if moves and result is tensor else result

    def copied(tensor: Any, *given: Any, **named: Any) -> Any:
        return tensor.clone()

    _TENSOR.to, _TENSOR.cuda, _TENSOR.cpu = moved, copied, copied
    _TENSOR.pin_memory = lambda tensor, *given: tensor
    _TENSOR.record_stream = lambda tensor, stream: None
    _MODULE.cuda = lambda module, device=None: module
    _replace(_MODULE, "to", _on_cpu)


def _answer_of_distributed() -> None:
    """gloo for nccl, and no devices where it takes none."""

    def without(*names: str) -> Callable[[Callable[..., Any]], Any]:
        def change(function: Callable[..., Any]) -> Callable[..., Any]:
            def answered(*given: Any, **named: Any) -> Any:
                kept = {key: value for key, value in named.items() if key not in names}
                if "backend" in kept:
                    kept["backend"] = _gloo(kept["backend"])
                return function(*map(_gloo, given), **kept)

            return functools.wraps(function)(answered)

        return change

    for module in (dist, dist.distributed_c10d):
        for name in ("init_process_group", "new_group"):
            _replace(module, name, without("device_id"))
        _replace(module, "barrier", without("device_ids"))
        _replace(module, "is_nccl_available", lambda function: lambda: True)
    _replace(DistributedDataParallel, "__init__", without("device_ids", "output_device"))
    _replace(DataLoader, "__init__", without("pin_memory", "pin_memory_device"))


def _gloo(backend: Any) -> Any:
    asked = backend if isinstance(backend, str) else ""
    return "gloo" if "nccl" in asked.lower() else backend
