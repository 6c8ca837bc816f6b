"""Whom one step reaches, and which agents may be moved at once without meeting.

In a step an agent's state and noise reach others over a few links alone. Agents whose footprints
do not overlap are told apart by where what they move stands, so that one trial measures all of
them: as many trials as there are colours, and not as there are agents.

Source: Curtis, Powell and Reid 1974, "On the estimation of sparse Jacobian matrices".
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpaudit.graphs.graph import Graph

MOST_PAIRS = 2 * 10**7  # of agents that meet: 240 MB

Indices = NDArray[np.int64]


class NotLocal(Exception):
    """A step, or a view of it, that has no small parts; the reason is its text."""


class Footprints(NamedTuple):
    """Of all agents of a graph."""

    colours: Indices  # [n_agents]: agents of one colour do not meet
    owners: Indices  # [n_colours, n_agents]: the agent of that colour that reaches it, or -1

    @property
    def n_colours(self) -> int:
        return len(self.owners)


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
    colours = _coloured(meets)
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


def _coloured(meets: sparse.csr_array) -> Indices:
    """Each agent in turn has the first colour that none it meets has, [n_agents]."""
    colours = np.full(meets.shape[0], -1)
    for i, (start, end) in enumerate(zip(meets.indptr[:-1], meets.indptr[1:], strict=True)):
        taken = set(colours[meets.indices[start:end]].tolist())
        colours[i] = next(c for c in range(len(taken) + 1) if c not in taken)
    return colours
