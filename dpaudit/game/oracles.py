"""Gradient oracles of the game: they answer with given gradients, or note what a step asks for."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient

SAME = 1e-9  # of a model: by what two that are one may differ, summed in different orders


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

    models: list[Tensor] = field(default_factory=list)  # of each call, [trials, m], one coordinate
    askers: list[int] = field(default_factory=list)  # whose gradient each column of them is

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
    places: list[Tensor]  # of each call: which input each row is, [m]
    models: list[Tensor] = field(default_factory=list)  # of each call, [trials, m, WIDTH]

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        places = self.places[len(self.models)]
        self.models.append(X)
        return self.base[places] + self.values[:, places, None] * self.sign


@dataclass(eq=False)
class NumberedInputs(AlikeRecords):
    """Answers 0, and numbers the models at which each agent's gradient is asked for."""

    batch_size: int
    step: int = 0  # whose batch it is
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
