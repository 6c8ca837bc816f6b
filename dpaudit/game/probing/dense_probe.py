"""Rounds of a protocol, each probed from many states and with many noises at once."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpaudit.errors import ConfigError
from dpaudit.game.matrices import Array, Matrix

from .chosen_noise import ChosenNoise
from .observer import Observer
from .probed_round import (
    Answers,
    Effects,
    ProbedRound,
    answers_move,
    laplace_draws,
    points_in,
    record_at,
    refuse_infinite,
)
from .states import flat_state, state_of

TINY = 1e-13  # of the largest number of a trial: a smaller move in it is rounding
MOST_DRAWS = 4000  # noises of a round: the matrices of a round take their square


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
