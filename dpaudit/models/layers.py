"""Layers that run with the weights of many models at once, and give every record's gradient.

Activations are [n r, k features, ...]: n data holders and r records of each one's batch are the
batch dimension, and the k models on each batch share the feature dimension. Tokens, with k = 1,
are [n r, t, features].
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from dpaudit.errors import DpauditError

from .gradient_terms import Each, Outer, Term, prefer_gram
from .networks import ClassToken, PositionEmbedding

_GROUPED = 16  # records of a model up to which grouped convolutions are faster than a loop
_PIECE = 2**20  # bytes of patches at a time, which a core's cache holds


class Block(NamedTuple):
    """The sizes of one pass: n data holders, r records of each one's batch, k models on each."""

    n: int
    r: int
    k: int


class Layer(nn.Module, ABC):
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


class _Linear(Layer):
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


class _Conv2d(Layer):
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
        patches = self._patches(x)  # [n r, 1, t, entries]
        A = patches.squeeze(1).unflatten(0, (len(W), -1))
        y = (A @ W.flatten(1, 2).mT.unsqueeze(1)).flatten(0, 1)
        return y.mT.unflatten(-1, self._extent(x)), patches.unsqueeze(0)

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        (n, r, k), o, t = self.block, self.shapes["weight"][0], G[0, 0].numel()
        if prefer_gram(t, o, self._size()) or kept.ndim == 5:
            A = kept if kept.ndim == 5 else self._patches(kept)
            term = Outer(A.view(n, r, -1, *A.shape[-2:]), G.reshape(n, r, k, o, t))
            return [term if prefer_gram(t, o, self._size()) else Each(term.each())]
        each = self._differentiable(kept, G) if G.requires_grad else self._in_pieces(kept, G)
        return [Each(each.view(n, r, k, -1))]

    def _in_pieces(self, x: Tensor, G: Tensor) -> Tensor:
        """Patches of few records after the other, in the same memory: it stays in the cache."""
        t, size = G[0, 0].numel(), self._size()
        each = G.new_empty(len(G), self.block.k, self.shapes["weight"][0], size)
        q = max(1, _PIECE // (G.element_size() * self.block.k * t * size))
        memory = None
        for part, x_i, G_i in zip(each.split(q), x.split(q), G.split(q), strict=True):
            patches = self._patches(x_i, memory)
            memory = patches if memory is None else memory
            G_i = G_i.reshape(-1, each.shape[2], t)
            torch.bmm(G_i, patches.flatten(0, 1), out=part.view(-1, *each.shape[2:]))
        return each

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

    def _patches(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """[n r, s, t, entries], laid out in memory such that it is filled in the longest runs."""
        _, c, *kernel = self.shapes["weight"]
        by_position = self._extent(x)[1] > kernel[1] * c
        x = x.unflatten(1, (-1, c))
        if any(self.padding):
            x = F.pad(x, (self.padding[1],) * 2 + (self.padding[0],) * 2)
        x = x.contiguous() if by_position else x.movedim(2, -1).contiguous().movedim(-1, 2)
        windows = x.unfold(3, kernel[0], self.stride[0]).unfold(4, kernel[1], self.stride[1])
        windows = windows.permute(0, 1, 3, 4, 5, 6, 2)  # [n r, s, height, width, *kernel, c]
        if memory is None:
            sizes = (math.prod(windows.shape[2:4]), self._size())
            memory = x.new_empty(*x.shape[:2], *(sizes[::-1] if by_position else sizes))
            memory = memory.mT if by_position else memory
            memory[..., windows[0, 0, 0, 0].numel() :].fill_(1)
        patches = memory[: len(x)]
        entries = patches[..., : windows[0, 0, 0, 0].numel()]
        entries.unflatten(-1, windows.shape[4:]).unflatten(2, windows.shape[2:4]).copy_(windows)
        return patches

    def _extent(self, x: Tensor) -> tuple[int, int]:
        """Height and width of the output."""
        kernel = self.shapes["weight"][2:]
        sides = zip(x.shape[2:], self.padding, kernel, self.stride, strict=True)
        height, width = ((side + 2 * p - f) // step + 1 for side, p, f, step in sides)
        return height, width

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


class _GroupNorm(Layer):
    def __init__(self, path: str, layer: nn.GroupNorm) -> None:
        super().__init__(path, layer)
        self.groups, self.channels, self.eps = layer.num_groups, layer.num_channels, layer.eps

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, tail = self.block.n, [1] * (x.ndim - 2)
        x = F.group_norm(x, x.shape[1] // self.channels * self.groups, eps=self.eps)
        W, b = (w.reshape(n, 1, -1, *tail) for w in self.weights.values())
        if x.shape[1] != W.shape[2]:  # models that share the input
            x = x.repeat(1, W.shape[2] // x.shape[1], *tail)
        x = x.unflatten(0, (n, -1))
        return torch.addcmul(b, x, W).flatten(0, 1), x

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        sizes = (*self.block, self.channels, -1)
        return [Each((G * kept.view_as(G)).reshape(sizes).sum(-1)), Each(G.reshape(sizes).sum(-1))]


class _LayerNorm(Layer):
    """Over the last dimension of tokens; k = 1."""

    def __init__(self, path: str, layer: nn.LayerNorm) -> None:
        super().__init__(path, layer)
        self.eps = layer.eps

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.layer_norm(x, self.shapes["weight"], eps=self.eps).unflatten(0, (self.block.n, -1))
        W, b = (w.reshape(len(x), *[1] * (x.ndim - 2), -1) for w in self.weights.values())
        return torch.addcmul(b, x, W).flatten(0, 1), x

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        sizes = (*self.block, -1, G.shape[-1])
        return [Each((G * kept.view_as(G)).reshape(sizes).sum(3)), Each(G.reshape(sizes).sum(3))]


class _ClassToken(Layer):
    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, r, _ = self.block
        token = self.weights["token"].expand(n, r, -1).reshape(n * r, 1, -1)
        return torch.cat([token, x], dim=1), x

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        return [Each(G[:, 0].reshape(*self.block, -1))]


class _PositionEmbedding(Layer):
    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x.unflatten(0, (self.block.n, -1)) + self.weights["offset"]).flatten(0, 1), x

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        return [Each(G.reshape(*self.block, -1))]


class ChannelsLast(nn.Module):
    """Max pooling with channels, hence models, last in memory: far faster on a CPU."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x.contiguous(memory_format=torch.channels_last))


LAYERS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv2d,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: _LayerNorm,
    ClassToken: _ClassToken,
    PositionEmbedding: _PositionEmbedding,
}
