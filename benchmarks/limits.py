"""What one thread of this machine can do at most, measured: products, copies, random numbers.

    python benchmarks/limits.py

The benchmarks beside this file say by it how far they are from the limit of the machine.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Limits(NamedTuple):
    """Of one thread, in CPU time; on another device, of the whole of it, on the clock."""

    products: float  # floating-point operations a second, in a product of 1024 x 1024 matrices
    copies: float  # bytes a second read and written, by a copy of 64 MiB
    normals: float  # draws of ``normal_`` a second, a million at once
    uniforms: float  # draws of ``uniform_`` a second, a million at once

    def __str__(self) -> str:
        return (
            f"limits of one thread: products {self.products / 1e9:.0f} GF/s, copies "
            f"{self.copies / 1e9:.1f} GB/s, normal_ {self.normals / 1e6:.0f} and uniform_ "
            f"{self.uniforms / 1e6:.0f} million draws/s"
        )

    def shares(self, seconds: float, **work: float) -> str:
        """What part of these seconds each amount of work, by its name above, takes at its limit."""
        parts = {name: amount / getattr(self, name) / seconds for name, amount in work.items()}
        each = ", ".join(f"{name} {part:.1%}" for name, part in parts.items())
        whole = self.share(seconds, work)
        return f"at the limits of the machine: {each}, in all {whole:.0%} of the time"

    def share(self, seconds: float, work: dict[str, float]) -> float:
        """The part of these seconds that the work takes at its limits, one after the other."""
        return sum(amount / getattr(self, name) for name, amount in work.items()) / seconds


CPU = torch.device("cpu")


def measured(
    dtype: torch.dtype = torch.float32, repeats: int = 9, device: torch.device = CPU
) -> Limits:
    """Medians on one thread; leaves torch with one thread."""
    torch.set_num_threads(1)
    square = torch.ones(1024, 1024, dtype=dtype, device=device)
    long = torch.ones(2**23, dtype=torch.float64, device=device)
    draws = torch.ones(2**20, dtype=dtype, device=device)
    product, copy = torch.empty_like(square), torch.ones_like(long)

    def seconds(method: Callable[[], object]) -> float:
        return cpu_seconds(method, repeats, device)

    return Limits(
        2 * 1024**3 / seconds(lambda: torch.mm(square, square, out=product)),
        2 * 8 * len(long) / seconds(lambda: copy.copy_(long)),
        len(draws) / seconds(draws.normal_),
        len(draws) / seconds(draws.uniform_),
    )


def clock(device: torch.device = CPU) -> float:
    """Seconds of this process's CPU time; on another device, on the clock, once it is idle."""
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize(device)
    return time.perf_counter()


def cpu_seconds(method: Callable[[], object], repeats: int, device: torch.device = CPU) -> float:
    """The median, after one call that is not timed."""
    method()
    times = []
    for _ in range(repeats):
        start = clock(device)
        method()
        times.append(clock(device) - start)
    return statistics.median(times)


def operations(method: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products and convolutions in one call."""
    with _Counter() as counter:
        method()
    return counter.total


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        self.total += int(count(*args, **(kwargs or {}), out_val=out)) if count else 0
        return out


def main() -> None:
    print(measured())


if __name__ == "__main__":
    main()
