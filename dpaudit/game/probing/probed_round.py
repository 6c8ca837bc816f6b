"""What one step of a protocol makes of a unit of noise, of the record and of earlier records.

The system is not written down for each defense: it is measured on the defense's own step, which is
exact where the defense is linear in its noise. Of few agents the matrices are dense: each round is
probed from many states and with many noises at once. Of many agents, whose steps reach few others,
they are sparse (``sparse_probe``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dpaudit.errors import ConfigError, DpauditError
from dpaudit.game.game import Game
from dpaudit.game.matrices import Array, Mask, Matrix, column_norms
from dpaudit.game.step_inputs import (
    AtPlaces,
    ChosenNoise,
    NumberedInputs,
    RequestedNoise,
    WatchedGradient,
    differs,
    every_agent_holds,
    flat_state,
    state_of,
)

from .observer import Observer

NOWHERE = -1  # row at which the record's gradient is not taken
NOISELESS = 1e-6  # share of a record's effect that counts as nothing if no noise hides it
TINY = 1e-13  # moves below this share of a trial's largest number are rounding
MOST_DRAWS = 4000  # noises of a round: the matrices of a round take their square


class Effects(NamedTuple):
    """What each of some units does in a step."""

    seen: Matrix  # [units, n_observations]
    state: Matrix  # [units, width]
    models: Matrix  # [units, n_asked]: to the model at which each gradient is asked for

    def each(self, change: Callable[[Matrix], Matrix]) -> "Effects":
        return Effects(*map(change, self))


@dataclass(frozen=True)
class ProbedRound:
    """A round around the run without noise and record."""

    round: int
    messages: list[tuple[str, int]]  # (message or draw, row) of each observation
    noise: Effects  # of the unknown part of the state, then of each draw
    n_states: int  # rows of that factor
    laplace: Tensor  # [draws] bool
    record: Effects  # at each single point of the round
    steps: list[int]  # local step whose batch a point uses
    earlier: Effects  # of earlier uses of the record, through the state
    askers: list[int]  # agents whose gradients the round asks for, in order
    scale: float  # size of the record's effect, which errors are relative to
    largest: float  # number in the messages

    @property
    def records_seen(self) -> Array:
        """[n_old + n_points, n_observations]."""
        return np.concatenate([self.earlier.seen, self.record.seen])

    def of_uses(self, chosen: Mask) -> "ProbedRound":
        """The round with only these uses of the record, [n_old + n_points] bool."""
        old, new = np.split(chosen, [len(self.earlier.seen)])
        steps = [s for s, is_chosen in zip(self.steps, new.tolist(), strict=True) if is_chosen]
        return replace(
            self,
            earlier=self.earlier.each(lambda effects: effects[old]),
            record=self.record.each(lambda effects: effects[new]),
            steps=steps,
        )

    def of_one_message(self) -> tuple[int, "ProbedRound"]:
        """The observation with the largest effect of the record in units of its own noise, alone.

        Of the round's own batch, or of earlier ones where no message reveals that yet.
        """
        stds = column_norms(self.noise.seen)
        seen = np.abs((self.record.seen if self.record.seen.any() else self.earlier.seen).sum(0))
        certain = np.where(seen > NOISELESS * self.scale, np.inf, 0.0)
        sizes = np.where(stds > 0, seen / np.where(stds > 0, stds, 1.0), certain)
        column = int(sizes.argmax())
        noise, record, earlier = (
            effects._replace(seen=effects.seen[:, [column]])
            for effects in (self.noise, self.record, self.earlier)
        )
        messages = [self.messages[column]]
        return column, replace(self, messages=messages, noise=noise, record=record, earlier=earlier)


class Answers(NamedTuple):
    """What the gradients that a round asks for reach, each by itself."""

    shows: Mask  # [n_asked] whose answer moves an observation, or the state of later rounds
    before: Mask  # [n_observations] those that no answer moves


class Probes(Protocol):
    """Measures one round after the other."""

    @property
    def nothing(self) -> Matrix:
        """The factor of what is unknown of the state before round 1, [0, width]."""

    def round(self, k: int, factor: Matrix, residuals: Array) -> ProbedRound:
        """Round k, whose state is unknown by ``factor`` and holds ``residuals`` of earlier uses."""

    def answers(self, k: int) -> Answers:
        """Answers of the round that was measured last."""


def answers_move(observer: Observer, state: Any, k: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Whether answers to the chosen questions [1 + trials, n_asked] move observations and state.

    The first trial has no answer; [trials, *] bool of the others.
    """
    game, trials = observer.game, len(chosen)
    start = state_of(state, flat_state(state).expand(trials, -1))
    answers = every_agent_holds(game.length, game.defense.batch_size)
    gradient, tape = AtPlaces(answers, chosen), ChosenNoise()
    after, sent, *_ = game.step(start, k, gradient, tape)
    seen = observer.all_observations(k, sent, tape.zeros(trials))
    return differs(seen), differs(flat_state(after))


class Points(NamedTuple):
    """Where a round takes the record's gradient: each batch at each model is a point."""

    rows: Tensor  # [n_asked], of all calls one after the other: which point each is, or NOWHERE
    steps: list[int]  # local step whose batch a point uses


def points_in(game: Game, state: Any, k: int) -> Points:
    """Where round k asks for the record's gradient; nowhere if it is in no batch."""
    asked = NumberedInputs(game.silent().batch_size, game.batches)
    game.step(anywhere(state, k), k, asked, ChosenNoise())
    own = [i for i, (agent, *_) in enumerate(asked.asked) if agent == game.victim]
    points = torch.full((len(asked.asked),), NOWHERE)
    points[own] = torch.arange(len(own))
    rows = points[torch.cat([torch.zeros(0, dtype=torch.long), *asked.places])]
    return Points(rows, [asked.asked[i][1] for i in own] if game.uses(k) else [])


def record_at(game: Game, points: Points, chosen: Tensor) -> WatchedGradient:
    """The record's gradient at the chosen point of each trial [trials], watched; below 0: none."""
    canary = game.gradient(torch.ones(len(chosen), dtype=torch.float64))
    here = (points.rows == chosen[:, None]) & (chosen >= 0)[:, None]
    return WatchedGradient(AtPlaces(canary, here))


def laplace_draws(draws: Mapping[str, RequestedNoise]) -> Tensor:
    """[draws] bool."""
    families = [draw.family == "laplace" for draw in draws.values() for _ in range(draw.numbers)]
    return torch.tensor(families, dtype=torch.bool)


def anywhere(state: Any, k: int) -> Any:
    """A state in which no two agents' models agree by chance."""
    flat, generator = flat_state(state), torch.Generator().manual_seed(k)
    return state_of(state, flat + torch.rand(flat.shape, generator=generator, dtype=flat.dtype))


def refuse_infinite(k: int, *values: Tensor) -> None:
    """Raises DpauditError if the run without records is not finite."""
    if not all(bool(t.isfinite().all()) for t in values):
        raise DpauditError(
            "DPA046",
            f"round {k}: messages or states are not finite even in a run without records; "
            "expected options of the defense under which it does not overflow",
        )


class DenseProbes:
    """Rounds 1 to ``n_rounds`` in turn.

    ``why``: what keeps them from being probed for many agents at once, for the line of a refusal.
    """

    def __init__(self, observer: Observer, n_rounds: int, why: Exception | None = None) -> None:
        self._observer, self._game, self._n_rounds = observer, observer.game, n_rounds
        self._why, self._n_asked = why, 0
        self._state: Any = self._game.start(1)
        self._before = self._state

    @property
    def nothing(self) -> Matrix:
        return np.zeros((0, flat_state(self._state).shape[-1]))

    def round(self, k: int, factor: Matrix, residuals: Array) -> ProbedRound:
        """Raises ConfigError: it has too many noises. DpauditError: numbers are not finite."""
        asked = ChosenNoise()
        self._game.step(self._state, k, self._game.silent(), asked)
        self._observer.note_shared_draws(k, asked.known_to)
        points = points_in(self._game, self._state, k)
        width = factor.shape[1]
        # more residuals than the state has numbers are moved by its basis
        old = residuals if len(residuals) <= width else np.eye(width)
        first = 1 + len(old) + len(factor)  # trial of the first draw
        last = first + asked.n_draws  # trial of the first point
        trials = last + len(points.steps)  # base, residuals, factor, draws, record
        self._refuse_too_many(trials, asked.n_draws, k)
        start = flat_state(self._state).expand(trials, -1).clone()
        start[1:first] += torch.from_numpy(np.concatenate([old, factor]))
        units = asked.one_of_each(trials, first)
        gradient = record_at(self._game, points, torch.arange(trials) - last)

        played = self._game.step(state_of(self._state, start), k, gradient, ChosenNoise(units))
        observed = self._observer.all_observations(k, played.sent, units)
        after = flat_state(played.state)
        seen, left = _moves(start, observed, after)
        refuse_infinite(k, seen[1 + len(old) :], left[1 + len(old) :])
        moved = Effects(seen.numpy(), left.numpy(), gradient.moved(trials).numpy())
        earlier = moved.each(lambda effects: effects[1 : 1 + len(old)])
        if old is not residuals:
            earlier = earlier.each(lambda effects: residuals @ effects)
        record = moved.each(lambda effects: effects[last:])
        self._before, self._state = self._state, state_of(self._state, after[:1])
        self._n_asked = len(gradient.askers)
        return ProbedRound(
            round=k,
            messages=self._observer.named(k, played.sent, asked.draws),
            noise=moved.each(lambda effects: effects[1 + len(old) : last]),
            n_states=len(factor),
            laplace=laplace_draws(asked.draws),
            record=record,
            steps=points.steps,
            earlier=earlier,
            askers=gradient.askers,
            scale=max(float(np.abs(effects).max(initial=0.0)) for effects in record[:2]),
            largest=float(observed[0].abs().max()) if observed.numel() else 0.0,
        )

    def answers(self, k: int) -> Answers:
        alone = torch.eye(1 + self._n_asked, dtype=torch.float64)[:, 1:]
        seen, left = answers_move(self._observer, self._before, k, alone)
        shows = seen.any(dim=1) if k == self._n_rounds else seen.any(dim=1) | left.any(dim=1)
        return Answers(shows.numpy(), ~seen.any(dim=0).numpy())

    def _refuse_too_many(self, trials: int, n_draws: int, k: int) -> None:
        if trials > MOST_DRAWS:
            known = "" if self._why is None else f" where all depends on all ({self._why})"
            raise ConfigError(
                "DPA022",
                f"graph: round {k} draws {n_draws} noises; its exact leak is computed "
                f"for {MOST_DRAWS} at most{known}",
                "audit fewer agents or a sparser graph",
            )


def _moves(start: Tensor, observed: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """How far observations and states [trials, *] are from those of the first trial.

    What subtraction leaves of numbers that cancel, as of a message that is held over a round, is 0.
    """
    values = torch.cat([start, observed, after], dim=1).abs().amax(dim=1, keepdim=True)
    least = TINY * torch.maximum(values, values[0])
    moved, left = (v - v[0] for v in (observed, after))
    return (
        torch.where(moved.abs() <= least, 0.0, moved),
        torch.where(left.abs() <= least, 0.0, left),
    )
