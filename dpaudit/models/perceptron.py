"""Perceptrons of many models at once, in closed form: their derivatives are written out.

Layer l = 1, ..., L has inputs a_l, its weights and bias give z_l = W_l a_l + b_l, and the next
inputs are phi(z_l); a_1 is the record, and L = 1 is logistic regression. With the slopes
s_L = softmax(z_L) - y of the cross-entropy and s_l = (W_{l+1}^T s_{l+1}) phi'(z_l), a layer's
gradient at a record is the outer product s_l (a_l, 1)^T, of norm |s_l| |(a_l, 1)|. Slopes are held
class by class, [n k, n_classes, r]: what runs over few classes runs along many records in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .gradient_terms import RecordGradients, Term
from .stacked import Stacked


class Activation(NamedTuple):
    """phi, and g phi'(z) from g and phi(z)."""

    of: Callable[[Tensor], Tensor]  # may overwrite its argument
    slopes: Callable[[Tensor, Tensor], Tensor]


ACTIVATIONS: Mapping[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, lambda g, a: torch.ops.aten.threshold_backward(g, a, 0)),
    nn.Tanh: Activation(torch.tanh_, torch.ops.aten.tanh_backward),
}


class Perceptron:
    """Linear layers with bias, activations between them, run at many parameter vectors at once."""

    mixes_records = False
    shares = True
    differentiates = False

    def __init__(self, module: nn.Module) -> None:
        self._stacked = Stacked(module)  # for gradients that are differentiated again
        parts = _parts(module)
        self._between = [ACTIVATIONS[type(part)] for part in parts if type(part) in ACTIVATIONS]
        self._sizes = [p.numel() for p in module.parameters()]  # W_1, b_1, W_2, b_2, ...

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Whether the network is that, and nothing else but flattening of its input.

        Every layer has numbers of its own, none of which is frozen.
        """
        parts = _parts(module)
        flattens = [type(p) is nn.Flatten and (p.start_dim, p.end_dim) == (1, -1) for p in parts]
        layers = parts[1:] if flattens[:1] == [True] else parts
        linear, between = layers[::2], layers[1::2]
        return (
            len(linear) == len(between) + 1 == len(set(linear))
            and len([*module.parameters()]) == 2 * len(linear)
            and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
            and all(type(part) in ACTIVATIONS for part in between)
        )

    def logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        return self._stacked.logits(X, inputs)

    def records(
        self, X: Tensor, inputs: Tensor, labels: Tensor, create_graph: bool
    ) -> RecordGradients:
        if create_graph:
            return self._stacked.records(X, inputs, labels, create_graph)
        return RecordGradients(self._terms(X.detach(), inputs.detach(), labels.detach()))

    def floats(self, shape: torch.Size) -> int:
        return self._stacked.floats(shape)

    def _terms(self, X: Tensor, inputs: Tensor, labels: Tensor) -> list[Term]:
        """Terms of the layers in order, for models X [n, k, d] on inputs [n, r, ...]."""
        n, k, _ = X.shape
        parameters = X.flatten(0, 1).split_with_sizes(self._sizes, dim=-1)
        weights, biases = parameters[::2], parameters[1::2]
        A = [inputs.flatten(2).mT]
        Z = _outputs(weights[0], biases[0], A[0])
        for phi, W, b in zip(self._between, weights[1:], biases[1:], strict=True):
            A.append(phi.of(Z))
            Z = _outputs(W, b, A[-1])
        layer = Affine(A[-1], biases[-1], n, partial(_slopes, Z, labels, k))
        terms: list[Term] = [layer]
        layers = [*zip(self._between, weights[1:], A[:-1], A[1:], biases[:-1], strict=True)]
        for phi, W, before, after, b in reversed(layers):
            layer = Affine(before, b, n, partial(_slopes_below, phi, after, W, layer))
            terms.append(layer)
        return terms[::-1]


def _parts(module: nn.Module) -> list[nn.Module]:
    """What a sequence does one after the other, with sequences in it taken apart."""
    if type(module) is not nn.Sequential:
        return [module]
    return [part for child in module for part in _parts(child)]


def _outputs(W: Tensor, b: Tensor, A: Tensor) -> Tensor:
    """W a + b [n k, o, r] of weights [n k, o f] and biases [n k, o] on A [n s, f, r]."""
    n, f, r = A.shape
    Z = torch.baddbmm(b.reshape(n, -1, 1), W.reshape(n, -1, f), A)
    return Z.view(*b.shape, r)


def _slopes(Z: Tensor, labels: Tensor, k: int) -> Tensor:
    """Derivatives of the cross-entropy in logits Z [n k, n_classes, r], which they overwrite."""
    S = Z.sub_(Z.amax(dim=1, keepdim=True)).exp_()
    S /= S.sum(dim=1, keepdim=True)
    if k > 1:
        labels = labels.repeat_interleave(k, dim=0)
    if labels.ndim == 3:  # probabilities, which need not sum to 1
        Y = labels.mT.to(S)
        return S * Y.sum(dim=1, keepdim=True) - Y
    return S.scatter_(1, labels.unsqueeze(1), -1.0, reduce="add")


def _slopes_below(phi: Activation, A: Tensor, W: Tensor, above: "Affine") -> Tensor:
    """Slopes of the layer that A [n k, f, r] comes from, by those of the layer above it."""
    return phi.slopes(torch.bmm(W.reshape(len(W), -1, A.shape[1]).mT, above.S), A)


@dataclass(frozen=True, eq=False)
class Affine:
    """Gradients s (a, 1)^T of a weight matrix and its bias."""

    A: Tensor  # [n s, f, r], inputs; s = 1 where the k models share them, else s = k
    b: Tensor  # [n k, o], the bias that it is of
    n: int
    slopes: Callable[[], Tensor]

    @cached_property
    def S(self) -> Tensor:
        """Output gradients, [n k, o, r]; nothing is computed below the last layer asked for."""
        return self.slopes()

    @property
    def size(self) -> int:
        return (self.A.shape[1] + 1) * self.b.shape[1]

    def powers(self, norm: int) -> Tensor:
        A, S = (_powers(V, norm).unflatten(0, (self.n, -1)) for V in (self.A, self.S))
        return ((A + 1) * S).mT

    def weighted(self, factors: Tensor | None) -> Sequence[Tensor]:
        A, S = self.A, self.S
        if factors is not None:
            S = S * factors.mT.reshape(S.shape[0], 1, -1)
        weight = torch.bmm(S.reshape(A.shape[0], -1, A.shape[2]), A.mT)
        return [weight.view(S.shape[0], -1), S.sum(dim=-1)]

    def each(self) -> Tensor:
        A, S = (V.unflatten(0, (self.n, -1)).permute(0, 3, 1, 2) for V in (self.A, self.S))
        weight = S.unsqueeze(-1) * A.unsqueeze(3)
        return torch.cat([weight.flatten(3), S], dim=-1)


def _powers(V: Tensor, norm: int) -> Tensor:
    """L1 norm (1) or squared L2 norm (2) over dimension 1 of V [n k, f, r]."""
    if V.stride(1) == 1:  # a norm is fast along such rows, and slow across
        return torch.linalg.vector_norm(V, norm, dim=1) ** norm
    return (V.square() if norm == 2 else V.abs()).sum(dim=1)
