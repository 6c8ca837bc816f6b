"""Gradient ascent on worlds that differ in one record, all of them played at once."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from dpaudit.data.datasets import Dataset
from dpaudit.defense import Gradient
from dpaudit.training.classification import Batch, BatchGradient

from .worlds import Record, placed

STEP = 0.1  # learning rate, relative to the range of a record's values


@dataclass(frozen=True)
class Candidates(Gradient):
    """Worlds as trials [m]: one candidate record each beside ``oracle``'s, differentiable in it."""

    oracle: BatchGradient  # without the record
    victim: int
    inputs: Tensor  # [m, *shape]
    labels: Tensor  # [m]

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.oracle.batch_size

    @property
    def batch(self) -> Batch:
        """The batch with the first candidate, for a defense that reads batches itself."""
        return placed(self.oracle, self.victim, Record(self.inputs[0], self.labels[0])).batch

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.clipped_sum(X, inf, holders) / self.batch_size

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        """Clipped sums at the models X [m, n, d]."""
        rows, added = self._own(X, clip_norm, holders, norm)
        once = torch.equal(X, X[:1].expand_as(X))  # true at the start of a round
        shared = X[0].detach() if once else X.detach()
        others = self.oracle.clipped_sum(shared, clip_norm, holders, norm).expand(X.shape)
        return others.index_add(-2, rows, added) if len(rows) else others

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """Per-record gradients at X [m, n, d], one record more per batch, 0 at other agents."""
        at = X[..., -1, :] if own else X
        rows, added = self._own(at, None, holders)
        shared = (X[..., :-1, :] if own and len(rows) else X).detach()  # models of other records
        others = torch.stack([self.oracle.per_record(x, holders, own) for x in shared])
        if not len(rows):
            return others
        last = torch.zeros_like(at).index_add(-2, rows, added)
        return torch.cat([others, last[..., None, :]], dim=-2)

    def at_step(self, s: int) -> Gradient:
        """The record is in the batch of the first local step alone."""
        return self if s == 0 else self.oracle.at_step(s)

    def _own(
        self, X: Tensor, clip_norm: float | None, holders: Tensor | None, norm: int = 2
    ) -> tuple[Tensor, Tensor]:
        """The rows [r] of X [m, n, d] that are the victim's, and its candidates there [m, r, d]."""
        m, n, d = X.shape
        whose = torch.arange(n, device=X.device) if holders is None else holders
        rows = (whose == self.victim).nonzero().flatten()
        if not len(rows):
            return rows, X[:, :0]
        record = torch.arange(m, device=X.device).repeat_interleave(len(rows))
        added = self.oracle.gradients.clipped_sum(
            X[:, rows].reshape(-1, d), self.inputs[:, None], self.labels[:, None],
            clip_norm, norm, holders=record, create_graph=self.inputs.requires_grad,
        )  # fmt: skip
        return rows, added.view(m, -1, d)


def stacked(state: Any, m: int) -> Any:
    """A state in m trials. Masks over coordinates are the same for all and have no such axis."""
    return type(state)(*(t.expand(m, *t.shape) if t.is_floating_point() else t for t in state))


def starts(
    record: Record, restarts: int, dataset: Dataset, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs [restarts, *shape] and labels [restarts], every class in turn.

    Half of the inputs are the record's, and half are drawn from the value range.
    """
    low, high = dataset.value_range
    inputs = record.input.expand(restarts, *record.input.shape).clone()
    drawn = torch.empty_like(inputs[restarts // 2 :], dtype=torch.float64)
    inputs[restarts // 2 :] = drawn.uniform_(low, high, generator=generator)
    further = torch.arange(restarts, device=inputs.device)
    labels = further.view(-1, *[1] * record.label.ndim) + record.label + 1
    return inputs, labels % dataset.n_classes


def wrong_labels(label: Tensor, n_classes: int) -> Tensor:
    """All other labels than one, [n_classes - 1]; of one at positions, a class at each, [m, t]."""
    classes = torch.arange(n_classes, device=label.device)
    every = classes.view(-1, *[1] * label.ndim).expand(-1, *label.shape)
    wrong = every[(every != label).view(n_classes, -1).all(dim=1)]
    return wrong if len(wrong) else (label + 1)[None] % n_classes  # all classes occur


def ascent(
    value: Callable[[Tensor], Tensor],
    start: Tensor,
    value_range: tuple[float, float],
    steps: int,
) -> tuple[Tensor, Tensor]:
    """The best iterate of each restart and its value, by Adam with projection on the value range.

    Of what cannot be differentiated, as token ids or a step in NumPy, it is the start, and its
    value. Adam is written out, as ``torch.optim`` loads a compiler first, for seconds.

    Source: Kingma and Ba 2015, Algorithm 1, arXiv:1412.6980.

    Args:
        value: [m] from inputs [m, *shape]; each entry depends on its own input alone.
        start: [m, *shape].
    """
    if not start.is_floating_point():
        return start, value(start)
    low, high = value_range
    z = start.clone().requires_grad_(True)
    mean, square = torch.zeros_like(start), torch.zeros_like(start)
    best, values = start.clone(), start.new_full(start.shape[:1], -torch.inf)
    for k in range(1, steps + 2):
        try:
            now = value(z)
        except RuntimeError:
            now = value(z.detach())
        better = now.detach() > values
        best[better], values[better] = z.detach()[better], now.detach()[better]
        if not now.requires_grad:
            break  # the messages do not depend on the records
        (gradient,) = torch.autograd.grad(now.sum(), z)
        gradient = gradient.nan_to_num()
        mean.lerp_(gradient, 0.1)
        square.lerp_(gradient**2, 0.001)
        spread = (square / (1 - 0.999**k)).sqrt() + 1e-8
        with torch.no_grad():
            z.add_(STEP * (high - low) / (1 - 0.9**k) * mean / spread).clamp_(low, high)
    return best, values
