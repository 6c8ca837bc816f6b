"""Rounds of a protocol as sparse matrices, measured for many agents in each trial.

What an agent's state and noise do in one step is seen at the agents within a few links of it. So
units of all agents of one colour (``locality``) are moved in one trial, and what has moved is put
down to the agent of that colour which reaches there. That a step reaches no further is not taken
for granted: whatever moves where no agent of the colour reaches refutes it, and so does a trial in
which all units are moved by random amounts, of which the matrices must predict every number.

What is exact about leaving parts out:

- A number of the state that reaches no later observation, and no model of which a gradient does,
  changes nothing that is read: its uncertainty is not carried on.
- Nothing but noise or a record moves a state away from the run without either, so that steps are
  probed along what these may have moved alone (``live``).
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dpaudit.game.matrices import Array, Indices, Mask, Matrix, NotLocal
from dpaudit.game.oracles import WatchedGradient

from .chosen_noise import ChosenNoise
from .locality import HOPS, Footprints, Units, agents_of, footprints
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
from .states import flat_state, state_of, varying

SPARSE_FROM = 256  # agents from which on steps are probed for many of them at once
MOST_TRIALS = 4000  # of one step
NUMBERS = 2 * 10**6  # of a state that is played at once
TINY = 1e-13  # of the largest value: what is less has not moved
RELATIVE = 1e-9  # of the largest move: what the matrices may be off by
CHECKS = 2  # trials that all units are moved in at random


class SparseStep(NamedTuple):
    """A step around the run without noise and record."""

    round: int
    before: Any  # the state before it, of one trial
    next_state: Any
    reach: Footprints
    messages: list[tuple[str, int]]
    of_state: Effects
    of_noise: Effects
    laplace: Tensor  # [draws] bool
    record: Effects  # at each point of the round alone
    steps: list[int]  # of each point: the local step, whose batch it is of
    askers: list[int]
    places: Indices  # [n_observations + width]: the agent at which each number stands
    largest: float  # number in the messages of the run without noise and record


class SparseProbes:
    """Rounds 1 to ``n_rounds``, all measured at first. Raises NotLocal."""

    def __init__(self, observer: Observer, n_rounds: int) -> None:
        self._steps = steps_of(observer, n_rounds)
        self._width = self._steps[0].record.state.shape[1]
        self._relevant: list[Mask] = []  # by round, the numbers of the state after it
        self._answers: list[Answers] = []
        relevant = np.zeros(self._width, dtype=bool)
        for step in self._steps[::-1]:
            answers = _answers(observer, step, relevant)
            self._relevant.insert(0, relevant)
            self._answers.insert(0, answers)
            seen, state, models = step.of_state
            parts = seen, _with_columns(state, relevant), _with_columns(models, answers.shows)
            relevant = np.logical_or.reduce([np.diff(effects.indptr) > 0 for effects in parts])

    @property
    def nothing(self) -> Matrix:
        return sparse.csr_array((0, self._width))

    def round(self, k: int, factor: Matrix, residuals: Array) -> ProbedRound:
        step, relevant = self._steps[k - 1], self._relevant[k - 1]
        pairs = zip(step.of_state, step.of_noise, strict=True)
        noise = Effects(
            *(sparse.csr_array(sparse.vstack([_product(factor, old), new])) for old, new in pairs)
        )
        record, earlier = step.record, step.of_state.each(lambda effects: residuals @ effects)
        return ProbedRound(
            round=k,
            messages=step.messages,
            noise=noise._replace(state=_with_columns(noise.state, relevant)),
            n_states=factor.shape[0],
            laplace=step.laplace,
            record=record._replace(state=record.state * relevant),
            steps=step.steps,
            earlier=earlier._replace(state=earlier.state * relevant),
            askers=step.askers,
            scale=max(float(np.abs(effects).max(initial=0.0)) for effects in record[:2]),
            largest=step.largest,
        )

    def answers(self, k: int) -> Answers:
        return self._answers[k - 1]


def steps_of(observer: Observer, n_rounds: int) -> list[SparseStep]:
    """All rounds, around the run without noise and record. Raises NotLocal."""
    state: Any = observer.game.start(1)
    live, found = np.zeros(flat_state(state).shape[-1], dtype=bool), []
    for k in range(1, n_rounds + 1):
        step = _StepProbe(observer, state, k, live).measured()
        live = _reached(step.of_state.state[live]) | _reached(step.of_noise.state)
        live |= step.record.state.any(axis=0)
        found.append(step)
        state = step.next_state
    return found


class _StepProbe:
    """One step from one state.

    Args:
        live: [width] bool, what of the state noise or record may have moved before.
    """

    def __init__(self, observer: Observer, state: Any, k: int, live: Mask) -> None:
        self._observer, self._state, self._k = observer, state, k
        self._game = observer.game
        self._graph = self._game.setting.network.at(k)
        self._asked, asked_at = ChosenNoise(), WatchedGradient(self._game.silent())
        self._after, self._sent, *_ = self._game.step(state, k, asked_at, self._asked)
        observer.note_shared_draws(k, self._asked.known_to)
        self._askers, self._width = asked_at.askers, flat_state(state).shape[-1]
        rows = [  # of each number of the state, and then of each draw: whose it is
            np.repeat(agents_of(t.shape[1], self._graph), t[0].numel() // max(1, t.shape[1]))
            for t in varying(state).values()
        ]
        at_state, n_tensors = np.concatenate(rows), len(rows)
        rows += [self._makers(name) for name in self._asked.draws]
        self._kinds = np.repeat(np.arange(len(rows)), [len(agents) for agents in rows])
        at_draws = np.concatenate([np.zeros(0, dtype=np.int64), *rows[n_tensors:]])
        moved = np.append(np.flatnonzero(live), self._width + np.arange(len(at_draws)))
        self._units = Units(np.concatenate([at_state, at_draws]), moved)
        seen = observer.senders_of(k, self._sent, self._asked.draws, at_draws)
        self._places = np.concatenate([seen, at_state, np.array(self._askers, dtype=np.int64)])
        self._cuts = (0, len(seen), len(seen) + self._width, len(self._places))

    def measured(self) -> SparseStep:
        """Raises NotLocal: the step reaches too far, or is not linear."""
        reach, effects = self._effects()
        record, steps = self._of_record()
        payloads = (s.payload.abs() for s in self._sent.values() if s.payload.numel())
        return SparseStep(
            round=self._k,
            before=self._state,
            next_state=self._after,
            reach=reach,
            messages=self._observer.named(self._k, self._sent, self._asked.draws),
            of_state=self._parts(effects[: self._width]),
            of_noise=self._parts(effects[self._width :]),
            laplace=laplace_draws(self._asked.draws),
            record=record,
            steps=steps,
            askers=self._askers,
            places=self._places[: self._cuts[2]],
            largest=max((float(payload.max()) for payload in payloads), default=0.0),
        )

    def _makers(self, name: str) -> Indices:
        """The agent of each number of a draw; one of those that share it."""
        rows, d = self._asked.draws[name].shape[-2:]
        known_to = self._asked.known_to.get(name)
        if known_to is None or not known_to.shape[1]:
            return np.repeat(agents_of(rows, self._graph), d)
        return np.repeat(known_to[:, 0].numpy(), d)

    def _effects(self) -> tuple[Footprints, Matrix]:
        """How far the step reaches, and what all units do, [units, numbers]."""
        why = NotLocal("")
        for hops in HOPS:
            try:
                reach = footprints(self._graph, hops)
                groups = self._units.groups(reach, self._kinds)
                if len(groups) > MOST_TRIALS:
                    raise NotLocal(f"{len(groups)} trials would be needed to tell its agents apart")
                effects = self._units.effects(
                    groups,
                    reach,
                    self._places,
                    lambda some: self._played([(group, np.ones(len(group))) for group in some]),
                    max(1, NUMBERS // self._width),
                )
                self._check(effects)
                return reach, effects
            except NotLocal as reason:
                why = reason
        raise why

    def _check(self, effects: Matrix) -> None:
        """Moves all units at random, of which the effects must predict every number."""
        live, generator = self._units.live, np.random.default_rng(self._k)
        amounts = generator.standard_normal((CHECKS, len(live)))
        moved = self._played([(live, some) for some in amounts])
        predicted = amounts @ effects[live]
        largest = np.abs(moved).max(initial=0.0)
        if not np.abs(moved - predicted).max(initial=0.0) <= RELATIVE * largest:
            raise NotLocal("its step reaches further than a few links, or is not linear")

    def _played(self, moves: list[tuple[Indices, Array]]) -> Array:
        """What moves [trials, numbers] where units are moved by these amounts, in each trial."""
        trials, width = 1 + len(moves), self._width
        start = flat_state(self._state).expand(trials, -1).clone()
        noise = torch.zeros(trials, self._asked.n_draws, dtype=torch.float64)
        for trial, (units, amounts) in enumerate(moves, start=1):
            of_state, by = units < width, torch.from_numpy(amounts)
            start[trial, units[of_state]] += by[of_state]
            noise[trial, units[~of_state] - width] = by[~of_state]
        draws = self._asked.draws
        parts = noise.split([draw.numbers for draw in draws.values()], dim=1)
        units_of = {
            name: part.view(trials, *draw.shape[-2:])
            for (name, draw), part in zip(draws.items(), parts, strict=True)
        }
        return self._moved(start, units_of, WatchedGradient(self._game.silent(trials)))

    def _moved(self, start: Tensor, units: dict[str, Tensor], gradient: WatchedGradient) -> Array:
        """How far all numbers are from those of the first trial; rounding is 0."""
        k, before = self._k, state_of(self._state, start)
        state, sent, *_ = self._game.step(before, k, gradient, ChosenNoise(units))
        observed = self._observer.all_observations(k, sent, units)
        values = torch.cat([observed, flat_state(state)], dim=1)
        refuse_infinite(k, values[:1])
        moved = torch.cat([values[1:] - values[0], gradient.moved(len(values))[1:]], dim=1)
        least = TINY * max(float(t.abs().max()) for t in (values, moved) if t.numel())
        moved[moved.abs() <= least] = 0.0
        return np.asarray(moved.numpy())

    def _of_record(self) -> tuple[Effects, list[int]]:
        """What the record does at each point of the round alone."""
        points = points_in(self._game, self._state, self._k)
        trials = 1 + len(points.steps)
        gradient = record_at(self._game, points, torch.arange(trials) - 1)
        start = flat_state(self._state).expand(trials, -1)
        moved = self._moved(start, self._asked.zeros(trials), gradient)
        return Effects(*(moved[:, a:b] for a, b in itertools.pairwise(self._cuts))), points.steps

    def _parts(self, effects: Matrix) -> Effects:
        columns, pairs = effects.tocsc(), itertools.pairwise(self._cuts)
        return Effects(*(sparse.csr_array(columns[:, a:b]) for a, b in pairs))


def _answers(observer: Observer, step: SparseStep, relevant: Mask) -> Answers:
    """Raises NotLocal: an answer reaches further than the step."""
    n_asked, n = len(step.askers), step.record.seen.shape[1]
    units = Units(np.array(step.askers, dtype=np.int64), np.arange(n_asked))

    def moved_by(groups: list[Indices]) -> Array:
        chosen = torch.zeros(1 + len(groups), n_asked, dtype=torch.float64)
        for trial, group in enumerate(groups, start=1):
            chosen[trial, group] = 1.0
        moved = answers_move(observer, step.before, step.round, chosen)
        return np.asarray(torch.cat(moved, dim=1).double().numpy())

    groups = units.groups(step.reach, np.zeros(n_asked, dtype=np.int64))
    effects = units.effects(groups, step.reach, step.places, moved_by, len(step.places))
    looked_at = np.append(np.ones(n, dtype=bool), relevant)
    shows = np.diff(_with_columns(effects, looked_at).indptr) > 0
    return Answers(shows, ~_reached(effects)[:n])


def _with_columns(effects: Matrix, chosen: Mask) -> Matrix:
    """With 0 in all other columns."""
    effects = sparse.csr_array(effects.copy())
    effects.data[~chosen[effects.indices]] = 0.0
    effects.eliminate_zeros()
    return effects


def _product(factor: Matrix, effects: Matrix) -> Matrix:
    """``factor`` [rows, n] times ``effects`` [n, m], without what rounding leaves of zeros."""
    found = sparse.csr_array(factor @ effects)
    largest = sparse.csr_array(abs(factor) @ abs(effects))
    return sparse.csr_array(found.multiply(abs(found) > TINY * largest))


def _reached(effects: Matrix) -> Mask:
    """Which numbers some unit moves."""
    there = np.zeros(effects.shape[1], dtype=bool)
    there[effects.indices] = True
    return there
