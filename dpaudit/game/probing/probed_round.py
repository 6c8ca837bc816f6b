"""What one step of a protocol makes of a unit of noise, of the record and of earlier records.

The system is not written down for each defense: it is measured on the defense's own step, which is
exact where the defense is linear in its noise. Of few agents the matrices are dense
(``dense_probe``), of many, whose steps reach few others, they are sparse (``sparse_probe``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dpaudit.errors import DpauditError
from dpaudit.game.game import Game
from dpaudit.game.matrices import Array, Mask, Matrix, column_norms
from dpaudit.game.oracles import NOWHERE, OneAnswer, Points, WatchedGradient, at_points, points_of

from .chosen_noise import AskedNoise, ChosenNoise
from .observer import Observer
from .states import differs, flat_state, state_of

NOISELESS = 1e-6  # of a record's effect: what may be left of it where there is no noise to hide it


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
    messages: list[tuple[str, int]]  # what each observation is: message (or draw), row of payload
    noise: Effects  # of the factor of what is unknown of the state, and after it of each draw
    n_states: int  # rows of that factor
    laplace: Tensor  # [draws] bool
    record: Effects  # at each point of the round alone
    steps: list[int]  # of each point: the local step, whose batch it is of
    earlier: Effects  # of what is left in the state of each earlier use of the record
    askers: list[int]  # whose gradients the round asks for, one by one
    scale: float  # size of the record's effect, which errors are relative to
    largest: float  # number in the messages

    @property
    def records_seen(self) -> Array:
        """[n_old + n_points, n_observations]."""
        return np.concatenate([self.earlier.seen, self.record.seen])

    @property
    def most_revealing(self) -> int:
        """The observation with the largest effect of the record in units of its own noise.

        Of the round's own batch, or of earlier ones where no message reveals that yet.
        """
        noise = column_norms(self.noise.seen)
        seen = np.abs((self.record.seen if self.record.seen.any() else self.earlier.seen).sum(0))
        certain = np.where(seen > NOISELESS * self.scale, np.inf, 0.0)
        return int(np.where(noise > 0, seen / np.where(noise > 0, noise, 1.0), certain).argmax())

    def of_one_message(self, column: int) -> "ProbedRound":
        """The same, with only this observation made."""
        noise, record, earlier = (
            effects._replace(seen=effects.seen[:, [column]])
            for effects in (self.noise, self.record, self.earlier)
        )
        messages = [self.messages[column]]
        return replace(self, messages=messages, noise=noise, record=record, earlier=earlier)


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
        """Of the round that was measured last."""


def answers_move(observer: Observer, state: Any, k: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Whether answers to the chosen questions [1 + trials, n_asked] move observations and state.

    The first trial has no answer; [trials, *] bool of the others.
    """
    game, trials = observer.game, len(chosen)
    start = state_of(state, flat_state(state).expand(trials, -1))
    gradient, tape = OneAnswer(game.length, game.defense.batch_size, chosen), ChosenNoise()
    after, sent, *_ = game.step(start, k, gradient, tape)
    seen = observer.all_observations(k, sent, tape.zeros(trials))
    return differs(seen), differs(flat_state(after))


def points_in(game: Game, state: Any, k: int) -> Points:
    """Where round k asks for the record's gradient; nowhere if it is in no batch."""
    start = anywhere(state, k)
    points = points_of(
        game.victim,
        game.silent().batch_size,
        lambda oracle: game.step(start, k, oracle, ChosenNoise()),
    )
    return points if game.uses(k) else points._replace(steps=[])


def record_at(game: Game, points: Points, chosen: Tensor) -> WatchedGradient:
    """The record's gradient at the chosen point of each trial [trials], watched."""
    canary = game.gradient(torch.ones(len(chosen), dtype=torch.float64))
    return WatchedGradient(at_points(canary, points, chosen.clamp(min=NOWHERE)))


def laplace_draws(draws: Mapping[str, AskedNoise]) -> Tensor:
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
