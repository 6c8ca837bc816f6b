"""The canary game: one record whose gradient is a known vector, and no other record at all.

The worst case that differential privacy has to survive: every other record of every agent has the
gradient zero, and the target record, which is longer than any clip norm, is all that moves the run.
The adversary knows everything but whether it is there. The model has one coordinate: the noise of
others would only hide a record whose effect is spread, and under L1 sensitivity the worst record is
1-sparse. Behind a clip in L2, Laplace noise has another worst record (`worst`), and so has a clip
of each layer (`layers`): runs then play several coordinates, each a copy of the model with one.
Where a step mixes coordinates none is: runs play ``width`` of them together (`along`).

Sources: Nasr et al. 2021, arXiv:2101.04535, for the game; Nasr et al. 2023, arXiv:2302.07956, for
the gradient of a single direction.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Gradient, Setting
from dpaudit.files.claim import Adjacency

Sampling = Literal["none", "poisson", "fixed"]

LENGTH = 1e4  # of the canary's gradient: far above every clip norm, far below what float64 loses


@dataclass(frozen=True, eq=False)
class CanaryGradient(Gradient):
    """The oracle of a round: the canary's gradient at one agent where it was drawn, else zero."""

    victim: int | Tensor  # [trials] where it differs by trial
    length: float  # L2 norm of its gradient; on one coordinate L1 norm too
    drawn: Tensor  # [...]: how often it is in the victim's batch, by trial; -1 for its opposite
    batch_size: int
    spread: int = 1  # over how many coordinates a gradient is spread evenly
    later: tuple[Tensor, ...] = ()  # ``drawn`` of further local steps; none: the same in all

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self._placed(X, holders, self.length / self.spread**0.5) / self.batch_size

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        ones = self.spread ** (1 / norm)  # the norm of as many ones
        return self._placed(X, holders, min(self.length, clip_norm / ones))

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """As many records as the canary is drawn at most, the others 0."""
        drawn = self.drawn.to(X)
        b = X.shape[-2] if own else max(1, int(drawn.abs().max().ceil())) if drawn.numel() else 1
        places = torch.arange(b, device=X.device)
        each = drawn.sign()[..., None] * (drawn.abs()[..., None] > places).to(X)  # [..., b]
        held = self._held(X[..., 0, :] if own else X, holders)[..., None, :]
        return self.length / self.spread**0.5 * each[..., None, :, None] * held

    def at_step(self, s: int) -> "CanaryGradient":
        return self if s == 0 or not self.later else replace(self, drawn=self.later[s - 1])

    def _placed(self, X: Tensor, holders: Tensor | None, length: float) -> Tensor:
        return (length * self.drawn.to(X))[..., None, None] * self._held(X, holders)

    def _held(self, X: Tensor, holders: Tensor | None) -> Tensor:
        """1 in the rows of the victim, [(trials,) m, d]."""
        rows = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        victim = torch.as_tensor(self.victim, device=X.device)
        held = (rows == victim[..., None]).to(X.dtype)[..., None]  # [(trials,) m, 1]
        return held.expand(*held.shape[:-1], X.shape[-1])


@dataclass(frozen=True)
class OnFirst(Gradient):
    """Another oracle's gradients on the first coordinate, and 0 on all others."""

    oracle: CanaryGradient

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.oracle.batch_size

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return _first(self.oracle(X, holders))

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return _first(self.oracle.clipped_sum(X, clip_norm, holders, norm))

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        return _first(self.oracle.per_record(X, holders, own))

    def at_step(self, s: int) -> "OnFirst":
        return OnFirst(self.oracle.at_step(s))


def _first(gradients: Tensor) -> Tensor:
    only = torch.zeros_like(gradients)
    only[..., 0] = gradients[..., 0]
    return only


@dataclass(frozen=True)
class Game:
    """Who plays: the record of one agent is there or not, or is one of two opposite ones."""

    defense: Defense
    setting: Setting  # of the one-coordinate model
    victim: int
    adjacency: Adjacency
    length: float
    sampling_rate: float  # how likely the record is in the batch of a round
    sampling: Sampling  # of the victim's batch; "none" if its whole function counts
    in_one_round: bool = False  # whether the record is used in a single round of the run
    coordinates: int = 1  # of the real model, in which gradients have their directions
    spread: int = 1  # over how many coordinates of a layer runs spread the record
    records: int = 1  # of the batch that are the canary, all at once; a user's are all of them
    cycle: int = 1  # rounds from one use of the record to the next
    first: int = 1  # round in which it is used
    held: int | None = None  # records of which a user's batch is a Poisson sample; None: it is none
    layers: tuple[tuple[str, int], ...] = ()  # names and sizes of the real model's
    filled: int = 1  # of these, that the record fills at once, each as it fills one coordinate
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
        length = LENGTH if distance is None else float(distance)
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

    @property
    def effect(self) -> float:
        """How many times the canary's own gradient a draw of it moves a batch's sum."""
        return self.displacement * self.records

    @property
    def displacement(self) -> float:
        """The same for one record.

        In a batch of fixed size it takes the place of another record, which may be its opposite.
        """
        return 2.0 if self.sampling == "fixed" and not self.is_replacement else 1.0

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

    def start(
        self, trials: int, dtype: torch.dtype, device: torch.device, coordinates: int = 1
    ) -> object:
        """The state of all trials before round 1: models at zero, which is public."""
        X = torch.zeros(trials, self.setting.n_agents, coordinates, dtype=dtype, device=device)
        wide = self.setting.stand_in(coordinates)
        if 1 < coordinates == len(self.layers) and self.filled > 1:
            wide = replace(wide, layers=tuple((name, 1) for name, _ in self.layers))
        elif 1 < coordinates == self.coordinates and self.layers:
            wide = replace(wide, layers=self.layers)
        return self.defense.start(X, wide)
