"""What a step is handed by whoever plays it: gradients, noise and a state; or a wrapped defense.

Gradient oracles answer with given gradients, or note what a step asks for. Noise is played instead
of drawn, or overheard while it is drawn. A draw is measured in units of its standard deviation,
which for Laplace noise is sqrt(2) times its scale. A name that a defense uses twice in a round
gives the same noise twice, as ``Noise`` does. A state is rows of numbers, one for each trial.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from dpaudit.defense import Bracket, Defense, Gradient, Noise, Round, Scale, Setting, ThreatModel
from dpaudit.errors import ConfigError
from dpaudit.graphs.graph import Graph
from dpaudit.rng import Streams

SAME = 1e-9  # relative difference of equal models that are summed in different orders
ROUNDING = 1e-12  # relative to the largest number of a state
STD = {"gaussian": 1.0, "laplace": sqrt(2.0)}  # standard deviation of noise with scale 1


@dataclass(frozen=True, eq=False)
class CanaryGradient(Gradient):
    """The canary's gradient at one agent in the trials where it was drawn, and 0 elsewhere."""

    victim: int | Tensor | None  # [trials] where it differs by trial; None: every agent holds one
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
        """Gradients of as many records as the canary is drawn at most; the others are 0."""
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
        if self.victim is None:
            return torch.ones_like(X)
        rows = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        victim = torch.as_tensor(self.victim, device=X.device)
        held = (rows == victim[..., None]).to(X.dtype)[..., None]  # [(trials,) m, 1]
        return held.expand(*held.shape[:-1], X.shape[-1])


def every_agent_holds(length: float, batch_size: int) -> CanaryGradient:
    """The oracle of a round in which every agent holds a long record: no sum is zero."""
    return CanaryGradient(None, length, torch.ones(()), batch_size)


@dataclass(eq=False)
class WrappedGradient(Gradient):
    """Another oracle, of which the questions are noted or the answers are changed."""

    of: Gradient

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.of.batch_size

    def note(self, X: Tensor, holders: Tensor | None, norm: int) -> None:
        """A question at models X [..., m, d]; ``norm``: to which records are clipped, 0: none."""

    def changed(self, gradients: Tensor) -> Tensor:
        """The answer, from the other's [..., m, d], or of each record [..., m, b, d]."""
        return gradients

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        self.note(X, holders, 0)
        return self.changed(self.of(X, holders))

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        self.note(X, holders, norm)
        return self.changed(self.of.clipped_sum(X, clip_norm, holders, norm))

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        self.note(X[..., 0, :] if own else X, holders, 0)
        return self.changed(self.of.per_record(X, holders, own))

    def at_step(self, s: int) -> Self:
        return replace(self, of=self.of.at_step(s))


@dataclass(eq=False)
class AllowedBatches(WrappedGradient):
    """Another oracle, of as many batches in a round as the defense says that it draws."""

    batches: int

    def at_step(self, s: int) -> Self:
        refuse_further_batches(s, self.batches)
        return super().at_step(s)


class FurtherBatch(ConfigError):
    """A step asks for a batch that accounting does not know of."""


def refuse_further_batches(s: int, batches: int) -> None:
    """Raises FurtherBatch if local step s has none of so many batches."""
    if s >= batches:
        raise FurtherBatch(
            "DPA044",
            f"defense: step asks for gradient.at_step({s}), and batches_per_round is {batches}",
            "let batches_per_round be how many batches an agent draws in a round",
        )


class OnFirst(WrappedGradient):
    """Another oracle's gradients on the first coordinate, and 0 on all others."""

    def changed(self, gradients: Tensor) -> Tensor:
        only = torch.zeros_like(gradients)
        only[..., 0] = gradients[..., 0]
        return only


@dataclass(eq=False)
class ClipNorms(WrappedGradient):
    """Notes the norms to which an oracle is asked to clip; 0: gradients that are not clipped."""

    norms: set[int] = field(default_factory=set)

    def note(self, X: Tensor, holders: Tensor | None, norm: int) -> None:
        self.norms.add(norm)


@dataclass(eq=False)
class WatchedGradient(WrappedGradient):
    """Another oracle, of which the models are kept that it is asked at."""

    models: list[Tensor] = field(default_factory=list)  # of each call: [trials, m], one coordinate
    askers: list[int] = field(default_factory=list)  # agent whose gradient a column is

    def note(self, X: Tensor, holders: Tensor | None, norm: int) -> None:
        self.models.append(X[..., 0])
        self.askers.extend(range(X.shape[-2]) if holders is None else holders.tolist())

    def asked_at(self, trials: int) -> Tensor:
        """All models that gradients were asked at, [trials, n_asked]."""
        none = torch.zeros(trials, 0, dtype=torch.float64)
        return torch.cat([none, *(X.expand(trials, -1) for X in self.models)], dim=1)

    def moved(self, trials: int) -> Tensor:
        """How far from those of the first trial all models are, [trials, n_asked]."""
        models = self.asked_at(trials)
        return models - models[0]


@dataclass(eq=False)
class AtPlaces(WrappedGradient):
    """Another oracle's gradients where they are chosen in a trial, and 0 in all other places."""

    chosen: Tensor  # [trials, n_asked], 1 or 0: of the rows of all calls, one after the other
    asked: list[int] = field(default_factory=list)  # rows of each call so far, of all local steps

    def changed(self, gradients: Tensor) -> Tensor:
        first = sum(self.asked)
        self.asked.append(gradients.shape[1])
        here = self.chosen[:, first : first + gradients.shape[1]].to(gradients)  # [trials, m]
        return gradients * here[(..., *[None] * (gradients.ndim - 2))]


class AlikeRecords(Gradient):
    """An oracle of batches whose records are all alike and shorter than any clip norm."""

    @abstractmethod
    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        """The mean over the batch."""

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self.batch_size * self(X, holders)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        one = self(X[..., 0, :] if own else X, holders)
        b = X.shape[-2] if own else self.batch_size
        return one[..., None, :].expand(*one.shape[:-1], b, one.shape[-1])


@dataclass(eq=False)
class ConstantGradients(AlikeRecords):
    """The same gradient of each agent at every model, [trials, n_agents]."""

    batch_size: int
    of_agents: Tensor

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        rows = torch.arange(X.shape[-2]) if holders is None else holders
        return self.of_agents[:, rows, None].to(X).expand(X.shape)


@dataclass(eq=False)
class GivenInputs(AlikeRecords):
    """Answers with given inputs along a pattern of signs, and keeps the models that it is asked at.

    A defense that is linear in the mean of its records has its estimate.
    """

    batch_size: int
    sign: Tensor  # [WIDTH]
    base: Tensor  # [n_inputs, WIDTH] of this round
    values: Tensor  # [trials, n_inputs], added along the signs
    places: list[Tensor]  # index of the input of each row, [m], for each call
    models: list[Tensor] = field(default_factory=list)  # models of each call, [trials, m, WIDTH]

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        places = self.places[len(self.models)]
        self.models.append(X)
        return self.base[places] + self.values[:, places, None] * self.sign


@dataclass(eq=False)
class NumberedInputs(AlikeRecords):
    """Answers 0, and numbers the models at which each agent's gradient is asked for."""

    batch_size: int
    batches: int  # batches in a round
    step: int = 0  # index of the batch in the round
    # agent, local step and model of each input
    asked: list[tuple[int, int, Tensor]] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)
    _known: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # places of each batch

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        agents = range(X.shape[-2]) if holders is None else holders.tolist()
        places = [self._place(agent, X[0, m]) for m, agent in enumerate(agents)]
        self.places.append(torch.tensor(places, dtype=torch.long))
        return torch.zeros_like(X)

    def at_step(self, s: int) -> "NumberedInputs":
        refuse_further_batches(s, self.batches)
        return replace(self, step=s)

    def _place(self, agent: int, model: Tensor) -> int:
        of_batch = self._known.setdefault((agent, self.step), [])
        for i in of_batch:
            known = self.asked[i][2]
            if torch.allclose(known, model, 0.0, SAME * known.abs().max().item()):
                return i
        of_batch.append(len(self.asked))
        self.asked.append((agent, self.step, model.clone()))
        return of_batch[-1]


Family = Literal["gaussian", "laplace"]


class RequestedNoise(NamedTuple):
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
        self.draws: dict[str, RequestedNoise] = {}

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
        if like.numel():  # a small model may lack the layer
            self.draws.setdefault(message, RequestedNoise(family, like.shape))
        units = self._units.get(message)
        if units is None:
            return torch.zeros_like(like)
        if like.ndim > max(3, units.ndim):
            raise ValueError(
                f'the noise "{message}" has numbers for each record; only [rows, d] can be played'
            )
        return units * STD[family] * scale


class RecordedNoise(Noise):
    """Real noise, of which the draws are kept: an agent that follows the protocol knows its own."""

    def __init__(self, streams: Streams, round: int) -> None:
        super().__init__(streams, round)
        self.units: dict[str, Tensor] = {}  # [..., rows, d] by name, in standard deviations
        self.stds: dict[str, Tensor] = {}  # name -> standard deviation, of any shape that fits

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
