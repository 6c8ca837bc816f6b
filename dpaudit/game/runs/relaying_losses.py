"""Losses of third agents that relay: steep where the record decides, flat elsewhere.

An agent that is neither the victim nor the adversary has a batch of records that are all alike,
whose gradient at its model theta is

    sign C clamp(slope (theta - centre), -1, 1),

C being what the defense clips to, or as long as the canary's where it clips nothing. It is that of
a smooth loss (of Huber's, or of its negative), and decides at the centre: half-way between the
models that the agent has with and without the record, without noise, when it first differs.
Batches of the rounds before have records without a gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.game.game import CanaryGradient, Game
from dpaudit.game.oracles import WatchedGradient
from dpaudit.game.probing.chosen_noise import ChosenNoise

STEEP = 30.0  # slopes, by the standard deviation of the noise in the model
PILOT = 400  # runs that tell that deviation
REACHED = 1e-6  # of that deviation: a smaller effect of the record has not arrived


@dataclass(frozen=True, eq=False)
class SteepLosses:
    """The losses of all agents, one sign for all of them."""

    centre: Tensor  # [n_agents]
    slope: Tensor  # [n_agents]; 0: no gradient
    first: Tensor  # [n_agents], the round from which on there is one
    sign: float  # 1: pulls towards the centre, as convex losses do; -1: pushes away from it

    @classmethod
    def of(cls, game: Game, agents: tuple[int, ...], n_rounds: int) -> "SteepLosses":
        """For each of ``agents``, at the first model of its own that the record reaches.

        The record is used in round 1. Without noise it is there in one run and not in the other.
        """
        centre, slope, first = torch.zeros(3, game.setting.n_agents, dtype=torch.float64)
        for k, askers, models in _models(game, n_rounds):
            moved, spread = models[1] - models[0], models[2:].std(dim=0)
            reached = (moved.abs() > REACHED * spread) & (spread > 0)
            for i, agent in enumerate(askers):
                if reached[i] and agent in agents and not first[agent]:
                    centre[agent] = models[:2, i].mean()
                    slope[agent], first[agent] = STEEP / spread[i], k
        return cls(centre, slope, first, 1.0)

    def opposite(self) -> "SteepLosses":
        return replace(self, sign=-self.sign)

    def beside(self, canary: CanaryGradient, k: int) -> "Beside":
        """The oracle of round k."""
        return Beside(canary, replace(self, slope=self.slope * (self.first <= k)))

    def at(self, X: Tensor, holders: Tensor | None) -> Tensor:
        """The gradients at X [..., m, d], in units of the longest."""
        rows = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        centre, slope = (t.to(X)[rows, None] for t in (self.centre, self.slope))
        return self.sign * (slope * (X - centre)).clamp(-1, 1)


@dataclass(frozen=True, eq=False)
class Beside(Gradient):
    """The canary, and beside it third agents with losses of their own."""

    canary: CanaryGradient
    losses: SteepLosses

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.canary.batch_size

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.canary(X, holders) + self.canary.length * self.losses.at(X, holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        longest = self.batch_size * min(self.canary.length, clip_norm)
        own = self.canary.clipped_sum(X, clip_norm, holders, norm)
        return own + longest * self.losses.at(X, holders)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        each = self.canary.per_record(X, holders, own)
        at = X if own else X[..., None, :]
        steep = self.canary.length * self.losses.at(at.movedim(-2, -3), holders).movedim(-3, -2)
        b = max(self.batch_size, each.shape[-2])
        padded = each.new_zeros(*each.shape[:-2], b, each.shape[-1])
        padded[..., : each.shape[-2], :] = each
        return padded + steep if not own else each + steep

    def at_step(self, s: int) -> "Beside":
        return replace(self, canary=self.canary.at_step(s))


def _models(game: Game, n_rounds: int) -> Iterator[tuple[int, list[int], Tensor]]:
    """By round, whose gradients are asked for and at which models [2 + PILOT, n_asked].

    First without noise and record, then with the record, then with noise alone.
    """
    generator, trials = torch.Generator().manual_seed(0), 2 + PILOT
    state = game.start(trials)
    for k in range(1, n_rounds + 1):
        drawn = torch.zeros(trials, dtype=torch.float64)
        drawn[1] = float(k == 1)
        canary, asked = game.gradient(drawn), ChosenNoise()
        game.step(state, k, canary, asked)
        units = asked.zeros(trials)
        for draws in units.values():
            draws[2:].normal_(generator=generator)
        watched = WatchedGradient(canary)
        state = game.step(state, k, watched, ChosenNoise(units)).state
        if watched.models:
            yield k, watched.askers, watched.asked_at(trials)
