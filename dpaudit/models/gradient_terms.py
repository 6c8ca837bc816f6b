"""The gradients of a parameter at every record of many models, in whatever form is cheap.

A pass has n data holders, r records of each one's batch, and k models on each batch: tensors over
records and models are [n, r, k, ...].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_IN_TIME = 32  # multiplications within products, while a number is written and read twice


class Term(Protocol):
    """Gradients of one or two parameters that follow each other, at every record of every model."""

    @property
    def size(self) -> int:
        """How many coordinates these parameters have."""
        ...

    def powers(self, norm: int) -> Tensor:
        """L1 norm (1) or squared L2 norm (2) of each record's gradient, [n, r, k]."""
        ...

    def weighted(self, factors: Tensor | None) -> Sequence[Tensor]:
        """The sum over records times factors [n, r, k] (None: 1), flat: parts [n k, size]."""
        ...

    def each(self) -> Tensor:
        """Every record's gradient, flat: [n, r, k, size]."""
        ...


class Each(NamedTuple):
    """Gradients held one by one."""

    G: Tensor  # [n, r, k, size]

    @property
    def size(self) -> int:
        return self.G.shape[-1]

    def powers(self, norm: int) -> Tensor:
        return torch.linalg.vector_norm(self.G, norm, dim=-1) ** norm

    def weighted(self, factors: Tensor | None) -> Sequence[Tensor]:
        factors = self.G.new_ones(self.G.shape[:3]) if factors is None else factors
        return [torch.einsum("nrk,nrkq->nkq", factors, self.G).flatten(0, 1)]

    def each(self) -> Tensor:
        return self.G


class Kernels(NamedTuple):
    """Gradients of a convolution held one by one, with entries as in a patch: channels last."""

    G: Tensor  # [n, r, k, o, entries], entries of (height, width, channel), then the bias if any
    shape: torch.Size  # shape of the weight: o, channels, height, width

    @property
    def size(self) -> int:
        return self.G.shape[-2:].numel()

    def powers(self, norm: int) -> Tensor:
        return Each(self.G.flatten(3)).powers(norm)

    def weighted(self, factors: Tensor | None) -> Sequence[Tensor]:
        (total,) = Each(self.G.flatten(3)).weighted(factors)
        return [self._natural(total.unflatten(-1, (self.shape[0], -1)))]

    def each(self) -> Tensor:
        return self._natural(self.G)

    def _natural(self, joint: Tensor) -> Tensor:
        """Reorder as the parameters are: all of the weight, then all of the bias."""
        _, c, *kernel = self.shape
        weight, bias = joint.tensor_split([self.shape[1:].numel()], dim=-1)
        weight = weight.unflatten(-1, (*kernel, c)).movedim(-1, -3).flatten(-4)
        return torch.cat([weight, bias.flatten(-2)], dim=-1)


@dataclass(frozen=True)
class Outer:
    """Gradients of a weight matrix, sums of outer products g a^T over t positions in a record.

    Models with inputs of their own, of many positions, are multiplied one after the other: together
    they would have to be copied side by side, which takes longer than the products.
    """

    A: Tensor  # [n, r, s, t, f], inputs; s = 1 where the k models share them, else s = k
    G: Tensor  # [n, r, k, o, t], output gradients

    @property
    def size(self) -> int:
        return self.G.shape[3] * self.A.shape[-1]

    def powers(self, norm: int) -> Tensor:
        A, G = self.A, self.G
        t = A.shape[3]
        if t == 1:  # |g a^T| = |g| |a| in both norms
            return Each(A.flatten(3)).powers(norm) * Each(G.flatten(3)).powers(norm)
        if norm == 1 or not prefer_gram(t, G.shape[3], A.shape[4]):
            return self._held.powers(norm)
        grams = [a @ a.mT for a in A.unbind(2)]
        own = zip(grams * (G.shape[2] // len(grams)), G.unbind(2), strict=True)
        return torch.stack([(a * (g.mT @ g)).sum((-2, -1)) for a, g in own], dim=-1).clamp(min=0)

    def weighted(self, factors: Tensor | None) -> Sequence[Tensor]:
        if "_held" in vars(self):
            return self._held.weighted(factors)
        G = self.G if factors is None else self.G * factors[..., None, None]
        n, _, k, *_ = G.shape
        if self.A.shape[2] > 1 and self.A.shape[3] > 1:
            own = zip(self.A.unbind(2), G.unbind(2), strict=True)
            products = [g.transpose(1, 2).flatten(2) @ a.flatten(1, 2) for a, g in own]
            return [torch.stack(products, dim=1).reshape(n * k, -1)]
        G, A = self._side_by_side(G), self.A.transpose(1, 2).flatten(2, 3)
        return [(G.permute(0, 2, 3, 1, 4).flatten(3) @ A).reshape(n * k, -1)]

    def each(self) -> Tensor:
        return (self._side_by_side(self.G) @ self.A).reshape(*self.G.shape[:3], -1)

    @cached_property
    def _held(self) -> Each:
        """Every record's gradient, once it is asked for its length."""
        return Each(self.each())

    def _side_by_side(self, G: Tensor) -> Tensor:
        """The outputs of models that share an input as those of one model, [n, r, s, o k/s, t]."""
        return G.reshape(*self.A.shape[:3], -1, G.shape[-1])


def prefer_gram(t: int, o: int, f: int) -> bool:
    """Whether two Gram matrices of t x t per record take less time than its gradient of o x f.

    Their products are t^2 (o + f) multiplications, and only for the norm; the gradient's are those
    of the sum over records too, but its o f numbers are written, and read for norm and sum.
    """
    return t == 1 or t * t * (o + f) < _IN_TIME * o * f


def floats_of_norm(t: int, o: int, f: int) -> int:
    """How many numbers are held for the norm of a record's gradient, either way."""
    return 2 * t * t if prefer_gram(t, o, f) else o * f


class RecordGradients(NamedTuple):
    """The gradients of all parameters at every record of every model of a block."""

    terms: list[Term]

    def powers(self, norm: int) -> Tensor:
        """L1 norm (1) or squared L2 norm (2) of each record's gradient, [n, r, k]."""
        return torch.stack([term.powers(norm) for term in self.terms]).sum(0)

    def weighted(self, factors: Tensor | None) -> Iterator[Tensor]:
        """The sum over records times factors [n, r, k] (None: 1): parts [n k, size] of d."""
        return (part for term in self.terms for part in term.weighted(factors))

    def part(self, factors: Tensor | None, coordinates: slice) -> Tensor:
        """Some coordinates in a row of that sum, [n k, their number]."""
        parts, first, start = list[Tensor](), 0, 0
        for term in self.terms:
            stop = start + term.size
            if start < coordinates.stop and coordinates.start < stop:
                first = first if parts else start
                parts += term.weighted(factors)
            start = stop
        total = torch.cat(parts, dim=-1)
        start, stop = coordinates.start - first, coordinates.stop - first
        return total if stop - start == total.shape[1] else total[:, start:stop]

    def each(self) -> Tensor:
        """Every record's gradient, [n, r, k, d]."""
        return torch.cat([term.each() for term in self.terms], dim=-1)
