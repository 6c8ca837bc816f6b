"""Logistic regression of many models at once, in closed form: no pass backward at all.

With the record x~ = (x, 1) and the slopes s = softmax(W x + b) - y of the cross-entropy, a record's
gradient is the outer product s x~^T, of norm |s| |x~|. Slopes are held class by class, [n, k,
n_classes, r], so that what runs over a few classes runs along many records in memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .gradient_terms import Records
from .stacked import Stacked


class Logistic:
    """A linear layer with bias on flat inputs, run at many parameter vectors at once."""

    mixes_records = False
    shares = True

    def __init__(self, module: nn.Module) -> None:
        self._stacked = Stacked(module)  # for gradients that are differentiated again
        weight, _ = module.parameters()
        self.n_classes, self.n_features = weight.shape

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Whether the network is one linear layer with bias, and nothing else but flattening."""
        parts = [m for m in module.modules() if not isinstance(m, nn.Sequential)]
        linear = [m for m in parts if type(m) is nn.Linear and m.bias is not None]
        flat = [m for m in parts if type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1)]
        return len(linear) == 1 and len(linear) + len(flat) == len(parts) and parts[-1] is linear[0]

    def logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        """[n, r, k, n_classes] of models X [n, k, d] on inputs [n, r, ...]."""
        return self._stacked.logits(X, inputs)

    def records(self, X: Tensor, inputs: Tensor, labels: Tensor, create_graph: bool) -> Records:
        """Every record's gradient of the cross-entropy; labels [n, r] or [n, r, n_classes]."""
        if create_graph:
            return self._stacked.records(X, inputs, labels, create_graph)
        with torch.no_grad():
            A, X, labels = inputs.detach().flatten(2), X.detach(), labels.detach()
            return Records([Affine(A, self._slopes(X, A, labels))])

    def floats(self, shape: torch.Size) -> int:
        """How many numbers a pass holds for each record and model; an estimate from above."""
        return self._stacked.floats(shape)

    def _slopes(self, X: Tensor, A: Tensor, labels: Tensor) -> Tensor:
        """Derivatives of the cross-entropy in the logits, [n, k, n_classes, r]."""
        (n, k, _), (C, f) = X.shape, (self.n_classes, self.n_features)
        W, b = X.split([C * f, C], dim=-1)
        Z = torch.baddbmm(b.reshape(n, k * C, 1), W.reshape(n, k * C, f), A.mT).view(n, k, C, -1)
        S = Z.sub_(Z.amax(dim=2, keepdim=True)).exp_()
        S /= S.sum(dim=2, keepdim=True)
        if labels.ndim == 3:  # probabilities, which need not sum to 1
            Y = labels.mT.unsqueeze(1).to(S)
            return S * Y.sum(dim=2, keepdim=True) - Y
        truth = labels[:, None, None].expand(n, k, 1, -1)
        return S.scatter_add_(2, truth, S.new_full((1,), -1.0).expand(truth.shape))


class Affine(NamedTuple):
    """Gradients s (a, 1)^T of a weight matrix and its bias."""

    A: Tensor  # [n, r, f], inputs
    S: Tensor  # [n, k, o, r], output gradients

    def powers(self, norm: int) -> Tensor:
        inputs = torch.linalg.vector_norm(self.A, norm, dim=-1) ** norm + 1
        outputs = self.S.square() if norm == 2 else self.S.abs()
        return inputs.unsqueeze(-1) * outputs.sum(dim=2).mT

    def weighted(self, factors: Tensor) -> Sequence[Tensor]:
        S = self.S * factors.permute(0, 2, 1).unsqueeze(2)  # [n, k, o, r]
        return [(S.flatten(1, 2) @ self.A).view(*S.shape[:2], -1), S.sum(dim=-1)]

    def each(self) -> Tensor:
        S = self.S.permute(0, 3, 1, 2)  # [n, r, k, o]
        weight = S.unsqueeze(-1) * self.A[:, :, None, None]
        return torch.cat([weight.flatten(3), S], dim=-1)
