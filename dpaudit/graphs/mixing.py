"""Mixing matrices by name, in float64: where every graph that an audit can name is defined.

Agents are indexed modulo n; ``W[i, j]`` weighs agent j's message at agent i. ``positions``
is where the agents of a graph are drawn.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dpaudit.errors import ConfigError
from dpaudit.files.options import (
    DOutGraph,
    ErdosRenyiGraph,
    GraphOptions,
    PairwiseGraph,
    PowerLawGraph,
    RegularGraph,
    ServerGraph,
    UniformOutGraph,
)
from dpaudit.memory import size_text

MOST_WEIGHTS = 2 * 10**8  # of graphs that are drawn anew in every round
MOST_LINKED = 4096**2  # weights of one round; more agents need a sparser graph
MIXED_DENSE = 128  # agents below which a product takes the whole matrix
DRAWN_AT_ONCE = 10**6  # numbers that decide of pairs
RESAMPLES = 1_000  # random graphs drawn before giving up on a connected one

Matrix: TypeAlias = sparse.csr_array  # [n_agents, n_agents] float64, by its weights above zero
Links: TypeAlias = sparse.csr_array  # [receiver, sender] bool
_LEAST = {"ring": 3, "hub2": 4, "half-exponential": 4}  # agents; 2 of the others
_DRAWN = {
    "pairwise": "random in every round: one agent, drawn at random, averages with a neighbour",
    "server": "agent 0 is a server without data that averages what agents send, drawn or all",
}


class Weights(NamedTuple):
    """One round's mixing matrix, who takes a step in it, and the server if there is one."""

    W: Matrix  # [n_agents, n_agents]
    active: tuple[int, ...] | None = None
    server: int | None = None


def matrices(
    options: GraphOptions,
    n_agents: int,
    generator: np.random.Generator | None = None,
    n_rounds: int = 1,
) -> list[Weights]:
    """The mixing matrices of one period, [n_agents, n_agents] each, of the graph of these options.

    The period of a graph that is drawn anew in every round is ``n_rounds``.

    Raises:
        ConfigError: there is no graph with these options for ``n_agents`` agents.
        ValueError: the graph is random and there is no generator.
    """
    of_it, least = _least_agents(options)
    if n_agents < least:
        raise ConfigError(
            "DPA037", f"graph {options.name}: {of_it}needs at least {least} agents, got {n_agents}"
        )
    if options.is_redrawn:
        _refuse_too_many(options, n_agents, n_rounds)
        return [_drawn(options, n_agents, generator) for _ in range(n_rounds)]
    if isinstance(options, ServerGraph):
        return [_served(options, n_agents, generator)]
    period = _BUILDERS[options.name](options, n_agents, generator)
    return [Weights(_lazier(options, W)) for W in period]


def _least_agents(options: GraphOptions) -> tuple[str, int]:
    """The option that asks for them, and without how many agents there is no such graph."""
    match options:
        case DOutGraph(d=d):
            return f"d={d} ", max(2, d)
        case RegularGraph(k=k):
            return f"k={k} ", k + 1
        case PowerLawGraph(m=m):
            return f"m={m} ", m + 1
        case PairwiseGraph(among=among):
            return "", _LEAST.get(among, 2)
    return "", _LEAST.get(options.name, 2)


def _lazier(options: GraphOptions, W: Matrix) -> Matrix:
    """(I + W) / 2 if the graph is lazy."""
    return (sparse.eye_array(W.shape[0], format="csr") + W) / 2 if options.lazy else W


def _refuse_dense(options: GraphOptions, n: int, weights: float) -> None:
    """Stops graphs with too many links of so many agents, before they are made."""
    if weights > MOST_LINKED:
        raise ConfigError(
            "DPA022",
            f"graph {options.name}: {n} agents have {weights:.2g} weights, "
            f"{size_text(int(12 * weights))} for each round of them; expected {MOST_LINKED:.2g} at "
            "most: fewer agents, or a sparser graph such as ring, k-regular or exponential",
        )


def _refuse_too_many(options: GraphOptions, n_agents: int, n_rounds: int) -> None:
    dense = isinstance(options, ErdosRenyiGraph) or n_agents < MIXED_DENSE
    of_a_round = n_agents**2 if dense else 3 * n_agents  # pairs and servers leave most as they are
    if n_rounds * of_a_round > MOST_WEIGHTS:
        fit = MOST_WEIGHTS // of_a_round
        raise ConfigError(
            "DPA022",
            f"graph {options.name}: {n_rounds} rounds of {n_agents} agents are too many weights to "
            f"draw anew in every round; expected at most {fit} rounds",
        )


def _drawn(options: GraphOptions, n_agents: int, generator: np.random.Generator | None) -> Weights:
    """One round's graph of those that are drawn anew in every round."""
    rng = _needed(options, generator)
    if isinstance(options, ServerGraph):
        return _served(options, n_agents, rng)
    if isinstance(options, PairwiseGraph):
        return _pair(options, n_agents, rng)
    assert isinstance(options, ErdosRenyiGraph)
    return Weights(_lazier(options, metropolis(_linked(options.p, n_agents, rng))))


def _pair(options: PairwiseGraph, n: int, rng: np.random.Generator) -> Weights:
    active = int(rng.integers(n))
    near = np.arange(n)
    if options.among != "complete":
        (among,) = _BUILDERS[options.among](options, n, rng)
        near = among.indices[among.indptr[active] : among.indptr[active + 1]]
    near = near[near != active]
    pair = active, int(rng.choice(near))
    return Weights(_lazier(options, metropolis(_linked_at(pair, pair[::-1], n))), (active,))


def _served(options: ServerGraph, n: int, generator: np.random.Generator | None) -> Weights:
    """The server's row averages over the participating agents; the others keep what they have."""
    if options.lazy:
        raise ConfigError(
            "DPA005", "graph server: an average of a server is not lazy", "leave lazy out"
        )
    some = max(1, round(options.participation * (n - 1)))
    chosen = np.arange(1, n)
    if some < n - 1:
        chosen = np.sort(_needed(options, generator).permutation(chosen)[:some])
    others = np.arange(1, n)
    rows = np.concatenate([np.zeros_like(chosen), others])
    weights = np.concatenate([np.full(some, 1.0 / some), np.ones(n - 1)])
    W = sparse.csr_array((weights, (rows, np.concatenate([chosen, others]))), shape=(n, n))
    return Weights(W, tuple(chosen.tolist()), 0)


def graph_names() -> dict[str, str]:
    """Every graph by name, with one line about it."""
    fixed = {name: (builder.__doc__ or "").splitlines()[0] for name, builder in _BUILDERS.items()}
    return fixed | _DRAWN


def metropolis(adjacency: Links) -> Matrix:
    """Metropolis-Hastings weights: W_ij = 1 / (1 + max(d_i, d_j)) on edges, the rest on W_ii.

    Args:
        adjacency: [n_agents, n_agents], symmetric; its diagonal is ignored.

    Returns:
        [n_agents, n_agents], symmetric, doubly stochastic, with a positive diagonal.
    """
    rows, columns = adjacency.nonzero()
    apart = rows != columns
    rows, columns, n = rows[apart], columns[apart], adjacency.shape[0]
    degree = np.bincount(rows, minlength=n)
    weights = 1.0 / (1.0 + np.maximum(degree[rows], degree[columns]))
    W = sparse.csr_array((weights, (rows, columns)), shape=(n, n))
    return sparse.csr_array(W + sparse.diags_array(1.0 - W.sum(1)))


def _uniform(links: Links) -> Matrix:
    """Every agent shares its message equally among its receivers and itself: columns sum to 1."""
    n = links.shape[0]
    out = sparse.csr_array(links + sparse.eye_array(n, dtype=bool))
    rows, columns = out.nonzero()
    heard = 1.0 / np.bincount(columns, minlength=n)
    return sparse.csr_array((heard[columns], (rows, columns)), shape=(n, n))


def _linked_at(receivers: ArrayLike, senders: ArrayLike, n: int) -> Links:
    there = np.ones(np.shape(receivers), dtype=bool)
    links: Links = sparse.csr_array((there, (receivers, senders)), shape=(n, n))
    links.sum_duplicates()
    return links


def _circulant(options: GraphOptions, hops: Sequence[int], n: int) -> Matrix:
    """Agent j sends to j + h for every hop h, modulo n, and to itself."""
    _refuse_dense(options, n, n * (len(hops) + 1))
    return _uniform(_ahead(hops, n))


def _ahead(hops: Sequence[int], n: int) -> Links:
    """From each agent j to j + h for every hop h, modulo n."""
    h, j = np.repeat(hops, n), np.tile(np.arange(n), len(hops))
    return _linked_at((j + h) % n, j, n)


def connected(links: Links) -> bool:
    parts, _ = connected_components(links, directed=True, connection="strong")
    return bool(parts == 1)


def _ring(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """undirected circle, all weights 1/3"""
    return [_circulant(options, [-1, 1], n)]


def _directed_ring(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """every agent sends to the next one, weights 1/2"""
    return [_circulant(options, [1], n)]


def _bipartite(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """complete bipartite graph of two halves, all weights 1 / (n/2 + 1)"""
    if n % 2:
        raise ConfigError(
            "DPA037", f"graph bipartite: two equal halves need an even number of agents, got {n}"
        )
    _refuse_dense(options, n, n * (n / 2 + 1))
    first = np.arange(n) < n // 2
    return [_uniform(sparse.csr_array(first[:, None] != first))]


def _hub2(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """last two agents linked to all others, not to each other, as in the public CGA code"""
    if n > 101:
        raise ConfigError(
            "DPA037", f"graph hub2: its rounded weights are positive for 4 to 101 agents, got {n}"
        )
    hub = np.arange(n) >= n - 2
    a = (100 // (n - 1)) / 100
    W = np.where(hub[:, None] != hub, a, 0.0)
    return [sparse.csr_array(W + np.diag(1.0 - W.sum(1)))]


def _complete(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """everybody hears everybody, all weights 1/n"""
    _refuse_dense(options, n, float(n * n))
    return [sparse.csr_array(np.full((n, n), 1.0 / n))]


def _d_out(options: DOutGraph, n: int, generator: Any) -> list[Matrix]:
    """directed: every agent sends to the next d - 1 on a circle, weights 1/d"""
    return [_circulant(options, range(options.d), n)]


def _exponential(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """directed, time-varying: one receiver per round, 1, 2, 4, ... agents ahead, weights 1/2"""
    period = (n - 1).bit_length()  # floor(log2(n - 1)) + 1
    return [_circulant(options, [2**t], n) for t in range(period)]


def _half_exponential(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """directed, time-varying: every agent sends to multiples of 1, 2, 4, ... agents ahead"""
    period = n.bit_length() - 1  # floor(log2(n))
    return [_circulant(options, [j * 2**t for j in range(n // 2)], n) for t in range(period)]


def _path(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """agents in a line, Metropolis weights"""
    i, next_ = np.arange(n - 1), np.arange(1, n)
    return [metropolis(_linked_at(np.append(i, next_), np.append(next_, i), n))]


def _star(options: GraphOptions, n: int, generator: Any) -> list[Matrix]:
    """agent 0 linked to all others, Metropolis weights"""
    others = np.arange(1, n)
    centre = np.zeros_like(others)
    return [metropolis(_linked_at(np.append(centre, others), np.append(others, centre), n))]


def _erdos_renyi(
    options: ErdosRenyiGraph, n: int, generator: np.random.Generator | None
) -> list[Matrix]:
    """random: each pair linked with probability p, redrawn until connected, Metropolis weights"""
    rng = _needed(options, generator)
    _refuse_dense(options, n, options.p * n * n)
    what = f"erdos-renyi with p={options.p}"
    return [metropolis(_first_connected(lambda: _linked(options.p, n, rng), what, n))]


def _linked(p: float, n: int, rng: np.random.Generator) -> Links:
    """Each pair with probability p."""
    upper = sparse.triu(_drawn_pairs(p, n, rng), 1)
    return sparse.csr_array(upper + upper.T)


def _drawn_pairs(p: float, n: int, rng: np.random.Generator) -> Links:
    """Each ordered pair with probability p; an agent with itself too."""
    few = max(1, DRAWN_AT_ONCE // n)
    rows = (sparse.csr_array(rng.random((min(few, n - i), n)) < p) for i in range(0, n, few))
    return sparse.csr_array(sparse.vstack(list(rows)))


def _uniform_out(
    options: UniformOutGraph, n: int, generator: np.random.Generator | None
) -> list[Matrix]:
    """random, directed: each edge with probability p, only column-stochastic"""
    rng = _needed(options, generator)
    _refuse_dense(options, n, options.p * n * n)
    what = f"uniform-out with p={options.p}"
    return [_uniform(_first_connected(lambda: _drawn_pairs(options.p, n, rng), what, n))]


def _k_regular(
    options: RegularGraph, n: int, generator: np.random.Generator | None
) -> list[Matrix]:
    """random: each agent has k neighbours, connected, all weights 1 / (k + 1)"""
    k, rng = options.k, _needed(options, generator)
    if n * k % 2:
        raise ConfigError(
            "DPA037", f"graph k-regular: k={k} needs an even k * n_agents, got {n} agents"
        )
    _refuse_dense(options, n, n * (k + 1))
    # to start from: k // 2 on either side on a circle, and the opposite one for odd k
    links = _ahead([*range(-(k // 2), 0), *range(1, k // 2 + 1), *([n // 2] if k % 2 else [])], n)
    what = f"k-regular with k={k}"
    return [_uniform(_first_connected(lambda: _switched(links, rng), what, n))]


def _switched(links: Links, rng: np.random.Generator) -> Links:
    """A random graph with the same degrees: a-b, c-d become a-d, c-b; 20 attempts per edge.

    The chain is symmetric and reaches every graph of the same degrees, so its limit is uniform.
    """
    edges = [(a, b) for a, b in np.stack(links.nonzero(), axis=1).tolist() if a < b]
    linked = {*edges, *((b, a) for a, b in edges)}
    attempts = rng.integers([len(edges), len(edges), 2], size=(20 * len(edges), 3)).tolist()
    for first, second, flip in attempts:
        (a, b), (c, d) = edges[first], edges[second][:: -1 if flip else 1]
        if len({a, b, c, d}) == 4 and (a, d) not in linked and (c, b) not in linked:
            linked -= {(a, b), (b, a), (c, d), (d, c)}
            linked |= {(a, d), (d, a), (c, b), (b, c)}
            edges[first], edges[second] = (a, d), (c, b)
    receivers, senders = np.array(sorted(linked)).T
    return _linked_at(receivers, senders, links.shape[0])


def _power_law(
    options: PowerLawGraph, n: int, generator: np.random.Generator | None
) -> list[Matrix]:
    """random: each agent links to m earlier ones, by preferential attachment, Metropolis weights

    The first m + 1 agents are a star. The share of agents with k links falls as k^-3.

    Source: Barabasi and Albert 1999, "Emergence of scaling in random networks".
    """
    m, rng = options.m, _needed(options, generator)
    _refuse_dense(options, n, n * (2.0 * m + 1))
    ends = [0] * m + list(range(1, m + 1))  # each agent as often as it has links
    for i in range(m + 1, n):
        found: set[int] = set()
        while len(found) < m:
            found.add(ends[int(rng.integers(len(ends)))])
        ends += [*sorted(found), *[i] * m]
    one = np.array(ends).reshape(-1, 2, m)  # of m links each: one end, and the other
    first, second = one[:, 0].ravel(), one[:, 1].ravel()
    return [metropolis(_linked_at(np.append(first, second), np.append(second, first), n))]


def _needed(options: GraphOptions, generator: np.random.Generator | None) -> np.random.Generator:
    if generator is None:
        raise ValueError(f"graph {options.name} is random: build needs a generator")
    return generator


def _first_connected(draw: Callable[[], Links], what: str, n: int) -> Links:
    for _ in range(RESAMPLES):
        if connected(links := draw()):
            return links
    raise ConfigError(
        "DPA038",
        f"graph {what}: none of {RESAMPLES} draws for {n} agents was connected",
        "ask for more edges",
    )


_BUILDERS: dict[str, Callable[[Any, int, np.random.Generator | None], list[Matrix]]] = {
    "ring": _ring,
    "directed-ring": _directed_ring,
    "bipartite": _bipartite,
    "hub2": _hub2,
    "complete": _complete,
    "d-out": _d_out,
    "exponential": _exponential,
    "half-exponential": _half_exponential,
    "erdos-renyi": _erdos_renyi,
    "k-regular": _k_regular,
    "uniform-out": _uniform_out,
    "power-law": _power_law,
    "path": _path,
    "star": _star,
}


Points = NDArray[np.float64]  # [n_agents, 2]


def positions(name: str, n_agents: int) -> Points:
    """[n_agents, 2] coordinates in [-1, 1] to draw a graph of this name at."""
    i = np.arange(n_agents)
    if name == "bipartite":
        return _columns(i < n_agents // 2)
    if name == "hub2":
        return _columns(i < n_agents - 2)
    if name == "path":
        return np.stack([np.linspace(-1, 1, n_agents), np.zeros(n_agents)], axis=1)
    if name in ("star", "server"):
        return np.concatenate([np.zeros((1, 2)), _circle(n_agents - 1)])
    return _circle(n_agents)


def _circle(n: int) -> Points:
    """Clockwise, from the top."""
    angle = 2 * np.pi * np.arange(n) / n
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def _columns(left: NDArray[np.bool_]) -> Points:
    """Two columns, each from top to bottom."""
    out = np.empty((len(left), 2))
    for side, x in ((left, -0.6), (~left, 0.6)):
        out[side, 0] = x
        out[side, 1] = np.linspace(1, -1, side.sum() + 2)[1:-1]
    return out
