"""Records that no data set needs to hold: by their gradient, which is any that a claim allows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from dpaudit.defense import clip
from dpaudit.game.game import ABOVE_CLIP
from dpaudit.game.step_inputs import WrappedGradient
from dpaudit.training.classification import Batch

from .worlds import Record, placed

TINY = 1e-100  # sums of gradients are made this short at least


@dataclass(eq=False)
class ScaledGradients(WrappedGradient):
    """The oracle of a world in which every gradient is so many times as large."""

    factor: float

    @property
    def batch(self) -> Batch:
        batch: Batch = self.of.batch  # type: ignore[attr-defined]
        return batch

    def changed(self, gradients: Tensor) -> Tensor:
        return self.factor * gradients


@dataclass(eq=False)
class OneMore(WrappedGradient, ABC):
    """The oracle of a world with one record more in the victim's batch."""

    victim: int

    @property
    def batch(self) -> Batch:
        """The batch with another record in its place, for a defense that reads batches itself."""
        batch, oracle = self.of.batch, self.of  # type: ignore[attr-defined]
        record = Record(batch.inputs[self.victim, -1], batch.labels[self.victim, -1])
        return placed(oracle, self.victim, record).batch  # type: ignore[arg-type]

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.clipped_sum(X, inf, holders) / self.batch_size

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        own = self._in_rows(self.of.clipped_sum(X, inf, holders), holders)
        return self.of.clipped_sum(X, clip_norm, holders, norm) + clip(
            own, clip_norm, 1 if norm == 1 else 2
        )

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        each = self.of.per_record(X[..., :-1, :] if own else X, holders, own)
        return torch.cat([each, self._in_rows(each.sum(-2), holders)[..., None, :]], dim=-2)

    def at_step(self, s: int) -> Any:
        """The record is in the batch of the first local step alone."""
        return self if s == 0 else self.of.at_step(s)

    def _in_rows(self, sums: Tensor, holders: Tensor | None) -> Tensor:
        """The record's gradient in the rows of the victim, 0 in the others, [..., m, d]."""
        return self.gradient_beside(sums) * self._is_own(sums, holders).to(sums)

    def _is_own(self, sums: Tensor, holders: Tensor | None) -> Tensor:
        """Which rows are the victim's, [m, 1]."""
        rows = torch.arange(sums.shape[-2], device=sums.device) if holders is None else holders
        return (rows == self.victim)[:, None]

    @abstractmethod
    def gradient_beside(self, sums: Tensor) -> Tensor:
        """The record's gradient, beside the sum of the others [..., m, d]."""


@dataclass(eq=False)
class VacantPlace(OneMore):
    """The place of one record more, with none in it: as many draws of noise for each record."""

    @property
    def batch(self) -> Batch:
        batch: Batch = self.of.batch  # type: ignore[attr-defined]
        return batch

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self.of.clipped_sum(X, clip_norm, holders, norm) + 0.0

    def gradient_beside(self, sums: Tensor) -> Tensor:
        return torch.zeros_like(sums)


@dataclass(eq=False)
class Outweighing(OneMore):
    """The record's gradient outweighs the others' of a batch.

    It is -2 times the sum of the victim's gradients, or as much of it as ``longest`` allows: what
    is clipped after it was summed moves by two clip norms. It reaches a clip that is longer than
    all of the data's gradients, too.
    """

    norm: Literal[1, 2]
    longest: float  # longest gradient that is allowed
    clip_norm: float = 0.0  # the gradient is longer than this if the others' sum is not 0

    def gradient_beside(self, sums: Tensor) -> Tensor:
        short = torch.linalg.vector_norm(sums, dim=-1, keepdim=True).clamp(min=TINY)
        times = (ABOVE_CLIP * self.clip_norm / short).clamp(min=2)
        return -clip(times * sums, self.longest, self.norm)


@dataclass(eq=False)
class GivenGradient(OneMore):
    """The record's gradient is given [d], at whatever model."""

    gradient: Tensor

    def gradient_beside(self, sums: Tensor) -> Tensor:
        return self.gradient.to(sums).expand_as(sums)


@dataclass(eq=False)
class AtSeveralAgents(GivenGradient):
    """The same at each of these agents."""

    agents: tuple[int, ...]

    def _in_rows(self, sums: Tensor, holders: Tensor | None) -> Tensor:
        rows = torch.arange(sums.shape[-2], device=sums.device) if holders is None else holders
        there = torch.isin(rows, rows.new_tensor(self.agents))
        return self.gradient_beside(sums) * there.to(sums)[:, None]


@dataclass(eq=False)
class RepeatedGradient(GivenGradient):
    """So many records of the victim's batch have this gradient, and the others so many times it."""

    m: int
    times: float = 0.0

    @property
    def batch(self) -> Batch:
        batch: Batch = self.of.batch  # type: ignore[attr-defined]
        return batch

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        sums = self.of.clipped_sum(X, clip_norm, holders, norm)
        own, others = self._in_rows(sums, holders), self.batch.labels.shape[1] - self.m
        each, other = (clip(t * own, clip_norm, 1 if norm == 1 else 2) for t in (1.0, self.times))
        return torch.where(self._is_own(sums, holders), self.m * each + others * other, sums)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        each = self.of.per_record(X, holders, own)
        alike = self._in_rows(each.sum(-2), holders)[..., None, :].repeat_interleave(
            each.shape[-2], dim=-2
        )
        alike[..., self.m :, :] *= self.times
        return torch.where(self._is_own(each.sum(-2), holders)[..., None], alike, each)


@dataclass(eq=False)
class FirstUnlike(RepeatedGradient):
    """The same where the others are the first ones."""

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        return super().per_record(X, holders, own).roll(-self.m, dims=-2)
