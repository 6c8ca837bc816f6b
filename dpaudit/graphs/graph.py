"""Who sends to whom, and with which weights: one round as a Graph, all rounds as a Network.

``W[i, j]`` weighs agent j's message at agent i, so that gossip is ``W @ X`` with agents as rows.
Matrices are built in float64 and cast last: one built in float32 has sums that are off by 3e-8, and
trackers that must sum to zero drift away. They are held by their weights above zero (CSR), so that
a sparse graph of many agents takes what its links take.
"""

import warnings
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from dpaudit.errors import ConfigError
from dpaudit.files.options import GraphOptions, graph_options
from dpaudit.memory import size_text

from .mixing import MIXED_DENSE, Links, Matrix, connected, matrices
from .spectrum import second_largest, smallest
from .weather import Calm, unheard, weathered

TOLERANCE = 1e-12  # on sums and symmetry in float64; correct rounding leaves about n_agents * 1e-16

# Where a CSR matrix beats a dense one. Dense over CSR time on one CPU core, d = 200 to 44,000 (to
# 10,000 for the last), both precisions: 0.9 to 2.8 with 5 weights a row of 128, 1.5 to 8.1 with 11
# of 512, 1.6 to 6.7 with 33 of 1,000; but 0.8 to 3.7 with 33 of 512, 0.3 to 2.4 with 101 of 1,000.
SPARSE_DENSITY = 0.04
MOST_DENSE = 4096  # agents of which W is given as a dense matrix, 134 MB
NARROW = 16  # up to this d one product of all trials side by side beats one product per trial


@dataclass(frozen=True, eq=False)
class Graph:
    """The mixing matrix of one round, and the directed edges that it needs.

    Edges are ordered by receiver, then by sender; the self-loop is not a transmission and not an
    edge. Edge j -> i is there exactly if ``W[i, j] > 0``. With a server there is also an edge from
    it to each agent that takes a step.

    Args:
        given: W [n_agents, n_agents] in float64, as a dense tensor on the CPU or by its weights
            (scipy's CSR); entries >= 0, diagonal > 0, and columns or rows that sum to 1 within
            ``TOLERANCE``. A server's own weight may be 0.
        active: the agents that take a step in this round; None: all.
        server: the agent that holds no data and that all others talk to; None: there is none.
        slow: weights of messages that are sent in this round and mixed in a later one; None: none.
        late: of delays d = 1, 2, ...: weights of messages that were sent d rounds ago and are mixed
            in this one. With ``slow`` columns, or with ``late`` rows, of W then sum to 1.
        planned: the same round without weather; None: there is none.

    Raises:
        ValueError: ``given`` is none of these.
    """

    given: Tensor | Matrix
    active: tuple[int, ...] | None = None
    server: int | None = None
    slow: Matrix | None = None
    late: tuple[Matrix, ...] = ()
    planned: "Graph | None" = None
    _casts: dict[tuple[torch.dtype, torch.device], Tensor] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        W = self.given
        double = W.dtype == torch.float64 or W.dtype == np.float64
        if not double or W.ndim != 2 or W.shape[0] != W.shape[1] or not W.shape[0]:
            raise ValueError(f"W must be a square float64 matrix, got {W.dtype} {tuple(W.shape)}")
        entries = self.sparse.data
        if not (entries >= 0).all() or not (self.server is not None or (self.own > 0).all()):
            raise ValueError("W must have no negative entry and a positive diagonal")
        if not (self.column_stochastic or self._row_stochastic):
            off = float(np.abs(self._sent.sum(0) - 1).max())
            raise ValueError(
                f"neither columns nor rows of W sum to 1 (columns are off by {off:.1e})"
            )

    @cached_property
    def sparse(self) -> Matrix:
        """W by its weights above zero, in order of rows and then columns (CSR)."""
        W = self.given
        weights = sparse.csr_array(W.numpy() if isinstance(W, Tensor) else W)
        weights.sum_duplicates()
        weights.eliminate_zeros()
        return weights

    @property
    def _sent(self) -> Matrix:
        """W, and the weights of messages that are mixed in later rounds."""
        return self.sparse if self.slow is None else self.sparse + self.slow

    @property
    def _row_stochastic(self) -> bool:
        return _ones(sum(self.late, self.sparse).sum(1))

    @cached_property
    def W(self) -> Tensor:
        """The dense matrix, [n_agents, n_agents] in float64, for graphs of few agents.

        ``own``, ``on_links`` and ``heard_by`` give its entries whatever their number.

        Raises:
            ConfigError: there are more than ``MOST_DENSE`` agents.
        """
        if isinstance(self.given, Tensor):
            return self.given
        n = self.n_agents
        if n > MOST_DENSE:
            raise ConfigError(
                "DPA022",
                f"graph: {n} agents have a mixing matrix of {size_text(8 * n * n)}, which is given "
                f"whole to {MOST_DENSE} agents at most; this method needs it: audit fewer agents",
            )
        return torch.from_numpy(self.sparse.toarray())

    @cached_property
    def own(self) -> Tensor:
        """The weight of each agent's own message, W_ii, [n_agents]."""
        return torch.from_numpy(self.sparse.diagonal())

    @cached_property
    def on_links(self) -> Tensor:
        """The weight of each edge's message at its receiver, [n_edges]."""
        if self.server is None:
            sent = self._sent
            rows, columns = sent.nonzero()
            return torch.from_numpy(sent.data[rows != columns])
        i, j = (ends.numpy().copy() for ends in (self.receivers, self.senders))
        return torch.from_numpy(np.asarray(self.sparse[i, j]).ravel())

    def heard_by(self, agent: int) -> list[tuple[int, float]]:
        """The agents whose messages ``agent`` weighs, itself among them, and their weights."""
        row = slice(*self.sparse.indptr[agent : agent + 2])
        return list(
            zip(self.sparse.indices[row].tolist(), self.sparse.data[row].tolist(), strict=True)
        )

    def afresh(self) -> "Graph":
        """The same graph, whose casts and lists go when it goes.

        Kept for each of thousands of rounds, they would lie in memory between the large tensors of
        these rounds, and what was freed around them would be too small for the next: a run of 8
        agents on a graph that is drawn in every round grew by a model of each agent a round.
        """
        graph = copy(self)
        object.__setattr__(graph, "_casts", {})
        return graph

    @property
    def n_agents(self) -> int:
        return int(self.given.shape[0])

    @property
    def n_edges(self) -> int:
        return len(self.senders)

    @property
    def links(self) -> list[tuple[int, int]]:
        """(sender, receiver) of every edge."""
        return list(zip(self.senders.tolist(), self.receivers.tolist(), strict=True))

    @cached_property
    def _edges(self) -> Tensor:
        linked = self._sent
        if self.server is not None:
            to = np.array(self._acting)
            down = np.ones(len(to)), (to, np.full_like(to, self.server))
            linked = linked + sparse.csr_array(down, shape=linked.shape)
        receivers, senders = linked.nonzero()  # row-major: by receiver, then sender
        apart = senders != receivers
        return torch.from_numpy(np.stack([senders[apart], receivers[apart]]).astype(np.int64))

    @property
    def _acting(self) -> tuple[int, ...]:
        return tuple(range(self.n_agents)) if self.active is None else self.active

    def acting(self, like: Tensor) -> Tensor:
        """1 for the agents that take a step in this round, 0 for others, [n_agents, 1]."""
        there = torch.zeros(self.n_agents, 1, dtype=like.dtype, device=like.device)
        there[list(self._acting)] = 1
        return there

    @cached_property
    def pull(self) -> "Graph":
        """The same edges with weights that sum to 1 at each receiver (row-stochastic)."""
        sums = self.sparse.sum(1)
        return self if _ones(sums) else Graph(_divided(self.sparse, sums, 0), self.active)

    @cached_property
    def push(self) -> "Graph":
        """The same edges with weights that sum to 1 at each sender (column-stochastic)."""
        if self.column_stochastic:
            return self
        return Graph(_divided(self.sparse, self.sparse.sum(0), 1), self.active)

    @cached_property
    def senders(self) -> Tensor:
        """[n_edges] int64."""
        return self._edges[0]

    @cached_property
    def receivers(self) -> Tensor:
        """[n_edges] int64."""
        return self._edges[1]

    @cached_property
    def column_stochastic(self) -> bool:
        """Columns sum to 1: sums over agents are kept, which push-sum needs."""
        return _ones(self._sent.sum(0))

    @cached_property
    def doubly_stochastic(self) -> bool:
        """Columns and rows sum to 1."""
        return self.column_stochastic and self._row_stochastic

    @cached_property
    def symmetric(self) -> bool:
        if self.slow is not None or self.late:
            return False
        apart = abs(self.sparse - self.sparse.T)
        return bool(apart.nnz == 0 or apart.max() <= TOLERANCE)

    @cached_property
    def spectral_gap(self) -> float:
        """1 - |second largest eigenvalue|: 1 averages in one round, 0 never does by itself."""
        return 1 - second_largest(self.sparse, self.symmetric)

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """The smallest eigenvalue of a symmetric W, in (-1, 1].

        Raises:
            ValueError: W is not symmetric, so its eigenvalues have no order.
        """
        if not self.symmetric:
            raise ValueError("smallest_eigenvalue needs a symmetric mixing matrix")
        return smallest(self.sparse)

    def neighbours(self, agent: int) -> list[int]:
        """Agents that ``agent`` shares an edge with, in either direction, in ascending order."""
        row = slice(*self._near.indptr[agent : agent + 2])
        found: list[int] = self._near.indices[row].tolist()
        return found

    @cached_property
    def _near(self) -> Matrix:
        """Who shares an edge with whom."""
        one, other = self.senders.numpy(), self.receivers.numpy()
        ends = np.concatenate([one, other]), np.concatenate([other, one])
        near = sparse.csr_array((np.ones(2 * len(one)), ends), shape=self.sparse.shape)
        near.sum_duplicates()
        return near

    def mix(self, X: Tensor) -> Tensor:
        """One gossip step, W @ X, in the dtype and on the device of X [..., n_agents, d]."""
        W = self._cast(X.dtype, X.device)
        if X.ndim == 2 or not (W.is_sparse_csr or X.shape[-1] <= NARROW):
            return W @ X
        rows = X.movedim(-2, 0)  # all trials side by side, one product for all
        return (W @ rows.flatten(1)).view_as(rows).movedim(0, -2)

    def mix_late(self, past: Tensor) -> Tensor:
        """What messages of earlier rounds add to this one, [..., n_agents, d].

        Args:
            past: [..., n_agents, delay, d]: what agents sent one round ago, two rounds ago, ...
        """
        mixed = torch.zeros_like(past[..., 0, :])
        for d, W in enumerate(self.late):
            i, j = (torch.from_numpy(ends.astype(np.int64)).to(past.device) for ends in W.nonzero())
            w = torch.from_numpy(W.data).to(past)[:, None]
            mixed = mixed.index_add(-2, i, w * past[..., d, :][..., j, :])
        return mixed

    def _cast(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        if (dtype, device) not in self._casts:
            with torch.inference_mode(False):  # kept for callers that differentiate as well
                W = _csr(self.sparse) if self._worth_csr(dtype, device) else self.W
                self._casts[dtype, device] = W.to(device=device, dtype=dtype)
        return self._casts[dtype, device]

    def _worth_csr(self, dtype: torch.dtype, device: torch.device) -> bool:
        if self.n_agents > MOST_DENSE:
            return True
        return (
            device.type == "cpu"
            and dtype in (torch.float32, torch.float64)
            and torch.backends.mkl.is_available()  # without it torch has no CSR product
            and self.n_agents >= MIXED_DENSE
            and self.n_edges + self.n_agents <= SPARSE_DENSITY * self.n_agents**2
        )


def _ones(sums: NDArray[np.float64]) -> bool:
    return bool(np.abs(sums - 1).max() <= TOLERANCE)


def _divided(W: Matrix, by: NDArray[np.float64], axis: Literal[0, 1]) -> Matrix:
    """Each row (axis 0) or column (1) divided by a number of its own."""
    places = W.nonzero()[axis]
    return sparse.csr_array((W.data / by[places], W.indices, W.indptr), shape=W.shape)


def _csr(W: Matrix) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        rows, columns = (torch.from_numpy(of.astype(np.int64)) for of in (W.indptr, W.indices))
        weights = torch.from_numpy(W.data)
        return torch.sparse_csr_tensor(rows, columns, weights, W.shape, check_invariants=True)


@dataclass(frozen=True, eq=False)
class Network:
    """The graphs of all rounds: ``graphs`` over and over.

    Args:
        drawn: whether they were drawn anew for every round. Who knows the algorithm does not know
            the draws, and some rounds may be too few to connect everybody.
        weather: what these graphs are a draw of; None: there is no weather.

    Raises:
        ValueError: no graph, or graphs of different sizes.
        ConfigError: over a whole period, some agent cannot reach some other.
    """

    graphs: tuple[Graph, ...]
    drawn: bool = False
    weather: "Weather | None" = None

    def __post_init__(self) -> None:
        if len({g.n_agents for g in self.graphs}) != 1:
            raise ValueError("a network needs at least one graph, all with the same agents")
        if not (self.drawn or self.strongly_connected):
            raise ConfigError(
                "DPA038", "the graph is not connected: some agent never hears of some other"
            )

    @property
    def n_agents(self) -> int:
        return self.graphs[0].n_agents

    @property
    def period(self) -> int:
        return len(self.graphs)

    @cached_property
    def strongly_connected(self) -> bool:
        """Whether everybody reaches everybody over the edges of one period together."""
        return connected(self.links)

    @property
    def links(self) -> Links:
        """[receiver, sender]: the edges of one period."""
        pairs = torch.cat([torch.stack([g.receivers, g.senders]) for g in self.graphs], dim=1)
        there = np.ones(pairs.shape[1], dtype=bool), (pairs[0].numpy(), pairs[1].numpy())
        return sparse.csr_array(there, shape=(self.n_agents, self.n_agents))

    @property
    def calm(self) -> "Network":
        """The same without weather."""
        return self if self.weather is None else self.weather.calm

    @property
    def all_heard(self) -> "Network":
        """The same steps where all messages arrive at once: as without weather, but who acts."""
        graphs = ((graph.planned or graph).sparse for graph in self.graphs)
        active = (graph.active for graph in self.graphs)
        return Network(tuple(map(Graph, graphs, active)), drawn=self.drawn)

    @property
    def delay(self) -> int:
        """Rounds that a message takes at most."""
        return max(len(graph.late) for graph in self.graphs)

    @property
    def server(self) -> int | None:
        """The agent that holds no data and that all others talk to; None: there is none."""
        return self.graphs[0].server

    def at(self, round: int) -> Graph:
        """The graph of a round; rounds count from 1."""
        if round < 1:
            raise ValueError(f"rounds count from 1, got {round}")
        graph = self.graphs[(round - 1) % self.period]
        return graph.afresh() if self.drawn and self.period > 1 else graph

    def only(self, round: int) -> "Network":
        """One round by itself, which need not connect everybody."""
        return Network((self.at(round),), drawn=True)


@dataclass(frozen=True, eq=False)
class Weather:
    """What the rounds of a run are a draw of: a network, and what befalls it."""

    options: GraphOptions
    calm: Network
    n_rounds: int

    def draw(self, rng: np.random.Generator) -> Network:
        """One run's rounds.

        Raises:
            ConfigError: there can be none (``weather.weathered``), or in the whole run some agent
                never hears of some other, though without weather it does.
        """
        calm = [Calm(graph.sparse, graph.active) for graph in self.calm.graphs]
        rounds = weathered(self.options, calm, self.n_rounds, rng)
        graphs = tuple(
            Graph(r.W, r.active, None, r.slow, r.late, self.calm.at(k))
            for k, r in enumerate(rounds, start=1)
        )
        found = Network(graphs, drawn=True, weather=self)
        if not (self.calm.drawn or found.strongly_connected):
            agent, other = unheard(found.links) or (0, 0)
            raise ConfigError(
                "DPA038",
                f"graph {self.options.name}: in this weather agent {agent} never hears of agent "
                f"{other} in {self.n_rounds} rounds, though without it it does",
                "lower loss or churn, take more rounds, or another seed",
            )
        return found


def build_graph(
    graph: str | GraphOptions,
    n_agents: int,
    generator: np.random.Generator | None = None,
    n_rounds: int = 1,
    weather: np.random.Generator | None = None,
) -> Network:
    """The network of this name, or of these options, for ``n_agents`` agents.

    Args:
        graph: a name stands for that graph with its default options.
        n_agents: at least 2.
        generator: needed by the random graphs alone. Most are drawn once for the whole run.
        n_rounds: of the run, for graphs that are drawn anew in every round, and for weather.
        weather: needed if messages get lost or late, or agents stay away or are slow.

    Raises:
        ConfigError: no such graph, or there is none with these options for ``n_agents``.
        ValueError: there is weather, and nothing to draw it from.
    """
    options = graph_options(graph) if isinstance(graph, str) else graph
    weights = matrices(options, n_agents, generator, n_rounds)
    graphs = tuple(Graph(m.W, m.active, m.server) for m in weights)
    network = Network(graphs, drawn=options.is_redrawn)
    if not options.has_weather:
        return network
    if weather is None:
        raise ValueError(f"graph {options.name} has weather: build needs a generator to draw it")
    return Weather(options, network, n_rounds).draw(weather)
