"""Whom one step reaches, and which of a state's numbers and draws can be moved in one trial.

In a step an agent's state and noise reach others over a few links alone. Agents whose footprints
do not overlap are told apart by where what they move stands, so that one trial measures all of
them: as many trials as there are colours, and not as there are agents.

Source: Curtis, Powell and Reid 1974, "On the estimation of sparse Jacobian matrices".
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import sparse

from dpaudit.game.matrices import Array, Indices, NotLocal
from dpaudit.graphs.graph import Graph

HOPS = (1, 2, 3)  # that a step may reach, tried in turn
MOST_PAIRS = 2 * 10**7  # of agents that meet: 240 MB


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
    widest = int(np.diff(one.indptr).max()) * int(np.diff(other.indptr).max())
    if widest * one.shape[0] > MOST_PAIRS:
        raise NotLocal("a step of an agent reaches too many others")
    product = sparse.csr_array(one @ other)
    product.data[:] = 1
    return product


class Units(NamedTuple):
    """All that is moved, one unit each: numbers of a state, inputs, draws of noise."""

    agents: Indices  # [n_units]: at which agent each stands
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
