"""One step of a protocol as sparse matrices, measured for many agents in each trial.

What an agent's state and noise do in one step is seen at the agents within a few links of it. So
units of all agents of one colour (``footprints``) are moved in one trial, and what has moved is put
down to the agent of that colour which reaches there. That a step reaches no further is not taken
for granted: whatever moves where no agent of the colour reaches refutes it, and so does a trial in
which all units are moved by random amounts, of which the matrices must foretell every number.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.defense.transcript import Messages
from dpaudit.game.filtering.block_matrices import Array, Mask, Matrix
from dpaudit.game.oracles import Watched
from dpaudit.graphs.graph import Graph

from .dense_probe import anywhere, refuse_infinite
from .locality import Footprints, Indices, NotLocal, footprints
from .observer import Observer
from .points import NOWHERE, at_points, points_of
from .states import flat_state, state_of, varying
from .tape import Tape

HOPS = (1, 2, 3)  # that a step may reach, tried in turn
MOST_TRIALS = 4000  # of one step
NUMBERS = 2 * 10**6  # of a state that is played at once
TINY = 1e-13  # of the largest value: what is less has not moved
RELATIVE = 1e-9  # of the largest move: what the matrices may be off by
CHECKS = 2  # trials that all units are moved in at random


class Effects(NamedTuple):
    """What units of state or noise do in a step."""

    seen: Matrix  # [units, n_observations]
    state: Matrix  # [units, width]
    models: Matrix  # [units, n_asked]


class LocalStep(NamedTuple):
    """A step around the run without noise and record."""

    round: int
    before: Any  # the state before it, of one trial
    next_state: Any
    reach: Footprints
    messages: list[tuple[str, int]]
    of_state: Effects
    of_noise: Effects
    laplace: Tensor  # [draws] bool
    record_seen: Tensor  # [n_points, n_observations]
    record: Tensor  # [n_points, width]
    models_record: Tensor  # [n_points, n_asked]
    steps: list[int]  # of each point: the local step, whose batch it is of
    askers: list[int]
    places: Indices  # [n_observations + width]: the agent at which each number stands
    largest: float  # number in the messages of the run without noise and record


class Units(NamedTuple):
    """All that is moved: numbers of the state, and after them draws."""

    agents: Indices  # [width + draws]: at which agent each stands
    live: Indices  # those that are moved at all

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

    def owners(self, group: Indices, reach: Footprints, moved: Indices) -> Indices:
        """Of each number that has moved, at these agents, the unit of the group that did it.

        Raises:
            NotLocal: no unit of the group reaches there.
        """
        unit = np.full(reach.owners.shape[1] + 1, -1)
        unit[self.agents[group]] = group
        found = unit[reach.owners[reach.colours[self.agents[group[0]]]][moved]]
        if (found < 0).any():
            raise NotLocal("its step reaches further than a few links")
        return found


class LocalProbe:
    """One step from one state.

    Args:
        live: [width] bool, what of the state noise or record may have moved before.
    """

    def __init__(self, observer: Observer, state: Any, k: int, live: Mask) -> None:
        self._observer, self._state, self._k = observer, state, k
        self._game = observer.game
        self._graph = self._game.setting.network.at(k)
        asked, heard = Tape(), Watched(self._silent(1))
        self._after, self._sent = self._step(state, asked, heard)
        observer.told(k, asked.known_to)
        self._asked, self._askers = asked, heard.askers
        self._width = flat_state(state).shape[-1]
        at_state, kind_of_state = self._of_state()
        at_draws, kind_of_draws = self._of_draws(len(varying(state)))
        self._kinds = np.concatenate([kind_of_state, kind_of_draws])
        moved = np.append(np.flatnonzero(live), self._width + np.arange(len(at_draws)))
        self._units = Units(np.concatenate([at_state, at_draws]), moved)
        seen = observer.senders_of(k, self._sent, asked.draws, at_draws)
        self._places = np.concatenate([seen, at_state, np.array(heard.askers, dtype=np.int64)])
        self._n = len(seen)

    def play(self) -> LocalStep:
        """Raises NotLocal: the step reaches too far, or is not linear."""
        reach, effects = self._measured()
        seen, left, models, steps = self._of_record()
        width, draws = self._width, self._asked.draws
        families = [d.family == "laplace" for d in draws.values() for _ in range(d.numbers)]
        return LocalStep(
            self._k, self._state, self._after, reach,
            self._observer.named(self._k, self._sent, draws),
            self._parts(effects[:width]), self._parts(effects[width:]),
            torch.tensor(families, dtype=torch.bool),
            seen, left, models, steps, self._askers, self._places[: self._n + width],
            self._largest(),
        )  # fmt: skip

    def _largest(self) -> float:
        payloads = (s.payload.abs() for s in self._sent.values() if s.payload.numel())
        return max((float(payload.max()) for payload in payloads), default=0.0)

    def _measured(self) -> tuple[Footprints, Matrix]:
        """How far the step reaches, and what all units do, [units, numbers]."""
        why = NotLocal("")
        for hops in HOPS:
            try:
                reach = footprints(self._graph, hops)
                effects = self._coloured(reach)
                self._check(effects)
                return reach, effects
            except NotLocal as reason:
                why = reason
        raise why

    def _coloured(self, reach: Footprints) -> Matrix:
        """What each unit does, of trials of one colour each."""
        groups = self._units.groups(reach, self._kinds)
        found: list[tuple[Indices, Indices, Array]] = []
        if len(groups) > MOST_TRIALS:
            raise NotLocal(f"{len(groups)} trials would be needed to tell its agents apart")
        for part in in_parts(groups, max(1, NUMBERS // self._width)):
            moves = [(group, np.ones(len(group))) for group in part]
            for group, moved in zip(part, self._played(moves), strict=True):
                there = np.flatnonzero(moved)
                units = self._units.owners(group, reach, self._places[there])
                found.append((units, there, moved[there]))
        shape = len(self._units.agents), len(self._places)
        if not found:
            return sparse.csr_array(shape)
        rows, columns, values = (np.concatenate(part) for part in zip(*found, strict=True))
        return sparse.csr_array((values, (rows, columns)), shape=shape)

    def _check(self, effects: Matrix) -> None:
        """Moves all units at random, of which the effects must foretell every number."""
        live, generator = self._units.live, np.random.default_rng(self._k)
        amounts = generator.standard_normal((CHECKS, len(live)))
        moved = self._played([(live, some) for some in amounts])
        foretold = amounts @ effects[live]
        largest = np.abs(moved).max(initial=0.0)
        if not np.abs(moved - foretold).max(initial=0.0) <= RELATIVE * largest:
            raise NotLocal("its step reaches further than a few links, or is not linear")

    def _played(self, moves: list[tuple[Indices, Array]]) -> Array:
        """What moves [trials, numbers] where units are moved by these amounts, in each trial."""
        trials, width = 1 + len(moves), self._width
        start = flat_state(self._state).expand(trials, -1).clone()
        draws = self._asked.draws
        sizes = [draw.numbers for draw in draws.values()]
        noise = torch.zeros(trials, sum(sizes), dtype=torch.float64)
        for trial, (units, amounts) in enumerate(moves, start=1):
            of_state, by = units < width, torch.from_numpy(amounts)
            start[trial, units[of_state]] += by[of_state]
            noise[trial, units[~of_state] - width] = by[~of_state]
        parts = zip(draws.items(), noise.split(sizes, dim=1), strict=True)
        played = {name: part.view(trials, *draw.shape[-2:]) for (name, draw), part in parts}
        gradient = Watched(self._silent(trials))
        state, sent = self._step(state_of(self._state, start), Tape(played), gradient)
        return self._moved(state, sent, played, gradient)

    def _moved(
        self, state: Any, sent: Messages, units: dict[str, Tensor], gradient: Watched
    ) -> Array:
        """How far all numbers are from those of the first trial; rounding is 0."""
        observed = self._observer.all_observations(self._k, sent, units)
        values = torch.cat([observed, flat_state(state)], dim=1)
        refuse_infinite(self._k, values[:1])
        moved = torch.cat([values[1:] - values[0], gradient.moved(len(values))[1:]], dim=1)
        least = TINY * max(float(t.abs().max()) for t in (values, moved) if t.numel())
        moved[moved.abs() <= least] = 0.0
        return np.asarray(moved.numpy())

    def _of_record(self) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """What the record does at each point of the round alone."""
        game, k = self._game, self._k
        points = points_of(game, anywhere(self._state, k), k, Tape())
        steps = points.steps if game.uses(k) else []
        trials = 1 + len(steps)
        chosen = (torch.arange(trials) - 1).clamp(min=NOWHERE)
        canary = game.gradient(torch.ones(trials, dtype=torch.float64))
        gradient = Watched(at_points(canary, points, chosen))
        start = flat_state(self._state).expand(trials, -1)
        nothing = {
            m: torch.zeros(trials, *d.shape[-2:], dtype=torch.float64)
            for m, d in self._asked.draws.items()
        }
        state, sent = self._step(state_of(self._state, start), Tape(nothing), gradient)
        moved = torch.from_numpy(self._moved(state, sent, nothing, gradient))
        n = self._n
        return moved[:, :n], moved[:, n : n + self._width], moved[:, n + self._width :], steps

    def _parts(self, effects: Matrix) -> Effects:
        n, width = self._n, self._width
        cuts = (0, n, n + width, effects.shape[1])
        columns = effects.tocsc()
        pairs = itertools.pairwise(cuts)
        return Effects(*(sparse.csr_array(columns[:, a:b]) for a, b in pairs))

    def _of_state(self) -> tuple[Indices, Indices]:
        """Of each number of the state: its agent, and of which tensor it is."""
        agents, kinds = [], []
        for kind, tensor in enumerate(varying(self._state).values()):
            rows, each = tensor.shape[1], tensor[0].numel() // max(1, tensor.shape[1])
            agents.append(np.repeat(agents_of(rows, self._graph), each))
            kinds.append(np.full(rows * each, kind))
        return np.concatenate(agents), np.concatenate(kinds)

    def _of_draws(self, n_tensors: int) -> tuple[Indices, Indices]:
        """Of each draw: its agent, and of which name it is."""
        agents, kinds = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for kind, (name, draw) in enumerate(self._asked.draws.items(), start=n_tensors):
            known_to = self._asked.known_to.get(name)
            rows, d = draw.shape[-2:]
            if known_to is None or not known_to.shape[1]:
                of_rows = agents_of(rows, self._graph)
            else:
                of_rows = known_to[:, 0].numpy()
            agents.append(np.repeat(of_rows, d))
            kinds.append(np.full(rows * d, kind))
        return np.concatenate(agents), np.concatenate(kinds)

    def _silent(self, trials: int) -> Gradient:
        return self._game.gradient(torch.zeros(trials, dtype=torch.float64))

    def _step(self, state: Any, noise: Tape, gradient: Gradient) -> tuple[Any, Messages]:
        round = self._game.defense.step(state, self._k, self._graph, gradient, noise)
        return round.state, round.sent


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
