"""Sums of clipped per-record gradients of small convolutional networks, by compiled code.

It is optional. `gradients` has PyTorch's operations for everything else and where numba is missing;
the two agree up to rounding.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from .networks import Shape

_LEAST = 2000  # records times models of a call: a hundred such calls win what compiling takes
_LARGEST = 2**21  # numbers of a workspace: of more than 8 MiB, caches keep too little
_PART = 256  # records of a batch in one task, at least, so that threads can share a batch
_PARTS = 16  # parts of a batch, each of which has a sum of its own

Pair = tuple[int, int]


class WholeImageLayer(NamedTuple):
    """A convolution, maxima, or a linear layer, whose window is the whole image."""

    c_x: int
    sides_x: Pair  # height and width of the input
    c_y: int
    size: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    pools: bool = False
    has_bias: bool = False
    rectifies: bool = False

    @property
    def sides_y(self) -> Pair:
        height, width = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(self.sides_x, *self[3:7], strict=True)
        )
        return height, width

    @property
    def is_linear(self) -> bool:
        spread = self.padding, self.dilation
        return self.size == self.sides_x and spread == ((0, 0), (1, 1)) and not self.pools

    def links(self) -> NDArray[np.int64]:
        """[n, 3], output position, tap and input position, for all that is multiplied."""
        grid = torch.arange(1.0, 1 + self.sides_x[0] * self.sides_x[1], dtype=torch.float64)
        padded = grid.view(1, 1, *self.sides_x)
        x = F.unfold(padded, self.size, self.dilation, self.padding, self.stride)[0].long()
        y, tap = x.T.nonzero().T
        return torch.stack([y, tap, x[tap, y] - 1], dim=1).numpy()


class KernelNetwork(NamedTuple):
    """A network as the kernels take it."""

    layers: NDArray[Any]  # array of LAYER
    starts: NDArray[np.int64]  # first link of each position or tap
    links: NDArray[np.int64]  # [n, 2]
    size: int  # size of the workspace


@cache
def compiled() -> ModuleType | None:
    """The compiled kernels, or None where numba is missing (or can cache nothing on this disk)."""
    try:
        return import_module("dpaudit.models.lockstep_compiled")
    except (ImportError, RuntimeError):
        return None


class Lockstep:
    """Sums of clipped gradients of one architecture, where compiled code can find them.

    Arguments are those of `Gradients`. Results depend on no number of threads.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._programs: dict[Shape, KernelNetwork | None] = {}

    def takes(self, X: Tensor, inputs: Tensor, labels: Tensor, holders: Tensor | None) -> bool:
        """Whether it does, which depends on shapes, types and devices alone."""
        if is_in_torch_dispatch_mode():  # a dispatch mode counts PyTorch's operations
            return False
        m, (n, b, *shape) = len(X), inputs.shape
        rows = torch.Size([n] if holders is None else holders.shape)
        given = (X, inputs, labels) if holders is None else (X, inputs, labels, holders)
        if m * b < _LEAST or labels.shape != (n, b) or rows != (m,):
            return False
        if X.dtype != torch.float32 or inputs.dtype != X.dtype or labels.dtype != torch.long:
            return False
        if any(t.device.type != "cpu" for t in given):
            return False
        program = self._program(tuple(shape))
        return program is not None and program.layers["end"][-1] == X.shape[1]

    def clipped_sum(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        C: float,
        weights: Tensor | None,
        holders: Tensor | None,
    ) -> Tensor:
        """[m, d]; C may be infinite.

        Raises:
            IndexError: there is no such class or holder.
        """
        kernels, program = compiled(), self._program(tuple(inputs.shape[2:]))
        assert kernels is not None
        assert program is not None
        n, b = labels.shape
        holders = torch.arange(len(X)) if holders is None else holders
        for indices, stop in ((labels, int(program.layers["c_y"][-1])), (holders, n)):
            if indices.min() < 0 or indices.max() >= stop:
                found = f"{int(indices.min())} to {int(indices.max())}"
                raise IndexError(f"expected indices from 0 to {stop - 1}, got {found}")
        weights = X.new_ones(n, b) if weights is None else weights.to(X.dtype).expand(n, b)
        parts = min(-(-b // _PART), _PARTS)
        total = X.new_empty(len(X), parts, X.shape[1])
        tensors = X, inputs.flatten(2), labels, holders, weights, total
        *arrays, sums = (t.detach().contiguous().numpy() for t in tensors)
        n_tasks = len(X) * parts
        n_threads = min(torch.get_num_threads(), n_tasks)
        bounds = [n_tasks * i // n_threads for i in range(n_threads + 1)]

        def work(first: int, last: int) -> None:
            space = torch.zeros(program.size).numpy()  # torch's are aligned
            chosen = *program[:3], parts, first, last
            kernels.clipped_sums(*arrays, np.float32(C), *chosen, space, sums)

        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(work, bounds[:-1], bounds[1:]))
        return total[:, 0] if parts == 1 else total.sum(dim=1)

    def _program(self, shape: Shape) -> KernelNetwork | None:
        if shape not in self._programs:
            windows = _windows(self.module, shape)
            kernels = compiled() if windows else None
            program = _Builder(kernels).program(windows) if kernels and windows else None
            fits = program is not None and program.size <= _LARGEST
            self._programs[shape] = program if fits else None
        return self._programs[shape]


def _windows(module: nn.Module, shape: Shape) -> list[WholeImageLayer]:
    """The layers of a network on records of this shape; none if it has others than these."""
    found: list[WholeImageLayer] = []
    if type(module) is not nn.Sequential or len(shape) != 3:
        return []
    c, sides, is_flat = shape[0], (shape[1], shape[2]), False
    for layer in module:
        window = None
        if layer._forward_hooks or layer._forward_pre_hooks:
            return []
        if type(layer) is nn.ReLU and found:
            found[-1] = found[-1]._replace(rectifies=True)
        elif type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
            is_flat = True
        elif type(layer) is nn.Linear and is_flat and layer.in_features == c * prod(sides):
            window = WholeImageLayer(c, sides, layer.out_features, sides)
        elif type(layer) is nn.Conv2d and not is_flat and _is_plain(layer, c):
            window = _window(layer, c, sides, layer.out_channels)
        elif type(layer) is nn.MaxPool2d and not (is_flat or layer.ceil_mode):
            window = _window(layer, c, sides, c)._replace(pools=True)
        else:
            return []
        if window is not None:
            has_bias = getattr(layer, "bias", None) is not None
            found.append(window._replace(has_bias=has_bias))
            c, sides = window.c_y, window.sides_y
    is_last = bool(found) and is_flat and not (found[-1].pools or found[-1].rectifies)
    return found if is_last and sides == (1, 1) else []


def _is_plain(layer: nn.Conv2d, c: int) -> bool:
    """Whether it takes c channels, all to each output, of images with zeros around them."""
    pads = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return pads and layer.groups == 1 and layer.in_channels == c


def _window(layer: Any, c_x: int, sides: Pair, c_y: int) -> WholeImageLayer:
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    size, stride, padding, dilation = (s if isinstance(s, tuple) else (s, s) for s in sizes)
    return WholeImageLayer(c_x, sides, c_y, size, stride, padding, dilation)


class _Builder:
    """Writes a network's layers for the kernels."""

    def __init__(self, kernels: ModuleType) -> None:
        self.kernels = kernels
        self.size = self.n_starts = self.n_links = self.d = 0
        self.starts, self.links = list[NDArray[np.int64]](), list[NDArray[np.int64]]()

    def program(self, windows: list[WholeImageLayer]) -> KernelNetwork:
        layers = np.zeros(len(windows), self.kernels.LAYER)
        first = windows[0]
        x, dx = self._room(first.c_x * prod(first.sides_x), each=True), 0
        for layer, window in zip(layers, windows, strict=True):
            layer["x"], layer["dx"] = x, dx
            self._write(layer, window)
            x, dx = layer["y"], layer["dy"]
        self._room(1, each=True)  # factors, at the end
        starts, links = np.concatenate(self.starts), np.concatenate(self.links)
        return KernelNetwork(layers, starts, links, self.size)

    def _write(self, layer: Any, window: WholeImageLayer) -> None:
        c_x, c_y = window.c_x, window.c_y
        n_x, n_y, taps = (prod(s) for s in (window.sides_x, window.sides_y, window.size))
        for name in ("pools", "rectifies", "is_linear"):
            layer[name] = getattr(window, name)
        layer["c_x"], layer["c_y"], layer["n_x"], layer["n_y"] = c_x, c_y, n_x, n_y
        layer["taps"] = taps
        links = window.links()
        layer["by_y"] = self._sorted(links, n_y, 0, [1, 2])
        layer["by_tap"] = self._sorted(links, taps, 1, [0, 2])
        layer["by_x"] = self._sorted(links, n_x, 2, [1, 0])
        (layer["width_x"], blocks_x), (layer["width_y"], blocks_y) = map(self._blocks, (c_x, c_y))
        layer["y"], layer["dy"] = (self._room(blocks_y * n_y, each=True) for _ in "12")
        if window.pools:
            layer["taken"] = self._room(c_y * n_y, each=True)
            return
        layer["weight"] = self.d
        layer["bias"] = self.d + c_y * c_x * taps
        layer["end"] = layer["bias"] + c_y * window.has_bias
        self.d = int(layer["end"])
        layer["forward"] = self._room(blocks_y * c_x * taps)
        layer["backward"] = self._room(blocks_x * c_y * taps)
        layer["offsets"], layer["zeros"] = self._room(blocks_y), self._room(blocks_x)
        layer["gradient"] = self._room(0 if window.is_linear else blocks_y * c_x * taps, each=True)
        layer["total"] = self._room(layer["end"] - layer["weight"], each=True)

    def _blocks(self, channels: int) -> Pair:
        """The width of blocks that fits best, and how many channels they have."""
        filled = {w: -(-channels // w) * w for w in self.kernels.WIDTHS}
        return min(filled.items(), key=lambda pair: pair[1])

    def _sorted(self, links: NDArray[np.int64], n: int, by: int, others: list[int]) -> int:
        """Where the starts of links begin that are sorted by one of their three numbers."""
        ordered = links[links[:, by].argsort(kind="stable")]
        self.starts.append(self.n_links + np.searchsorted(ordered[:, by], np.arange(n + 1)))
        self.links.append(ordered[:, others])
        self.n_links += len(ordered)
        self.n_starts += n + 1
        return self.n_starts - (n + 1)

    def _room(self, numbers: int, each: bool = False) -> int:
        """Where so many numbers begin in the workspace, or numbers of ``each`` record."""
        lanes = self.kernels.LANES
        start = self.size
        self.size += int(numbers) * lanes if each else -(-int(numbers) // lanes) * lanes
        return start
