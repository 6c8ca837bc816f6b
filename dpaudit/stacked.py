"""Many models of one architecture in one pass, and every record's gradient from it.

One pass serves n data holders, r records of each one's batch, and k models on each batch. Holders
and records are the batch dimension, and models share the feature dimension: [n r, k features, ...].
So the network's own forward runs unchanged; only layers with parameters are replaced, by ones that
give each model its own weights and keep their input. What models share is computed once.

The backward pass goes to the outputs of these layers alone: a weight's gradient at a record is the
product of output gradient and input there, so norms and weighted sums over records need no backward
pass per record (Goodfellow 2015, arXiv:1510.01799; Bu et al. 2023, arXiv:2210.00038).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from dpaudit.errors import DpauditError
from dpaudit.models import unflatten
from dpaudit.terms import Each, Outer, Records, Term, prefer_gram

_GROUPED = 16  # records of a model up to which grouped convolutions are faster than a loop
_PIECE = 2**20  # bytes of patches at a time, which a core's cache holds


class Block(NamedTuple):
    """The sizes of one pass: n data holders, r records of each one's batch, k models on each."""

    n: int
    r: int
    k: int


class _Layer(nn.Module, ABC):
    """A layer with parameters, for all models of a block at once."""

    def __init__(self, path: str, layer: nn.Module) -> None:
        super().__init__()
        self.path = path
        self.shapes = {name: p.shape for name, p in layer.named_parameters()}
        self.prepare(Block(0, 0, 0), {})

    def prepare(self, block: Block, parameters: Mapping[str, Tensor]) -> None:
        """Take the weights [n, k, *shape] of the next pass; let go of the last."""
        self.block = block
        self.weights = {name: parameters[self.path + name] for name in self.shapes if parameters}
        self.seen: list[tuple[Tensor, Tensor]] = []  # output, and what `terms` needs of input

    def forward(self, x: Tensor) -> Tensor:
        y, kept = self.outputs(x)
        if torch.is_grad_enabled():
            if self.seen:
                raise DpauditError("per-record gradients need a network that uses each layer once")
            self.seen.append((y if y.requires_grad else y.requires_grad_(), kept))
        return y

    @abstractmethod
    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """From x [n r, k features, ...], [n r, features, ...] if shared; and what `terms` needs."""

    @abstractmethod
    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        """The gradients of the parameters from those of the outputs."""

    def natural(self, vectors: Tensor) -> Tensor:
        """Vectors [..., size] in the order of the terms, in that of the parameters."""
        return vectors

    def floats(self, y: Tensor) -> int:
        """How many numbers a pass holds for each record, given the outputs of one; an estimate."""
        return 2 * y.numel()


class _Linear(_Layer):
    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, f = self.block.n, self.shapes["weight"][1]
        A = x.reshape(n, -1, x.shape[-1] // f, f)  # [n, r t, s, f]
        W = self.weights["weight"].reshape(n, A.shape[2], -1, f)
        y = A.transpose(1, 2) @ W.mT
        if "bias" in self.weights:
            y = y + self.weights["bias"].reshape(n, A.shape[2], 1, -1)
        return y.transpose(1, 2).reshape(*x.shape[:-1], -1), A

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        n, r, k = self.block
        A = kept.unflatten(1, (r, -1)).transpose(2, 3)
        G = G.reshape(n, r, -1, k, self.shapes["weight"][0]).permute(0, 1, 3, 4, 2)
        weight: Term = Outer(A, G)
        if not prefer_gram(A.shape[3], *self.shapes["weight"]):
            weight = Each(weight.each())
        return [weight, Each(G.sum(-1))] if "bias" in self.shapes else [weight]


class _Conv2d(_Layer):
    """A linear layer on patches, whose entries are ordered (height, width, channel), then a 1."""

    def __init__(self, path: str, layer: nn.Conv2d) -> None:
        super().__init__(path, layer)
        assert not isinstance(layer.padding, str)
        self.stride: tuple[int, ...] = layer.stride
        self.padding: tuple[int, ...] = layer.padding

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, c = self.block.n, self.shapes["weight"][1]
        s = x.shape[1] // c
        if s == 1 and torch.is_grad_enabled() and not x.requires_grad:
            return self._from_patches(x)
        weights = [w.reshape(n, s, -1, *w.shape[3:]) for w in self.weights.values()]
        convolve = self._grouped if self.block.r <= _GROUPED else self._one_by_one
        return convolve(x.unflatten(0, (n, -1)), s, *weights), x

    def _grouped(self, x: Tensor, s: int, W: Tensor, b: Tensor | None = None) -> Tensor:
        """Models as groups of channels: one call, which many models with few records need."""
        channels = x.transpose(0, 1).flatten(1, 2)
        b = None if b is None else b.flatten()
        y = self._convolve(channels, W.flatten(0, 2), b, groups=len(x) * s)
        return y.unflatten(1, (len(x), -1)).transpose(0, 1).flatten(0, 1)

    def _one_by_one(self, x: Tensor, s: int, *weights: Tensor) -> Tensor:
        """One call for each model: the fastest for many records."""
        holders = []
        for x_i, *w_i in zip(x, *weights, strict=True):
            x_i = x_i.unflatten(1, (s, -1)).transpose(0, 1).contiguous()
            y_i = [self._convolve(*model) for model in zip(x_i, *w_i, strict=True)]
            holders.append(torch.cat(y_i, dim=1) if s > 1 else y_i[0])
        return torch.cat(holders) if len(x) > 1 else holders[0]

    def _convolve(self, x: Tensor, W: Tensor, b: Tensor | None = None, groups: int = 1) -> Tensor:
        return F.conv2d(x, W, b, self.stride, self.padding, groups=groups)

    def _from_patches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer needs its patches anyway: one product with them serves all models."""
        W = self.weights["weight"].movedim(3, -1).flatten(3)
        if "bias" in self.weights:
            W = torch.cat([W, self.weights["bias"].unsqueeze(-1)], dim=-1)
        patches = self._patches(x)
        y = patches.reshape(len(W), -1, W.shape[-1]) @ W.flatten(1, 2).mT
        return y.reshape(len(x), *patches.shape[2:4], -1).permute(0, 3, 1, 2), patches

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        (n, r, k), o, t = self.block, self.shapes["weight"][0], G[0, 0].numel()
        if prefer_gram(t, o, self._size()):
            A = kept if kept.ndim == 5 else self._patches(kept)
            return [Outer(A.reshape(n, r, A.shape[1], t, -1), G.reshape(n, r, k, o, t))]
        if G.requires_grad and kept.ndim == 4:
            return [Each(self._differentiable(kept, G))]
        q = max(1, _PIECE // (G.element_size() * k * t * self._size()))
        pieces = zip(self._pieces(kept, q), G.split(q), strict=True)
        each = [Outer(A.flatten(2, 3)[None], g.reshape(1, -1, k, o, t)).each() for A, g in pieces]
        return [Each(torch.cat(each, dim=1).view(n, r, k, -1))]

    def _differentiable(self, x: Tensor, G: Tensor) -> Tensor:
        """Each record's gradient by a convolution with records as groups, twice differentiable."""
        (n, r, k), (o, c, *kernel) = self.block, self.shapes["weight"]
        size, groups = (n * r * k * o, c, *kernel), n * r * k
        x, g = x.reshape(1, -1, *x.shape[2:]), G.reshape(1, -1, *G.shape[2:])
        weight = conv2d_weight(x, size, g, self.stride, self.padding, groups=groups)
        joint = weight.movedim(1, -1).reshape(n, r, k, o, -1)
        if "bias" in self.shapes:
            joint = torch.cat([joint, G.reshape(n, r, k, o, -1).sum(-1, keepdim=True)], dim=-1)
        return joint.flatten(-2)

    def _pieces(self, kept: Tensor, q: int) -> Iterator[Tensor]:
        """Patches of q inputs after the other, in the same memory: it stays in the cache."""
        if kept.ndim == 5:
            yield from kept.split(q)
            return
        memory = None
        for x in kept.split(q):
            patches = self._patches(x, memory)
            memory = patches if memory is None else memory
            yield patches

    def _patches(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """[n r, s, height, width, entries]; long runs of memory, so that copying is fast."""
        _, c, *kernel = self.shapes["weight"]
        down, across = self.padding
        x = x.unflatten(1, (-1, c)).movedim(2, -1)
        x = F.pad(x, (0, 0, across, across, down, down)) if down or across else x
        x = x.contiguous().unfold(2, kernel[0], self.stride[0]).unfold(3, kernel[1], self.stride[1])
        weight = self.shapes["weight"][1:].numel()
        if (patches := memory) is None:
            patches = x.new_empty(*x.shape[:4], self._size())
            patches[..., weight:].fill_(1)
        entries = patches[: len(x), ..., :weight].unflatten(-1, (*kernel, c))
        entries.copy_(x.movedim(4, -1))
        return patches[: len(x)]

    def _size(self) -> int:
        """Entries of a patch, with the 1 that stands for the bias."""
        return self.shapes["weight"][1:].numel() + ("bias" in self.shapes)

    def natural(self, vectors: Tensor) -> Tensor:
        o, c, *kernel = self.shapes["weight"]
        size = self.shapes["weight"][1:].numel()
        joint = vectors.unflatten(-1, (o, -1))
        weight = joint[..., :size].unflatten(-1, (*kernel, c)).movedim(-1, -3)
        return torch.cat([weight.flatten(-4), joint[..., size:].flatten(-2)], dim=-1)

    def floats(self, y: Tensor) -> int:
        size, t = self._size(), y[0, 0].numel()
        return 2 * y.numel() + t * size + min(2 * t * t, y.shape[1] * size)


class _GroupNorm(_Layer):
    def __init__(self, path: str, layer: nn.GroupNorm) -> None:
        super().__init__(path, layer)
        self.groups, self.channels, self.eps = layer.num_groups, layer.num_channels, layer.eps

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n = self.block.n
        x = F.group_norm(x, x.shape[1] // self.channels * self.groups, eps=self.eps)
        W, b = (w.reshape(n, 1, -1, *[1] * (x.ndim - 2)) for w in self.weights.values())
        x = x.repeat(1, W.shape[2] // x.shape[1], *[1] * (x.ndim - 2)).unflatten(0, (n, -1))
        return (x * W + b).flatten(0, 1), x

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        sizes = (*self.block, self.channels, -1)
        return [Each((G * kept.view_as(G)).reshape(sizes).sum(-1)), Each(G.reshape(sizes).sum(-1))]


class _ChannelsLast(nn.Module):
    """Max pooling with channels, hence models, last in memory: far faster on a CPU."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x.contiguous(memory_format=torch.channels_last))


_LAYERS: dict[type[nn.Module], type[_Layer]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv2d,
    nn.GroupNorm: _GroupNorm,
}
# what may stand between layers when models share the feature dimension
_FEATUREWISE = (
    nn.Sequential, nn.Flatten, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid,
)  # fmt: skip


class Stacked:
    """One architecture, run at many parameter vectors at once.

    ``shares`` says whether k > 1 is possible: nothing in the network mixes features of models.
    """

    mixes_records = False

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.shares = all(type(m) in (*_LAYERS, *_FEATUREWISE) for m in module.modules())
        self.network = _counterpart(deepcopy(module), "")
        self.layers = [m for m in self.network.modules() if isinstance(m, _Layer)]
        self.sizes = [
            sum(shape.numel() for shape in layer.shapes.values()) for layer in self.layers
        ]

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Whether every parameter belongs to one layer of a kind that is known here."""
        owners = [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))]
        n_uses = sum(1 for m in owners for _ in m.parameters(recurse=False))
        return n_uses == len(list(module.parameters())) and all(map(_known, owners))

    def logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        """[n, r, k, n_classes] of models X [n, k, d] on inputs [n, r, ...]."""
        block = Block(inputs.shape[0], inputs.shape[1], X.shape[1])
        self._prepare(block, unflatten(self.module, X))
        return self.network(inputs.flatten(0, 1)).reshape(*block, -1)

    def records(self, X: Tensor, inputs: Tensor, labels: Tensor, create_graph: bool) -> Records:
        """Every record's gradient of the cross-entropy; labels [n, r] or [n, r, n_classes]."""
        if not create_graph:
            X, inputs, labels = X.detach(), inputs.detach(), labels.detach()
        with torch.enable_grad():
            loss = cross_entropy(self.logits(X, inputs), labels).sum()
            outputs, kept = zip(*(layer.seen[0] for layer in self.layers), strict=True)
            gradients = torch.autograd.grad(loss, outputs, create_graph=create_graph)
        with torch.set_grad_enabled(create_graph):
            parts = zip(self.layers, kept, gradients, strict=True)
            terms = [
                t
                for layer, k, G in parts
                for t in layer.terms(k if create_graph else k.detach(), G)
            ]
        self._prepare(Block(0, 0, 0), {})
        return Records(terms)

    def natural(self, vectors: Tensor) -> Tensor:
        """Vectors [..., d] in the order of the records' terms, in that of the parameters."""
        if not any(isinstance(layer, _Conv2d) for layer in self.layers):
            return vectors
        parts = zip(self.layers, vectors.split(self.sizes, dim=-1), strict=True)
        return torch.cat([layer.natural(part) for layer, part in parts], dim=-1)

    def floats(self, shape: torch.Size) -> int:
        """How many numbers a pass holds for each record and model; an estimate from above."""
        count = 0

        def add(layer: nn.Module, _: object, y: Tensor) -> None:
            nonlocal count
            count += layer.floats(y) if isinstance(layer, _Layer) else 2 * y.numel()

        leaves = [m for m in self.network.modules() if not any(True for _ in m.children())]
        hooks = [m.register_forward_hook(add) for m in leaves]
        size = sum(p.numel() for p in self.module.parameters())
        X, inputs = torch.empty(1, 1, size, device="meta"), torch.empty(1, 1, *shape, device="meta")
        with torch.no_grad():
            self.logits(X, inputs)
        for hook in hooks:
            hook.remove()
        return count

    def _prepare(self, block: Block, parameters: dict[str, Tensor]) -> None:
        for layer in self.layers:
            layer.prepare(block, parameters)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each model at each record [n, r, k]; labels [n, r] or [n, r, n_classes]."""
    n, r, k, _ = logits.shape
    labels = labels.unsqueeze(2).expand(n, r, k, *labels.shape[2:])
    losses = F.cross_entropy(logits.flatten(0, 2), labels.flatten(0, 2), reduction="none")
    return losses.view(n, r, k)


def _known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return type(layer) in _LAYERS and plain and not isinstance(layer.padding, str)
    return type(layer) in _LAYERS


def _counterpart(module: nn.Module, path: str) -> nn.Module:
    """The module with its layers replaced; ``path`` is the prefix of its parameters' names."""
    if type(module) in _LAYERS:
        return _LAYERS[type(module)](path, module)
    if isinstance(module, nn.MaxPool2d):
        return _ChannelsLast(module)
    if isinstance(module, nn.ReLU):
        return nn.ReLU()  # in place, it would overwrite outputs that gradients are taken at
    for name, child in module.named_children():
        setattr(module, name, _counterpart(child, f"{path}{name}."))
    return module
