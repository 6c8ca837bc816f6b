"""Per-record gradients of stacked models: clipped and summed, averaged, or one by one."""

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from dpaudit.models import n_parameters, unflatten


class Gradients:
    """Gradients of the cross-entropy loss of one architecture, at many parameter vectors at once.

    Common arguments:
        X: [m, d], one parameter vector per model.
        inputs: [n, b, *image shape], batches of b records of n data holders.
        labels: [n, b] class indices, or [n, b, n_classes] probabilities.
        holders: [m], on whose batch each model is evaluated; default 0, 1, ..., m - 1 (m = n).
        weights: [n, b], a factor for each record after clipping (0 for padding); default 1.
        create_graph: results can be differentiated with respect to X, inputs and soft labels.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.d = n_parameters(module)

    def clipped_sum(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        clip_norm: float | None,
        norm: int = 2,
        weights: Tensor | None = None,
        holders: Tensor | None = None,
        create_graph: bool = False,
    ) -> Tensor:
        """The sum over records of gradients clipped to L1 or L2 norm ``clip_norm``, [m, d]."""
        G = self.per_record(X, inputs, labels, holders, create_graph)
        factors = torch.ones_like(G[..., 0])
        if clip_norm is not None and not math.isinf(clip_norm):
            lengths = torch.linalg.vector_norm(G, norm, dim=-1)
            factors = clip_norm / lengths.clamp(min=clip_norm)
        if weights is not None:
            factors = factors * (weights if holders is None else weights[holders])
        return torch.einsum("mb,mbd->md", factors, G)

    def mean(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        holders: Tensor | None = None,
        create_graph: bool = False,
    ) -> Tensor:
        """The mean gradient of each model without clipping, [m, d]; 0 where all weights are 0."""
        total = self.clipped_sum(
            X, inputs, labels, None, weights=weights, holders=holders, create_graph=create_graph
        )
        if weights is None:
            return total / inputs.shape[1]
        counts = weights.sum(dim=1, keepdim=True, dtype=total.dtype)
        counts = counts if holders is None else counts[holders]
        return total / counts.where(counts > 0, 1)

    def norms(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        norm: int = 2,
        holders: Tensor | None = None,
    ) -> Tensor:
        """L1 or L2 norm of each record's gradient, [m, b]."""
        return torch.linalg.vector_norm(self.per_record(X, inputs, labels, holders), norm, dim=-1)

    def per_record(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        holders: Tensor | None = None,
        create_graph: bool = False,
    ) -> Tensor:
        """The gradient of each record, [m, b, d]: for small cases."""
        if holders is not None:
            inputs, labels = inputs[holders], labels[holders]
        per_model = vmap(grad(self._loss), in_dims=(None, 0, 0))
        with torch.set_grad_enabled(create_graph):
            return vmap(per_model)(X, inputs, labels)

    def evaluate(
        self, X: Tensor, inputs: Tensor, labels: Tensor, holders: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean loss [m] and accuracy [m] of each model on the labelled records, class indices."""
        rows = range(len(X)) if holders is None else holders.tolist()
        losses, accuracies = [], []
        with torch.no_grad():
            for x, row in zip(X, rows, strict=True):
                logits = functional_call(self.module, unflatten(self.module, x), (inputs[row],))
                losses.append(cross_entropy(logits, labels[row]))
                accuracies.append((logits.argmax(1) == labels[row]).to(X.dtype).mean())
        return torch.stack(losses), torch.stack(accuracies)

    def _loss(self, x: Tensor, record: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(self.module, unflatten(self.module, x), (record[None],))
        return cross_entropy(logits, label[None])
