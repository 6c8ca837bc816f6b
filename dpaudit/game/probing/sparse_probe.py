"""Rounds of a protocol as sparse matrices, measured for many agents in each trial.

What an agent's state and noise do in one step is seen at the agents within a few links of it. So
units of agents of one colour, whose footprints do not overlap, are moved in one trial, and what has
moved is put down to the agent of that colour which reaches there: as many trials as there are
colours, and not as there are agents. That a step reaches no further is not taken for granted:
whatever moves where no agent of the colour reaches refutes it, and so does a trial in which all
units are moved by random amounts, of which the matrices must predict every number.

What is exact about leaving parts out:

- A number of the state that reaches no later observation, and no model of which a gradient does,
  changes nothing that is read: its uncertainty is not carried on.
- Nothing but noise or a record moves a state away from the run without either, so that steps are
  probed along what these may have moved alone (``live``).

Source: Curtis, Powell and Reid 1974, "On the estimation of sparse Jacobian matrices".
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dpaudit.game.matrices import Array, Indices, Mask, Matrix, NotLocal
from dpaudit.game.step_inputs import ChosenNoise, WatchedGradient, flat_state, state_of, varying
from dpaudit.graphs.graph import Graph

from . import probed_round
from .observer import Observer
from .probed_round import Answers, Effects, ProbedRound

SPARSE_FROM = 256  # agents from which on steps are probed for many of them at once
MOST_TRIALS = 4000  # trials of one step
NUMBERS = 2 * 10**6  # numbers of a state that are played at once
TINY = 1e-13  # moves below this share of the largest value count as none
RELATIVE = 1e-9  # tolerated error of the matrices, relative to the largest move
CHECKS = 2  # trials that all units are moved in at random
HOPS = (1, 2, 3)  # distances that a step may reach, tried in turn
MOST_PAIRS = 2 * 10**7  # pairs of agents that meet: 240 MB


class Footprints(NamedTuple):
    """Whom each agent of a graph reaches."""

    colours: Indices  # [n_agents]: agents of one colour do not meet
    owners: Indices  # [n_colours, n_agents]: the agent of that colour that reaches it, or -1


@lru_cache(maxsize=64)
def footprints(graph: Graph, hops: int) -> Footprints:
    """Who reaches whom over so many links, in either direction.

    Raises:
        NotLocal: too many agents meet.
    """
    graph = graph.planned or graph  # with links of late messages
    linked = graph.sparse + graph.sparse.T + sparse.eye_array(graph.n_agents, format="csr")
    if graph.server is not None:
        raise NotLocal("a server hears all agents")
    reached = linked = sparse.csr_array(linked != 0).astype(np.int32)
    for _ in range(hops - 1):
        reached = _met(reached, linked)
    meets = _met(reached, sparse.csr_array(reached.T))
    colours = np.full(graph.n_agents, -1)
    for i, (start, end) in enumerate(zip(meets.indptr[:-1], meets.indptr[1:], strict=True)):
        taken = set(colours[meets.indices[start:end]].tolist())
        colours[i] = next(c for c in range(len(taken) + 1) if c not in taken)
    owners = np.full((int(colours.max()) + 1, graph.n_agents), -1)
    rows, columns = reached.nonzero()
    owners[colours[rows], columns] = rows
    return Footprints(colours, owners)


def _met(one: sparse.csr_array, other: sparse.csr_array) -> sparse.csr_array:
    """Where the product of two patterns is not zero."""
    products = int(np.diff(other.indptr)[one.indices].sum())
    if products > MOST_PAIRS:
        raise NotLocal("a step of an agent reaches too many others")
    product = sparse.csr_array(one @ other)
    product.data[:] = 1
    return product


class Units(NamedTuple):
    """All that is moved, one unit each: numbers of a state, inputs, draws of noise."""

    agents: Indices  # [n_units]: at which agent each stands
    live: Indices  # numbers that are moved at all

    def groups(self, reach: Footprints, kinds: Indices) -> list[Indices]:
        """Which are moved in one trial: of one kind, at agents of one colour, one at each."""
        agents, kinds = self.agents[self.live], kinds[self.live]
        order = np.lexsort((self.live, agents, kinds))
        same = (np.diff(agents[order]) == 0) & (np.diff(kinds[order]) == 0)
        first = np.append(0, np.flatnonzero(~same) + 1)
        turn = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
        keys = np.stack([kinds[order], reach.colours[agents[order]], turn], axis=1)
        _, group = np.unique(keys, axis=0, return_inverse=True)
        by = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[by])) + 1
        return np.split(self.live[order][by], cuts) if len(by) else []

    def effects(
        self,
        groups: list[Indices],
        reach: Footprints,
        places: Indices,
        play: Callable[[list[Indices]], Array],
        at_once: int,
    ) -> sparse.csr_array:
        """What each unit does, [n_units, n_numbers], from trials in which one group is moved.

        Args:
            places: [n_numbers]: the agent at which each number stands.
            play: what moves in one trial for each of some groups, [n_groups, n_numbers].
            at_once: groups that are played together.

        Raises:
            NotLocal: what has moved is out of reach of the group's units.
        """
        found = [(np.zeros(0, dtype=np.int64),) * 2 + (np.zeros(0),)]
        for part in in_parts(groups, at_once):
            for group, moved in zip(part, play(part), strict=True):
                there = np.flatnonzero(moved)
                unit = np.full(reach.owners.shape[1] + 1, -1)
                unit[self.agents[group]] = group
                colour = reach.colours[self.agents[group[0]]]
                owners = unit[reach.owners[colour][places[there]]]
                if (owners < 0).any():
                    raise NotLocal("its step reaches further than a few links")
                found.append((owners, there, moved[there]))
        rows, columns, values = (np.concatenate(part) for part in zip(*found, strict=True))
        return sparse.csr_array((values, (rows, columns)), shape=(len(self.agents), len(places)))


def agents_of(rows: int, graph: Graph) -> Indices:
    """The agents of so many rows: one for each, or the senders of links. Raises NotLocal."""
    if rows in (0, graph.n_agents):
        return np.arange(rows)
    if rows == graph.n_edges:
        return np.asarray(graph.senders.numpy())
    raise NotLocal(f"{rows} rows are neither of agents nor of links")


def in_parts(groups: list[Indices], size: int) -> Iterator[list[Indices]]:
    for i in range(0, len(groups), size):
        yield groups[i : i + size]


class SparseStep(NamedTuple):
    """A step around the run without noise and record."""

    # Without what is unknown of the state; ``earlier`` is what each number of the state does.
    alone: ProbedRound
    before: Any  # the state before it, of one trial
    next_state: Any
    reach: Footprints
    places: Indices  # [n_observations + width]: the agent at which each number stands


class SparseProbes:
    """Rounds 1 to ``n_rounds``, all measured at first. Raises NotLocal."""

    def __init__(self, observer: Observer, n_rounds: int) -> None:
        self.steps = steps_of(observer, n_rounds)  # public: each by itself
        self._width = self.steps[0].alone.record.state.shape[1]
        self._relevant: list[Mask] = []  # round -> relevant numbers of the state after it
        self._answers: list[Answers] = []
        relevant = np.zeros(self._width, dtype=bool)
        for step in self.steps[::-1]:
            answers = _answers(observer, step, relevant)
            self._relevant.insert(0, relevant)
            self._answers.insert(0, answers)
            seen, state, models = step.alone.earlier
            parts = seen, _with_columns(state, relevant), _with_columns(models, answers.shows)
            relevant = np.logical_or.reduce([np.diff(effects.indptr) > 0 for effects in parts])

    @property
    def nothing(self) -> Matrix:
        return sparse.csr_array((0, self._width))

    def round(self, k: int, factor: Matrix, residuals: Array) -> ProbedRound:
        alone, relevant = self.steps[k - 1].alone, self._relevant[k - 1]
        pairs = zip(alone.earlier, alone.noise, strict=True)
        noise = Effects(
            *(sparse.csr_array(sparse.vstack([_product(factor, old), new])) for old, new in pairs)
        )
        record, earlier = alone.record, alone.earlier.each(lambda effects: residuals @ effects)
        return replace(
            alone,
            noise=noise._replace(state=_with_columns(noise.state, relevant)),
            n_states=factor.shape[0],
            record=record._replace(state=record.state * relevant),
            earlier=earlier._replace(state=earlier.state * relevant),
        )

    def answers(self, k: int) -> Answers:
        return self._answers[k - 1]


def steps_of(observer: Observer, n_rounds: int) -> list[SparseStep]:
    """All rounds, around the run without noise and record. Raises NotLocal."""
    state: Any = observer.game.start(1)
    live, found = np.zeros(flat_state(state).shape[-1], dtype=bool), []
    for k in range(1, n_rounds + 1):
        step = _StepProbe(observer, state, k, live).measured()
        alone = step.alone
        live = _reached(alone.earlier.state[live]) | _reached(alone.noise.state)
        live |= alone.record.state.any(axis=0)
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
        rows = [  # owner of each number of the state, then of each draw
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
        points = probed_round.points_in(self._game, self._state, self._k)
        trials = 1 + len(points.steps)  # the first has nothing, each other the record at one point
        gradient = probed_round.record_at(self._game, points, torch.arange(trials) - 1)
        start = flat_state(self._state).expand(trials, -1)
        moved = self._moved(start, self._asked.zeros(trials), gradient)
        record = Effects(*(moved[:, a:b] for a, b in itertools.pairwise(self._cuts)))
        payloads = (s.payload.abs() for s in self._sent.values() if s.payload.numel())
        alone = ProbedRound(
            round=self._k,
            messages=self._observer.named(self._k, self._sent, self._asked.draws),
            noise=self._parts(effects[self._width :]),
            n_states=0,
            laplace=probed_round.laplace_draws(self._asked.draws),
            record=record,
            steps=points.steps,
            earlier=self._parts(effects[: self._width]),
            askers=self._askers,
            scale=max(float(np.abs(moved).max(initial=0.0)) for moved in record[:2]),
            largest=max((float(payload.max()) for payload in payloads), default=0.0),
        )
        return SparseStep(alone, self._state, self._after, reach, self._places[: self._cuts[2]])

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
        probed_round.refuse_infinite(k, values[:1])
        moved = torch.cat([values[1:] - values[0], gradient.moved(len(values))[1:]], dim=1)
        least = TINY * max(float(t.abs().max()) for t in (values, moved) if t.numel())
        moved[moved.abs() <= least] = 0.0
        return np.asarray(moved.numpy())

    def _parts(self, effects: Matrix) -> Effects:
        columns, pairs = effects.tocsc(), itertools.pairwise(self._cuts)
        return Effects(*(sparse.csr_array(columns[:, a:b]) for a, b in pairs))


def _answers(observer: Observer, step: SparseStep, relevant: Mask) -> Answers:
    """Raises NotLocal: an answer reaches further than the step."""
    n_asked, n = len(step.alone.askers), step.alone.record.seen.shape[1]
    units = Units(np.array(step.alone.askers, dtype=np.int64), np.arange(n_asked))

    def moved_by(groups: list[Indices]) -> Array:
        chosen = torch.zeros(1 + len(groups), n_asked, dtype=torch.float64)
        for trial, group in enumerate(groups, start=1):
            chosen[trial, group] = 1.0
        moved = probed_round.answers_move(observer, step.before, step.alone.round, chosen)
        return np.asarray(torch.cat(moved, dim=1).double().numpy())

    groups = units.groups(step.reach, np.zeros(n_asked, dtype=np.int64))
    effects = units.effects(groups, step.reach, step.places, moved_by, len(step.places))
    looked_at = np.append(np.ones(n, dtype=bool), relevant)
    shows = np.diff(_with_columns(effects, looked_at).indptr) > 0
    return Answers(shows, ~_reached(effects)[:n])


def _with_columns(effects: Matrix, chosen: Mask) -> Matrix:
    """Set all other columns to 0."""
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
