"""What a probe hands to a step: chosen noise, a state as numbers, a defense that wraps another.

Noise is played instead of drawn, or overheard while it is drawn. A draw is measured in units of its
standard deviation, which for Laplace noise is sqrt(2) times its scale. A name that a defense uses
twice in a round gives the same noise twice, as ``Noise`` does.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from dpaudit.defense import Bracket, Defense, Gradient, Noise, Round, Scale, Setting, ThreatModel
from dpaudit.graphs.graph import Graph
from dpaudit.rng import Streams

Family = Literal["gaussian", "laplace"]
ROUNDING = 1e-12  # of the largest number of a state
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


def flat_state(state: Any) -> Tensor:
    """The floating tensors of a state that have trials in front, [trials, width]."""
    return torch.cat([t.flatten(1) for t in varying(state).values()], dim=1)


def state_of(like: Any, flat: Tensor) -> Any:
    """The same state with these values [trials, width] in it."""
    parts, start = {}, 0
    for name, tensor in varying(like).items():
        size = tensor[0].numel()
        part = flat[:, start : start + size].to(tensor.dtype)
        parts[name] = part.reshape(len(flat), *tensor.shape[1:])
        start += size
    return like._replace(**parts)


def differs(values: Tensor) -> Tensor:
    """Which numbers [trials, n] are others than in the first trial, [trials - 1, n].

    Trials of one batch may be summed in different orders.
    """
    size = values.abs().where(values.isfinite(), 0.0).max().item() if values.numel() else 0.0
    return ~torch.isclose(values[1:], values[:1], 0.0, ROUNDING * size, equal_nan=True)


def varying(state: Any) -> dict[str, Tensor]:
    """The floating tensors of a state that have trials in front, by name."""
    return {
        name: tensor
        for name, tensor in state._asdict().items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.ndim >= 3
    }


class WrappedDefense(Defense):
    """Plays the steps of another defense and declares what that one declares."""

    of: Defense

    @classmethod
    def playing(cls, of: Defense, **options: Any) -> Self:
        """This class with the rounds and batches of the other defense."""
        own = {"n_rounds": of.n_rounds, "batch_size": of.batch_size, "sampling": of.sampling}
        return cls(of=of, **own, **options)

    def start(self, X: Tensor, setting: Setting) -> Any:
        return self.of.start(X, setting)

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        return self.of.step(state, k, graph, gradient, noise)

    def models(self, state: Any) -> Tensor:
        return self.of.models(state)

    def without_noise(self) -> Self:
        return self.model_copy(update={"of": self.of.without_noise()})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        return self.of.mechanism(setting, threat_model, victim)

    def function_distance(self) -> float | None:
        return self.of.function_distance()

    @property
    def drawing(self) -> str:
        return self.of.drawing

    @property
    def batches_per_round(self) -> int:
        return self.of.batches_per_round
