"""Gradients of any network, one model after the other: slower than `stacked`."""

from collections.abc import Sequence
from typing import NamedTuple, Never

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpaudit.errors import DpauditError

from .gradient_terms import Each, Records
from .models import n_parameters, parameters_of
from .stacked import cross_entropy


class RecordByRecord:
    """Per-record gradients by vmap, for networks with a layer that has no stacked counterpart."""

    shares = True
    mixes_records = False
    differentiates = True

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        return _logits(self.module, X, inputs)

    def records(self, X: Tensor, inputs: Tensor, labels: Tensor, create_graph: bool) -> Records:
        # what vmap returns has wrong derivatives for layer normalisation (torch 2.13): loop instead
        each = self._each if create_graph else vmap(grad(self._loss), in_dims=(None, 0, 0))
        # of other attention vmap makes a loop, and says so at every call
        with torch.set_grad_enabled(create_graph), sdpa_kernel(SDPBackend.MATH):
            batches = zip(X, inputs, labels, strict=True)
            G = [torch.stack([each(x, *batch) for x in xs], dim=1) for xs, *batch in batches]
            return Records([Each(torch.stack(G))])

    def _each(self, x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        batch = zip(inputs, labels, strict=True)
        return torch.stack([grad(self._loss)(x, *record) for record in batch])

    def floats(self, shape: torch.Size) -> int:
        return 3 * n_parameters(self.module)

    def _loss(self, x: Tensor, record: Tensor, label: Tensor) -> Tensor:
        return _loss(self.module, x, record[None], label[None])


class WholeBatch:
    """Gradients of networks with batch normalisation, where a record has no gradient of its own.

    Statistics are those of the batch at hand, in evaluation as well: none are kept.
    """

    shares = True
    mixes_records = True
    differentiates = True

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        return _logits(self.module, X, inputs)

    def records(self, X: Tensor, inputs: Tensor, labels: Tensor, create_graph: bool) -> Records:
        with torch.set_grad_enabled(create_graph):
            batches = zip(X, inputs, labels, strict=True)
            G = [torch.stack([self._gradient(x, *batch) for x in xs]) for xs, *batch in batches]
            return Records([_Total(torch.stack(G))])

    def floats(self, shape: torch.Size) -> int:
        return n_parameters(self.module)

    def _gradient(self, x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return grad(lambda x: _loss(self.module, x, inputs, labels))(x)


class _Total(NamedTuple):
    """The gradient of the batch: no weight can be given to a record."""

    G: Tensor  # [n, k, d]

    @property
    def size(self) -> int:
        return self.G.shape[-1]

    def powers(self, norm: int) -> Never:
        raise DpauditError(
            "DPA036",
            "batch normalisation makes a record's gradient depend on the rest of the batch: "
            "clipping it bounds nothing, so choose a network without",
        )

    def weighted(self, factors: Tensor | None) -> Sequence[Tensor]:
        return [self.G.flatten(0, 1)]

    def each(self) -> Never:
        self.powers(2)


def _logits(module: nn.Module, X: Tensor, inputs: Tensor) -> Tensor:
    """[n, r, k, n_classes] of models X [n, k, d] on inputs [n, r, ...]."""
    pairs = zip(X, inputs, strict=True)
    return torch.stack([torch.stack([_call(module, x, a) for x in xs], dim=1) for xs, a in pairs])


def _loss(module: nn.Module, x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(_call(module, x, inputs)[None, :, None], labels[None]).sum()


def _call(module: nn.Module, x: Tensor, inputs: Tensor) -> Tensor:
    logits: Tensor = functional_call(module, parameters_of(module, x), (inputs,))
    return logits
