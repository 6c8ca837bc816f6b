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
from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpaudit.errors import DpauditError
from dpaudit.models import unflatten


class Block(NamedTuple):
    """The sizes of one pass: n data holders, r records of each one's batch, k models on each."""

    n: int
    r: int
    k: int


class Term(Protocol):
    """One parameter's gradients at every record of every model, in whatever form is cheap."""

    def powers(self, norm: int) -> Tensor:
        """L1 norm (1) or squared L2 norm (2) of each record's gradient, [n, r, k]."""
        ...

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum over records times factors [n, r, k], flat: [n, k, size]."""
        ...

    def each(self) -> Tensor:
        """Every record's gradient, flat: [n, r, k, size]."""
        ...


class Each(NamedTuple):
    """Gradients held one by one."""

    G: Tensor  # [n, r, k, size]

    def powers(self, norm: int) -> Tensor:
        return torch.linalg.vector_norm(self.G, norm, dim=-1) ** norm

    def weighted(self, factors: Tensor) -> Tensor:
        return torch.einsum("nrk,nrkq->nkq", factors, self.G)

    def each(self) -> Tensor:
        return self.G


class Outer(NamedTuple):
    """Gradients of a weight matrix, sums of outer products g a^T over t positions in a record."""

    A: Tensor  # [n, r, s, t, f], inputs; s = 1 where the k models share them, else s = k
    G: Tensor  # [n, r, k, o, t], output gradients

    def powers(self, norm: int) -> Tensor:
        A, G = self.A, self.G
        if A.shape[3] == 1:  # |g a^T| = |g| |a| in both norms
            return Each(A.flatten(3)).powers(norm) * Each(G.flatten(3)).powers(norm)
        if norm == 1:
            return Each(self.each()).powers(norm)
        return ((A @ A.mT) * (G.mT @ G)).sum((-2, -1)).clamp(min=0)

    def weighted(self, factors: Tensor) -> Tensor:
        G = self._side_by_side(self.G * factors[..., None, None])
        G, A = G.permute(0, 2, 3, 1, 4).flatten(3), self.A.transpose(1, 2).flatten(2, 3)
        return (G @ A).reshape(factors.shape[0], factors.shape[2], -1)

    def each(self) -> Tensor:
        return (self._side_by_side(self.G) @ self.A).reshape(*self.G.shape[:3], -1)

    def _side_by_side(self, G: Tensor) -> Tensor:
        """The outputs of models that share an input as those of one model, [n, r, s, o k/s, t]."""
        return G.reshape(*self.A.shape[:3], -1, G.shape[-1])


def outer(A: Tensor, G: Tensor) -> Term:
    """The cheaper form: two Gram matrices of t x t per record, or one gradient of o x f."""
    t, size = A.shape[3], A.shape[4] * G.shape[3]
    return Outer(A, G) if t == 1 or 2 * t * t < size else Each(Outer(A, G).each())


class Records(NamedTuple):
    """The gradients of all parameters at every record of every model of a block."""

    terms: list[Term]

    def powers(self, norm: int) -> Tensor:
        """L1 norm (1) or squared L2 norm (2) of each record's gradient, [n, r, k]."""
        return torch.stack([term.powers(norm) for term in self.terms]).sum(0)

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum over records times factors [n, r, k]: [n, k, d], in the engine's order."""
        return torch.cat([term.weighted(factors) for term in self.terms], dim=-1)

    def each(self) -> Tensor:
        """Every record's gradient, [n, r, k, d], in the engine's order."""
        return torch.cat([term.each() for term in self.terms], dim=-1)


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
        return [outer(A, G), *([Each(G.sum(-1))] if "bias" in self.shapes else [])]


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
        holders = []
        for x_i, *w_i in zip(x.unflatten(0, (n, -1)), *weights, strict=True):
            models = zip(x_i.chunk(s, dim=1), *w_i, strict=True)
            y_i = [self._convolve(*model) for model in models]
            holders.append(torch.cat(y_i, dim=1) if s > 1 else y_i[0])
        return torch.cat(holders) if n > 1 else holders[0], x

    def _convolve(self, x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
        return F.conv2d(x, W, b, self.stride, self.padding)

    def _from_patches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer needs its patches anyway: one product with them serves all models."""
        W = self.weights["weight"].movedim(3, -1).flatten(3)
        if "bias" in self.weights:
            W = torch.cat([W, self.weights["bias"].unsqueeze(-1)], dim=-1)
        patches = self._patches(x)
        y = patches.reshape(len(W), -1, W.shape[-1]) @ W.flatten(1, 2).mT
        return y.reshape(len(x), *patches.shape[2:4], -1).permute(0, 3, 1, 2), patches

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        n, r, k = self.block
        patches = kept if kept.ndim == 5 else self._patches(kept)
        A = patches.reshape(n, r, patches.shape[1], -1, patches.shape[-1])
        return [outer(A, G.reshape(n, r, k, -1, A.shape[3]))]

    def _patches(self, x: Tensor) -> Tensor:
        """[n r, s, height, width, entries]; long runs of memory, so that copying is fast."""
        _, c, *kernel = self.shapes["weight"]
        (down, across), size = self.padding, c * kernel[0] * kernel[1]
        x = x.unflatten(1, (-1, c)).movedim(2, -1)
        x = F.pad(x, (0, 0, across, across, down, down)) if down or across else x
        x = x.contiguous().unfold(2, kernel[0], self.stride[0]).unfold(3, kernel[1], self.stride[1])
        patches = x.new_empty(*x.shape[:4], size + ("bias" in self.shapes))
        patches[..., :size].unflatten(-1, (*kernel, c)).copy_(x.movedim(4, -1))
        patches[..., size:].fill_(1)
        return patches

    def natural(self, vectors: Tensor) -> Tensor:
        o, c, *kernel = self.shapes["weight"]
        size = c * kernel[0] * kernel[1]
        joint = vectors.unflatten(-1, (o, -1))
        weight = joint[..., :size].unflatten(-1, (*kernel, c)).movedim(-1, -3)
        return torch.cat([weight.flatten(-4), joint[..., size:].flatten(-2)], dim=-1)

    def floats(self, y: Tensor) -> int:
        entries, t = self.shapes["weight"][1:].numel(), y[0, 0].numel()
        return 2 * y.numel() + t * entries + min(2 * t * t, y.shape[1] * entries)


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
