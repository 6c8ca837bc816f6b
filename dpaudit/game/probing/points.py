"""At which models a round takes gradients, and the canary's gradient at one of them alone."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.defense.noise import Noise
from dpaudit.game.game import CanaryGradient, Game
from dpaudit.game.oracles import same_model

NOWHERE = -1


@dataclass(eq=False)
class _Heard(Gradient):
    """Answers 0, and keeps the models at which the victim's gradient was asked for."""

    silent: CanaryGradient
    batch_size: int
    step: int = 0  # whose batch it is
    # of each call: the local step, and models [m, d]; nan where the victim's is not asked
    models: list[tuple[int, Tensor]] = field(default_factory=list)

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        self._keep(X, holders)
        return self.silent(X, holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        self._keep(X, holders)
        return self.silent.clipped_sum(X, clip_norm, holders, norm)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        self._keep(X[..., 0, :] if own else X, holders)
        return self.silent.per_record(X, holders, own)

    def at_step(self, s: int) -> "_Heard":
        return replace(self, step=s)

    def _keep(self, X: Tensor, holders: Tensor | None) -> None:
        rows = torch.arange(X.shape[-2]) if holders is None else holders
        X = X.reshape(-1, *X.shape[-2:])[0].detach().clone()
        X[rows != self.silent.victim] = torch.nan
        self.models.append((self.step, X))


@dataclass(eq=False)
class AtOnePoint(Gradient):
    """The canary's gradient in each trial at one point of the round, and 0 at all others."""

    canary: CanaryGradient
    batch_size: int
    points: list[Tensor]  # of each call, [m]: which point each row is, or NOWHERE
    chosen: Tensor  # [trials]
    calls: list[int] = field(default_factory=lambda: [0])  # so far, whichever local step asked

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self._masked(self.canary(X, holders))

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self._masked(self.canary.clipped_sum(X, clip_norm, holders, norm))

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        each = self.canary.per_record(X, holders, own)
        return self._masked(each.flatten(-2)).view(each.shape)

    def at_step(self, s: int) -> "AtOnePoint":
        return replace(self, canary=self.canary.at_step(s))

    def _masked(self, whole: Tensor) -> Tensor:
        here = self.points[self.calls[0]] == self.chosen[:, None]
        self.calls[0] += 1
        return whole * here[..., None].to(whole)


class Points(NamedTuple):
    """Where a round takes the victim's gradient."""

    by_call: list[Tensor]  # of each call, [m]: which point each row is, or NOWHERE
    steps: list[int]  # of each point: the local step, whose batch it is of


def points_of(game: Game, state: Any, k: int, noise: Noise) -> Points:
    """The points of round k: rows with one number are of one batch at one and the same model.

    Found from a state in which no two models agree by chance.
    """
    silent = game.gradient(torch.zeros(1, dtype=torch.float64))
    heard = _Heard(silent, silent.batch_size)
    game.defense.step(state, k, game.setting.network.at(k), heard, noise)
    known: list[tuple[int, Tensor]] = []
    by_call = [_numbers(step, models, known) for step, models in heard.models]
    return Points(by_call, [step for step, _ in known])


def _numbers(step: int, models: Tensor, known: list[tuple[int, Tensor]]) -> Tensor:
    """The point that each row [m, d] is."""
    numbers = torch.full((len(models),), NOWHERE)
    for row in (~models.isnan().all(-1)).nonzero().flatten().tolist():
        numbers[row] = _number(step, models[row], known)
    return numbers


def _number(step: int, model: Tensor, known: list[tuple[int, Tensor]]) -> int:
    for i, (s, other) in enumerate(known):
        if s == step and same_model(model, other):
            return i
    known.append((step, model))
    return len(known) - 1


def at_points(canary: CanaryGradient, points: Points, chosen: Tensor) -> AtOnePoint:
    """The canary of all trials, at the chosen point of each [trials]."""
    drawn = torch.where(chosen == NOWHERE, 0.0, torch.ones_like(canary.drawn))
    there = replace(canary, drawn=drawn * canary.drawn)
    return AtOnePoint(there, canary.batch_size, points.by_call, chosen)
