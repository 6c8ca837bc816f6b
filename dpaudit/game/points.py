"""At which models a round takes gradients, and the canary's gradient at one of them alone."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.defense.noise import Noise

from .game import CanaryGradient, Game

NOWHERE = -1


@dataclass(eq=False)
class _Heard(Gradient):
    """Answers 0, and keeps the models at which the victim's gradient was asked for."""

    silent: CanaryGradient
    batch_size: int
    models: list[Tensor] = field(default_factory=list)  # of each call, [m, d]; nan where not asked

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        self._keep(X, holders)
        return self.silent(X, holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        self._keep(X, holders)
        return self.silent.clipped_sum(X, clip_norm, holders, norm)

    def _keep(self, X: Tensor, holders: Tensor | None) -> None:
        rows = torch.arange(X.shape[-2]) if holders is None else holders
        X = X.reshape(-1, *X.shape[-2:])[0].detach().clone()
        X[rows != self.silent.victim] = torch.nan
        self.models.append(X)


@dataclass(eq=False)
class AtOnePoint(Gradient):
    """The canary's gradient in each trial at one point of the round, and 0 at all others."""

    canary: CanaryGradient
    batch_size: int
    points: list[Tensor]  # of each call, [m]: which point each row is, or NOWHERE
    chosen: Tensor  # [trials]
    calls: int = 0

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self._masked(self.canary(X, holders))

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self._masked(self.canary.clipped_sum(X, clip_norm, holders, norm))

    def _masked(self, whole: Tensor) -> Tensor:
        here = self.points[self.calls] == self.chosen[:, None]
        self.calls += 1
        return whole * here[..., None].to(whole)


def points_of(game: Game, state: Any, k: int, noise: Noise) -> list[Tensor]:
    """The points of round k, by call: rows with one number are at one and the same model.

    Found from a state in which no two models agree by chance.
    """
    silent = game.gradient(torch.zeros(1, dtype=torch.float64))
    heard = _Heard(silent, silent.batch_size)
    game.defense.step(state, k, game.setting.network.at(k), heard, noise)
    known: list[Tensor] = []
    return [torch.tensor([_number(x, known) for x in models]) for models in heard.models]


def _number(model: Tensor, known: list[Tensor]) -> int:
    if model.isnan().all():
        return NOWHERE
    for i, other in enumerate(known):
        if torch.equal(model, other):
            return i
    known.append(model)
    return len(known) - 1


def count(points: list[Tensor]) -> int:
    """How many different points there are."""
    return 1 + max((int(numbers.max()) for numbers in points if len(numbers)), default=NOWHERE)


def at_points(canary: CanaryGradient, points: list[Tensor], chosen: Tensor) -> AtOnePoint:
    """The canary of all trials, at the chosen point of each [trials]."""
    drawn = torch.where(chosen == NOWHERE, 0.0, torch.ones_like(canary.drawn))
    there = replace(canary, drawn=drawn * canary.drawn)
    return AtOnePoint(there, canary.batch_size, points, chosen)
