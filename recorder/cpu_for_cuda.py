"""The CPU answers what a program asks of CUDA, and gloo where it asks for nccl.

A device that is named "cuda" is read as "cpu". What moves between devices is copied, as it would
be, so that no tensor shares memory with its copy on the other side.
"""

from __future__ import annotations

import functools
import os
from abc import ABCMeta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from .cpu_devices import answer_among_devices

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICES = ("CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE")  # say how many devices a program sees
CONSTRUCTORS = (  # functions of torch that make a tensor on a device
    *("zeros", "ones", "empty", "full", "rand", "randn", "randint", "tensor", "as_tensor"),
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
    *("randint_like", "randperm", "arange", "linspace", "logspace", "eye", "range"),
    *("empty_strided", "sparse_coo_tensor", "sparse_csr_tensor", "asarray", "from_file"),
    *("tril_indices", "triu_indices", "normal", "empty_permuted", "load", "scalar_tensor"),
    *("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window"),
)
_TENSOR: Any = torch.Tensor
_MODULE: Any = torch.nn.Module
_CUDA: Any = torch.cuda
_TORCH: Any = torch
_GENERATOR: Any = torch.Generator
_DEVICE: Any = torch.device


class _OfAnyDevice(type):
    """Makes generators of the CPU, and knows them all as its own."""

    def __call__(cls, device: Any = None) -> Any:
        return _GENERATOR()

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _GENERATOR)


class Generator(metaclass=_OfAnyDevice):
    """Replaces torch's own class, so that annotations may name it."""


class _NamesTheCpu(type):
    """Makes the CPU of what names a device of CUDA, and knows all devices as its own."""

    def __call__(cls, *given: Any, **named: Any) -> Any:
        first = (*given, *named.values())[0]
        cuda = isinstance(first, int) or str(first).partition(":")[0] == "cuda"
        return _DEVICE("cpu") if cuda else _DEVICE(*given, **named)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _DEVICE)


class device(metaclass=_NamesTheCpu):  # pickled devices name it torch.device
    """Replaces torch's own class: a CUDA device has the type of the CPU."""


device.__module__ = "torch"


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
    for name in CONSTRUCTORS:
        _replace(torch, name, _on_cpu)
    for owner, name in ((torch, "set_default_tensor_type"), (_TENSOR, "type")):
        _replace(owner, name, _of_cpu_types)
    _TORCH.Generator, _TORCH.device = Generator, device
    for name in (*CONSTRUCTORS, "device"):  # TorchScript compares these functions
        if callable(getattr(torch, name, None)):
            _TORCH.jit._builtins._register_builtin(getattr(torch, name), f"aten::{name}")
    _answer_of_tensors()
    _answer_of_distributed()
    _answer_of_mixed_precision()
    answer_among_devices()


def _replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Only what is there: constructors of other namespaces keep theirs."""
    if hasattr(owner, name):
        setattr(owner, name, change(getattr(owner, name)))


def _without_cuda(value: Any) -> Any:
    is_cuda = isinstance(value, str) and value.partition(":")[0] == "cuda"
    return "cpu" if is_cuda else value


def _of_cpu_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in which the types of CUDA tensors are those of the CPU."""

    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def answered(*given: Any, **named: Any) -> Any:
        given = tuple(
            v.replace("torch.cuda.", "torch.") if isinstance(v, str) else v for v in given
        )
        return function(*given, **named)

    return answered


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
    count = _n_devices()
    about = SimpleNamespace(name="CPU", major=8, minor=0, total_memory=2**34)
    about.multi_processor_count = 1
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *given, **named: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: about,
        "mem_get_info": lambda device=None: (2**34, 2**34),
        "memory_stats": lambda device=None: {},
        "initial_seed": lambda: torch.initial_seed(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * count,
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "get_device_name": lambda device=None: "CPU",
        "get_device_capability": lambda device=None: (8, 0),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
    }
    for name in (
        *("init", "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"),
        *("set_stream", "ipc_collect", "set_per_process_memory_fraction", "seed", "seed_all"),
    ):
        answers[name] = lambda *given, **named: None
    for name in ("range_push", "range_pop", "mark"):
        setattr(_CUDA.nvtx, name, lambda *given: None)
    for name in ("manual_seed", "manual_seed_all"):
        answers[name] = lambda seed: torch.default_generator.manual_seed(int(seed))
    for name in ("current_stream", "default_stream", "stream", "device", "Stream", "Event"):
        answers[name] = type(name, (Idle,), {})
    for name, answer in answers.items():
        setattr(_CUDA, name, answer)
    for name in ("get_rng_state", "set_rng_state"):  # for the device that answers for "cuda"
        if hasattr(_TORCH, "cpu") and not hasattr(_TORCH.cpu, name):
            setattr(_TORCH.cpu, name, answers[name])
    for base in vars(getattr(_TORCH, "_streambase", None) or Idle).values():
        if isinstance(base, ABCMeta):  # torch asks whether streams and events are of these
            base.register(Idle)
    for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Byte", "Bool"):
        setattr(_CUDA, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


def _n_devices() -> int:
    """Number of devices: those made visible, or one for each local process of torchrun, or 1."""
    visible, processes = map(os.environ.get, DEVICES)
    return len(visible.split(",")) if visible else int(processes or 1)


def _answer_of_tensors() -> None:
    to = _with_numbered_devices(_on_cpu(_TENSOR.to))

    def moved(tensor: Any, *given: Any, **named: Any) -> Any:
        to_device = (str, int, _DEVICE)  # a truth value is an int, but stands for no device
        values = [v for v in (*given, *named.values()) if not isinstance(v, bool)]
        moves = any(isinstance(v, to_device) for v in values)
        result = to(tensor, *given, **named)
        return result.clone() if moves and result is tensor else result

    def copied(tensor: Any, *given: Any, **named: Any) -> Any:
        return tensor.clone()

    _TENSOR.to, _TENSOR.cuda, _TENSOR.cpu = moved, copied, copied
    _TENSOR.pin_memory = lambda tensor, *given: tensor
    _TENSOR.record_stream = lambda tensor, stream: None
    _MODULE.cuda = lambda module, device=None: module
    _replace(_MODULE, "to", lambda to: _with_numbered_devices(_on_cpu(to)))


def _with_numbered_devices(to: Callable[..., Any]) -> Callable[..., Any]:
    """The same ``to``, which takes the number of a device for the CPU."""

    @functools.wraps(to, updated=())
    def answered(moved: Any, *given: Any, **named: Any) -> Any:
        if given and isinstance(given[0], int) and not isinstance(given[0], bool):
            given = ("cpu", *given[1:])
        return to(moved, *given, **named)

    return answered


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


def _answer_of_mixed_precision() -> None:
    """Autocast of CUDA changes nothing on the CPU, so that losses need no scale."""

    def without_scale(init: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(init, updated=())
        def answered(scaler: Any, *given: Any, **named: Any) -> None:
            init(scaler, enabled=False)

        return answered

    scalers = [_CUDA.amp.GradScaler, getattr(_TORCH.amp, "GradScaler", None)]
    for scaler in dict.fromkeys(one for one in scalers if one is not None):
        if "__init__" in vars(scaler):
            _replace(scaler, "__init__", without_scale)


def _gloo(backend: Any) -> Any:
    asked = backend if isinstance(backend, str) else ""
    return "gloo" if "nccl" in asked.lower() else backend
