"""Noise that is played instead of drawn, or overheard while it is drawn.

A draw is measured in units of its standard deviation, which for Laplace noise is sqrt(2) times its
scale. A name that a defense uses twice in a round gives the same noise twice, as ``Noise`` does.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.noise import Noise, Scale
from dpaudit.rng import Streams

Family = Literal["gaussian", "laplace"]
STD = {"gaussian": 1.0, "laplace": sqrt(2.0)}  # of noise with scale 1


class AskedNoise(NamedTuple):
    """What a defense asked for in one round, under one name."""

    family: Family
    shape: torch.Size  # [..., rows, d]

    @property
    def numbers(self) -> int:
        """How many are drawn: of each row as many as it has coordinates."""
        return int(self.shape[-2] * self.shape[-1])


class ChosenNoise(Noise):
    """Plays ``units`` [..., rows, d] for each name, and zeros for every other; notes what is asked.

    Args:
        units: draws in standard deviations, by the name of the draw.
    """

    def __init__(self, units: Mapping[str, Tensor] | None = None) -> None:
        self._units = units or {}
        self.known_to: dict[str, Tensor] = {}
        self.draws: dict[str, AskedNoise] = {}

    @property
    def n_draws(self) -> int:
        """Numbers that were asked for."""
        return sum(draw.numbers for draw in self.draws.values())

    def zeros(self, trials: int) -> dict[str, Tensor]:
        """The draws that were asked for [trials, rows, d] by name, all 0."""
        return {
            name: torch.zeros(trials, *draw.shape[-2:], dtype=torch.float64)
            for name, draw in self.draws.items()
        }

    def one_of_each(self, trials: int, first: int = 0) -> dict[str, Tensor]:
        """The same; from trial ``first`` on each has one unit of one draw."""
        units = self.zeros(trials)
        for name, draw in self.draws.items():
            size = draw.numbers
            units[name].view(trials, size)[first + torch.arange(size), torch.arange(size)] = 1.0
            first += size
        return units

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        return self._played("gaussian", message, std, like)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        return self._played("laplace", message, scale, like)

    def _played(self, family: Family, message: str, scale: Scale, like: Tensor) -> Tensor:
        self.draws.setdefault(message, AskedNoise(family, like.shape))
        units = self._units.get(message)
        return torch.zeros_like(like) if units is None else units * STD[family] * scale


class RecordedNoise(Noise):
    """Real noise, of which the draws are kept: an agent that follows the protocol knows its own."""

    def __init__(self, streams: Streams, round: int) -> None:
        super().__init__(streams, round)
        self.units: dict[str, Tensor] = {}  # [..., rows, d] by name, in standard deviations
        self.stds: dict[str, Tensor] = {}  # by name, of any shape that fits

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        return self._kept(message, STD["gaussian"], std, super().gaussian(message, std, like))

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        return self._kept(message, STD["laplace"], scale, super().laplace(message, scale, like))

    def _kept(self, message: str, std: float, scale: Scale, drawn: Tensor) -> Tensor:
        size = torch.as_tensor(scale, dtype=drawn.dtype, device=drawn.device) * std
        self.units.setdefault(message, torch.where(size > 0, drawn / size, 0.0))
        self.stds.setdefault(message, size)
        return drawn
