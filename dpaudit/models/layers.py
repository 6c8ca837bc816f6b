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

from .gradient_terms import Each, Kernels, Outer, Term, floats_of_norm, prefer_gram
from .networks import ClassToken, PositionEmbedding

_KERNELS = 12  # with fewer kernels, convolution is faster than products with patches
_PIECE = 2**20  # bytes of patches at a time, which a core's cache holds


class Block(NamedTuple):
    """The sizes of one pass: n data holders, r records of each one's batch, k models on each."""

    n: int
    r: int
    k: int


class Layer(nn.Module, ABC):
    """A layer with parameters, for all models of a block at once."""

    copies = False  # whether it gives a copy of its output, which the network may overwrite

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
        self._versions: list[tuple[int, int]] = []  # versions of these tensors at that time

    def forward(self, x: Tensor) -> Tensor:
        y, kept = self.outputs(x)
        if torch.is_grad_enabled():
            if self.seen:
                raise DpauditError(
                    "DPA036", "per-record gradients need a network that uses each layer once"
                )
            self.seen.append((y if y.requires_grad else y.requires_grad_(), kept))
            self._versions.append((y._version, kept._version))
        return y.clone() if self.copies else y

    @property
    def is_overwritten(self) -> bool:
        """Whether the network overwrote this layer's output, or its input."""
        return [(y._version, kept._version) for y, kept in self.seen] != self._versions

    @abstractmethod
    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """From x [n r, k features, ...], [n r, features, ...] if shared; and what `terms` needs."""

    @abstractmethod
    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        """The gradients of the parameters from those of the outputs."""

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
        weight = Outer(A, G)
        return [weight, Each(G.sum(-1))] if "bias" in self.shapes else [weight]

    def floats(self, y: Tensor) -> int:
        o, f = self.shapes["weight"]
        return 2 * y.numel() + floats_of_norm(y.numel() // o, o, f)


class _Conv2d(Layer):
    """A linear layer on patches.

    Where records' gradients are small beside Gram matrices of their positions, they are held one
    by one, and patches, into which they are cut then, have channels last, which is far faster.
    """

    channels_last = False  # layout of what products with patches return
    convolves_channels_last = False  # layout of what is convolved, and so of the result

    def __init__(self, path: str, layer: nn.Conv2d) -> None:
        super().__init__(path, layer)
        assert not isinstance(layer.padding, str)
        self.stride: tuple[int, ...] = layer.stride
        self.padding: tuple[int, ...] = layer.padding
        self.dilation: tuple[int, ...] = layer.dilation

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """One call for each model: as groups of channels of one call, models are slower.

        But where weights are differentiated too, groups are faster.
        """
        n, c = self.block.n, self.shapes["weight"][1]
        s = x.shape[1] // c
        if self.weights["weight"].requires_grad:
            return self._in_groups(x), x
        if s == 1 and self._by_patches(x):
            return self._from_patches(x)
        weights = [w.reshape(n, s, -1, *w.shape[3:]) for w in self.weights.values()]
        holders = []
        for x_i, *w_i in zip(x.unflatten(0, (n, -1)), *weights, strict=True):
            x_i = self._laid_out(x_i.unflatten(1, (s, -1)).transpose(0, 1))
            y_i = [self._convolve(*model) for model in zip(x_i, *w_i, strict=True)]
            holders.append(torch.cat(y_i, dim=1) if s > 1 else y_i[0])
        return torch.cat(holders) if n > 1 else holders[0], x

    def _in_groups(self, x: Tensor) -> Tensor:
        """One call for all models, whose channels are side by side: [n r, k features, ...]."""
        n, r, k = self.block
        W, *b = (w.flatten(0, 2) for w in self.weights.values())
        x = x.unflatten(0, (n, r)).unflatten(2, (-1, self.shapes["weight"][1]))
        x = x.expand(-1, -1, k, *x.shape[3:]).transpose(0, 1).flatten(1, 3)
        y = self._convolve(x, W, *b, groups=n * k)
        return y.unflatten(1, (n, -1)).transpose(0, 1).flatten(0, 1)

    def _by_patches(self, x: Tensor) -> bool:
        """Whether the convolution of x, the same for all models, is a product with its patches.

        For gradients the first layer needs them anyway. Without, only where models share an image
        of one channel: what comes out of its convolutions has channels first.
        """
        o, c, *_ = self.shapes["weight"]
        many = self.block.k > 1
        if torch.is_grad_enabled():
            return not x.requires_grad and (many or o >= _KERNELS) and self._one_by_one(x)
        return many and c == 1 and self._keeps_channels_last(x)

    def _laid_out(self, x: Tensor) -> Tensor:
        """[k, r, c, height, width] in the order in which it is convolved."""
        if x.shape[2] > 1 and self._keeps_channels_last(x):
            return x.movedim(2, -1).contiguous().movedim(-1, 2)
        return x.contiguous()

    def _keeps_channels_last(self, x: Tensor) -> bool:
        return self.convolves_channels_last and x.device.type == "cpu"

    def _convolve(
        self, x: Tensor, W: Tensor, b: Tensor | None = None, *, groups: int = 1
    ) -> Tensor:
        return F.conv2d(x, W, b, self.stride, self.padding, self.dilation, groups)

    def _from_patches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """One product serves all models."""
        W = self.weights["weight"].movedim(3, -1).flatten(3)
        if "bias" in self.weights:
            W = torch.cat([W, self.weights["bias"].unsqueeze(-1)], dim=-1)
        patches = self._patches(x)  # [n r, 1, t, entries]
        A = patches.squeeze(1).unflatten(0, (len(W), -1))
        y = (A @ W.flatten(1, 2).mT.unsqueeze(1)).flatten(0, 1)
        y = y.mT.unflatten(-1, self._extent(x))
        return y if self.channels_last else y.contiguous(), patches.unsqueeze(0)

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        (n, r, k), shape = self.block, self.shapes["weight"]
        if kept.ndim == 5:  # patches
            G = G.reshape(n, r, -1, kept.shape[-2])
            each = _product(G, kept.view(n, r, *kept.shape[-2:]))
            return [Kernels(each.unflatten(2, (k, -1)), shape)]
        if self._one_by_one(kept) and not G.requires_grad:
            return [Kernels(self._in_pieces(kept, G), shape)]
        flat = G.reshape(n, r, k, shape[0], -1)
        weight: Term
        if self._one_by_one(kept):
            weight = Each(self._differentiable(kept, G))
        else:
            weight = Outer(self._columns(kept), flat)
        return [weight, Each(flat.sum(-1))] if "bias" in self.shapes else [weight]

    def _one_by_one(self, x: Tensor) -> bool:
        o, *size = self.shapes["weight"]
        return not prefer_gram(math.prod(self._extent(x)), o, math.prod(size))

    def _in_pieces(self, x: Tensor, G: Tensor) -> Tensor:
        """Patches of few records after the other, in the same memory: it stays in the cache."""
        t, size, o = G[0, 0].numel(), self._size(), self.shapes["weight"][0]
        each = G.new_empty(len(G), self.block.k, o, size)
        q = max(1, _PIECE // (G.element_size() * self.block.k * t * size))
        memory = None
        for part, x_i, G_i in zip(each.split(q), x.split(q), G.split(q), strict=True):
            patches = self._patches(x_i, memory)
            memory = patches if memory is None else memory
            G_i = G_i.reshape(-1, o, t)
            torch.bmm(G_i, patches.flatten(0, 1), out=part.view(-1, o, size))
        return each.view(*self.block, o, size)

    def _differentiable(self, x: Tensor, G: Tensor) -> Tensor:
        """Each record's gradient by a convolution with records as groups, twice differentiable."""
        (n, r, k), (o, c, *kernel) = self.block, self.shapes["weight"]
        size, groups = (n * r * k * o, c, *kernel), n * r * k
        x, g = x.reshape(1, -1, *x.shape[2:]), G.reshape(1, -1, *G.shape[2:])
        options = self.stride, self.padding, self.dilation
        return conv2d_weight(x, size, g, *options, groups=groups).reshape(n, r, k, -1)

    def _patches(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """[n r, s, t, entries], entries of (height, width, channel), then 1 if there is a bias.

        Laid out in memory such that it is filled in the longest runs.
        """
        _, c, *kernel = self.shapes["weight"]
        by_position = self._extent(x)[1] > kernel[1] * c
        x = self._padded(x).unflatten(1, (-1, c))
        x = x.contiguous() if by_position else x.movedim(2, -1).contiguous().movedim(-1, 2)
        windows = self._windows(x).permute(0, 1, 3, 4, 5, 6, 2)
        size = math.prod(windows.shape[4:])
        if memory is None:
            sizes = (math.prod(windows.shape[2:4]), self._size())
            memory = x.new_empty(*x.shape[:2], *(sizes[::-1] if by_position else sizes))
            memory = memory.mT if by_position else memory
            memory[..., size:].fill_(1)
        patches = memory[: len(x)]
        entries = patches[..., :size].unflatten(-1, windows.shape[4:])
        entries.unflatten(2, windows.shape[2:4]).copy_(windows)
        return patches

    def _columns(self, x: Tensor) -> Tensor:
        """Patches [n, r, s, t, f] in the order of the weight, with positions last in memory."""
        x = self._padded(x).unflatten(1, (-1, self.shapes["weight"][1]))
        windows = self._windows(x).permute(1, 2, 5, 6, 0, 3, 4)  # [s, c, *kernel, n r, *extent]
        columns = windows.reshape(len(windows), math.prod(windows.shape[1:4]), *self.block[:2], -1)
        return columns.permute(2, 3, 0, 4, 1)

    def _windows(self, x: Tensor) -> Tensor:
        """[n r, s, c, *extent, *kernel] of padded x [n r, s, c, height, width]: a view."""
        kernel = self.shapes["weight"][2:]
        for i, (f, step, apart) in enumerate(zip(kernel, self.stride, self.dilation, strict=True)):
            x = x.unfold(3 + i, apart * (f - 1) + 1, step)[..., ::apart]
        return x

    def _padded(self, x: Tensor) -> Tensor:
        height, width = self.padding
        return F.pad(x, (width, width, height, height)) if height or width else x

    def _extent(self, x: Tensor) -> tuple[int, int]:
        """Height and width of the output."""
        kernel = self.shapes["weight"][2:]
        sides = zip(x.shape[2:], self.padding, kernel, self.stride, self.dilation, strict=True)
        height, width = ((y + 2 * p - e * (f - 1) - 1) // step + 1 for y, p, f, step, e in sides)
        return height, width

    def _size(self) -> int:
        """Entries of a patch, with the 1 that stands for the bias."""
        return self.shapes["weight"][1:].numel() + ("bias" in self.shapes)

    def floats(self, y: Tensor) -> int:
        size, t = self._size(), y[0, 0].numel()
        return 2 * y.numel() + t * size + floats_of_norm(t, y.shape[1], size)


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


class _Embedding(Layer):
    """Embedding of token ids [n r, t]; k = 1."""

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        W = self.weights["weight"].flatten(1, 2)  # [n, n_tokens, width]
        rows = x + self._first_rows(x, self.block.n, len(W[0]))
        return W.flatten(0, 1)[rows], x

    def terms(self, kept: Tensor, G: Tensor) -> list[Term]:
        n_tokens, width = self.shapes["weight"]
        rows = (kept + self._first_rows(kept, len(kept), n_tokens)).flatten()
        each = G.new_zeros(len(kept) * n_tokens, width).index_add(0, rows, G.flatten(0, 1))
        return [Each(each.reshape(*self.block, -1))]

    def floats(self, y: Tensor) -> int:
        return 2 * y.numel() + self.shapes["weight"].numel()

    @staticmethod
    def _first_rows(ids: Tensor, n: int, n_tokens: int) -> Tensor:
        """The row with which each of n vocabularies begins, where all follow each other."""
        first = torch.arange(n, device=ids.device) * n_tokens
        return first.repeat_interleave(len(ids) // max(n, 1)).unsqueeze(1)


class MaxPool(nn.Module):
    """Max pooling with channels, hence models, last in memory: far faster on a CPU."""

    channels_last = False  # layout of the output: else a forward may view it as it is

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pool(x.contiguous(memory_format=torch.channels_last))
        return y if self.channels_last else y.contiguous()


def keep_channels_last(network: nn.Module) -> None:
    """Leave the channels of images last in memory from layer to layer: faster on a CPU.

    Only where no forward of somebody else's looks at how they lie. Convolutions bring images into
    that order only where nothing normalises groups, which is slower in it.
    """
    layers = list(network.modules())
    has_groups = any(isinstance(layer, _GroupNorm) for layer in layers)
    for layer in layers:
        if isinstance(layer, _Conv2d | MaxPool):
            layer.channels_last = True
        if isinstance(layer, _Conv2d):
            layer.convolves_channels_last = not has_groups


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with the longer side of the result along memory: up to four times as fast."""
    return a @ b if a.shape[-2] <= b.shape[-1] else (b.mT @ a.mT).mT


LAYERS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv2d,
    nn.GroupNorm: _GroupNorm,
    nn.Embedding: _Embedding,
    nn.LayerNorm: _LayerNorm,
    ClassToken: _ClassToken,
    PositionEmbedding: _PositionEmbedding,
}
