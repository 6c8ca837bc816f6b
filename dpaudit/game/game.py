"""The canary game: one record whose gradient is a known vector, and no other record at all.

The worst case that differential privacy has to survive: every other record of every agent has the
gradient zero, and the target record, which is longer than any clip norm, is all that moves the run.
The adversary knows everything but whether it is there. The model has one coordinate: the noise of
others would only hide a record whose effect is spread, and under L1 sensitivity the worst record is
1-sparse. Behind a clip in L2, Laplace noise has another worst record (`worst_case.record`), and so
has a clip of each layer (`worst_case.layers`): runs then play several coordinates, each a copy of
the model with one. Where a step mixes coordinates none is: runs play ``width`` of them together
(`runs.projection`).

Sources: Nasr et al. 2021, arXiv:2101.04535, for the game; Nasr et al. 2023, arXiv:2302.07956, for
the gradient of a single direction.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.accounting.releases import Mechanism
from dpaudit.defense import Adjacency, Defense, Gradient, Messages, Noise, Round, Setting, releases

from .step_inputs import CanaryGradient, OnFirst

Sampling = Literal["none", "poisson", "fixed"]

LENGTH = 1e4  # of the canary's gradient: above most clip norms, within float64's precision
ABOVE_CLIP = 100  # times a clip norm, at least


def longer_than_clips(defense: Defense) -> float:
    """A length far above every clip norm of a defense, that of its rounds or one of its options."""
    options = type(defense).model_fields
    norms = [getattr(defense, name) for name in options if name.endswith("clip_norm")]
    norms.append(defense.clip_norm_in(1))
    return max(LENGTH, *(ABOVE_CLIP * norm for norm in norms if isinstance(norm, int | float)), 0.0)


@dataclass(frozen=True)
class Game:
    """Who plays: the record of one agent is there or not, or is one of two opposite ones."""

    defense: Defense
    setting: Setting  # setting of the one-coordinate model
    victim: int
    adjacency: Adjacency
    length: float
    sampling_rate: float  # how likely the record is in the batch of a round
    sampling: Sampling  # how the victim's batch is drawn; "none" if its whole function counts
    in_one_round: bool = False  # whether the record is used in a single round of the run
    coordinates: int = 1  # coordinates of the real model, which give gradients their directions
    spread: int = 1  # over how many coordinates of a layer runs spread the record
    records: int = 1  # records of the batch that are the canary; a user's are all of them
    cycle: int = 1  # rounds from one use of the record to the next
    first: int = 1  # round in which it is used
    held: int | None = None  # records of which a user's batch is a Poisson sample; None: it is none
    layers: tuple[tuple[str, int], ...] = ()  # names and sizes of the real model's
    filled: int = 1  # coordinates that the record fills at once, each like one coordinate
    width: int | None = None  # coordinates of runs, of which it fills the first or all; None: all

    @classmethod
    def of(
        cls,
        defense: Defense,
        setting: Setting,
        victim: int,
        adjacency: Adjacency,
        sampling: Sampling | None = None,
    ) -> "Game":
        """The game that audits a calibrated defense.

        A defense that states a distance between functions protects an agent's whole function, whose
        gradient the game moves by that distance in every round. Otherwise the game is about one
        record; for ``user`` about all records of an agent, of which its batches are made.

        Args:
            sampling: of the game's own batches; by default that of the defense's.
        """
        alone, distance = setting.stand_in(1), defense.function_distance()
        length = longer_than_clips(defense) if distance is None else float(distance)
        game = cls(defense, alone, victim, adjacency, length, 1.0, "none")
        game = replace(game, coordinates=setting.d, layers=setting.layers)
        if distance is not None:
            return game
        if adjacency == "user":
            held = setting.sizes[victim] if defense.sampling == "poisson" else None
            return replace(game, held=held, records=defense.batch_size)
        if defense.cyclic:
            cycle = max(1, setting.sizes[victim] // defense.batch_size)
            return replace(game, sampling="poisson", cycle=cycle)
        rate = min(1.0, defense.batch_size / setting.sizes[victim])
        return replace(game, sampling_rate=rate, sampling=sampling or defense.sampling)

    @property
    def played(self) -> int:
        """Coordinates of the model that runs play."""
        return self.width or self.spread * self.filled

    @property
    def directions(self) -> int:
        """How many directions a record's gradients can have, in each layer that it fills."""
        return self.coordinates if self.filled == 1 else min(size for _, size in self.layers)

    @property
    def batches(self) -> int:
        """How many batches a round has; each draws the record anew."""
        return self.defense.batches_per_round

    def releases(self, shifts: Iterable[float], family: NoiseFamily = "gaussian") -> Mechanism:
        """What numbers reveal that one canary moves by so many of their noise; infinite: no noise.

        A release states its noise for one canary, and accounting knows what a draw of it displaces.
        """
        multipliers = [0.0 if shift == inf else self.displacement / shift for shift in shifts]
        sampling = "none" if self.sampling_rate == 1 else self.sampling
        return releases(multipliers, sampling, self.sampling_rate, family)

    @property
    def effect(self) -> float:
        """How many times the canary's own gradient a draw of it moves a batch's sum."""
        return self.displacement * self.records

    @property
    def displacement(self) -> float:
        """The same for one record.

        In a batch of fixed size it takes the place of another record, which may be its opposite. A
        batch of all records has it beside the others.
        """
        takes_a_place = self.sampling == "fixed" and self.sampling_rate < 1
        return 2.0 if takes_a_place and not self.is_replacement else 1.0

    @property
    def is_lasting(self) -> bool:
        """Whether the record is used in every round for certain, so that its effects add up."""
        return self.sampling_rate == 1 and not self.in_one_round

    def uses(self, k: int) -> bool:
        """Whether the record can be in a batch of round k."""
        return k >= self.first and (k - self.first) % self.cycle == 0

    @property
    def is_replacement(self) -> bool:
        return self.adjacency == "replace-one"

    def draw(self, trials: int, generator: torch.Generator, device: torch.device) -> Tensor:
        """How often the canary is drawn in a round, by trial, in units of ``effect``."""
        if self.held is not None:
            n = torch.full((trials,), float(self.held), device=device)
            rate = torch.full_like(n, min(1.0, self.records / self.held))
            return torch.binomial(n, rate, generator=generator) / self.records
        chance = torch.rand(trials, generator=generator, device=device)
        return (chance < self.sampling_rate).float()

    def gradient(self, drawn: Tensor, *later: Tensor) -> CanaryGradient:
        """The oracle of a round in which the canary was drawn in these trials [...].

        ``later``: the same of further local steps; none: the same in all.
        """
        whole = self.sampling == "none" and self.adjacency != "user"  # a function, not a batch
        batch_size = 1 if whole else self.defense.batch_size
        times, *rest = (self.effect * d for d in (drawn, *later))
        spread = self.spread * self.filled
        return CanaryGradient(self.victim, self.length, times, batch_size, spread, tuple(rest))

    def played_gradient(self, drawn: Tensor, *later: Tensor) -> CanaryGradient | OnFirst:
        """The same at the coordinates that runs play."""
        canary = self.gradient(drawn, *later)
        return OnFirst(canary) if self.width is not None and self.spread == 1 else canary

    def drawn_alike(self, times: float, trials: int = 1) -> CanaryGradient | OnFirst:
        """The same of a record that is drawn as often in all trials."""
        return self.played_gradient(torch.full((trials,), times, dtype=torch.float64))

    def silent(self, trials: int = 1) -> CanaryGradient:
        """The oracle of a round in which the canary was not drawn."""
        return self.gradient(torch.zeros(trials, dtype=torch.float64))

    def along_record(self, values: Tensor) -> Tensor:
        """The part of values [..., d], at the coordinates played, along the record, [..., 1]."""
        return values[..., :1] if self.spread == 1 else values.mean(-1, keepdim=True)

    def start(
        self,
        trials: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        coordinates: int = 1,
    ) -> Any:
        """The state of all trials before round 1: models at zero, which is public."""
        X = torch.zeros(trials, self.setting.n_agents, coordinates, dtype=dtype, device=device)
        wide = self.setting.stand_in(coordinates)
        if 1 < coordinates == len(self.layers) and self.filled > 1:
            wide = replace(wide, layers=tuple((name, 1) for name, _ in self.layers))
        elif 1 < coordinates == self.coordinates and self.layers:
            wide = replace(wide, layers=self.layers)
        return self.defense.start(X, wide)

    def step(self, state: Any, k: int, gradient: Gradient, noise: Noise) -> Round:
        """Round k of the defense."""
        return self.defense.step(state, k, self.setting.network.at(k), gradient, noise)

    def first_sent(self, noise: Noise, times: float = 0.0, trials: int = 1) -> Messages:
        """The messages of round 1, of trials in all of which the record is drawn as often."""
        state = self.start(trials, coordinates=self.played)
        return self.step(state, 1, self.drawn_alike(times, trials), noise).sent

    def without_noise(self) -> "Game":
        """The same game against the no-defense twin."""
        return replace(self, defense=self.defense.without_noise())
