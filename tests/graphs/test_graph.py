from typing import get_args

import networkx
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.stats import binom, chi2

from dpaudit.errors import ConfigError
from dpaudit.files.options import FixedGraph, GraphOptions, graph_options
from dpaudit.graphs.graph import Graph, Network, build_graph
from dpaudit.graphs.mixing import graph_names, metropolis, positions
from tests.some_fast import fast_if

FALSE_FAILURE = 1e-9  # probability that a correct random graph fails a test, over fresh seeds
SYMMETRIC = {
    *("ring", "bipartite", "hub2", "complete", "erdos-renyi", "k-regular", "power-law", "path"),
    "star",
}
OPTIONS = {"d-out": {"d": 3}, "erdos-renyi": {"p": 0.4}, "k-regular": {"k": 3}}
SIZES = [4, 6, 8, 10, 20, 100]
PAIRED = [(name, n) for name in graph_names() if name != "server" for n in SIZES]


def network(name: str, n: int, seed: int = 0, **options: object) -> Network:
    chosen = graph_options(name, **{**OPTIONS.get(name, {}), **options})
    return build_graph(chosen, n, np.random.default_rng(seed))


def sent_by_definition(name: str, n: int, t: int) -> list[set[int]]:
    """The receivers of every agent in round t + 1, itself included, as the papers say it."""
    half = n // 2
    match name:
        case "ring":
            return [{i, (i - 1) % n, (i + 1) % n} for i in range(n)]
        case "directed-ring":
            return [{i, (i + 1) % n} for i in range(n)]
        case "bipartite":
            return [{i, *(range(half, n) if i < half else range(half))} for i in range(n)]
        case "complete":
            return [set(range(n)) for _ in range(n)]
        case "d-out":
            return [{(i + h) % n for h in range(3)} for i in range(n)]
        case "exponential":
            period = int(np.floor(np.log2(n - 1))) + 1
            return [{i, (i + 2 ** (t % period)) % n} for i in range(n)]
        case "half-exponential":
            period = int(np.floor(np.log2(n)))
            return [{(i + j * 2 ** (t % period)) % n for j in range(half)} for i in range(n)]
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name",
    ["ring", "directed-ring", "bipartite", "complete", "d-out", "exponential", "half-exponential"],
)
@pytest.mark.parametrize("n", SIZES)
def test_weights_are_shared_equally_among_receivers(name: str, n: int) -> None:
    graphs = network(name, n)
    for t in range(2 * graphs.period):
        W = np.zeros((n, n))
        for j, receivers in enumerate(sent_by_definition(name, n, t)):
            W[list(receivers), j] = 1 / len(receivers)
        np.testing.assert_allclose(graphs.at(t + 1).W.numpy(), W, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("name", "n"), PAIRED)
def test_a_mixing_matrix_has_the_sums_and_symmetry_it_claims(name: str, n: int) -> None:
    for graph in network(name, n).graphs:
        W = graph.W
        assert W.dtype == torch.float64
        assert (W.sum(0) - 1).abs().max() <= 1e-12
        assert W.min() >= 0
        assert W.diagonal().min() > 0
        assert graph.column_stochastic
        assert graph.doubly_stochastic == bool((W.sum(1) - 1).abs().max() <= 1e-12)
        assert graph.symmetric == torch.equal(W, W.T)
        if name in SYMMETRIC:
            assert graph.symmetric
        if name != "uniform-out":
            assert graph.doubly_stochastic


@pytest.mark.parametrize(("name", "n"), [pair for pair in PAIRED if pair[0] != "pairwise"])
def test_everybody_reaches_everybody_over_one_period(name: str, n: int) -> None:
    graphs = network(name, n)
    union = sum(g.W for g in graphs.graphs) > 0
    reached = torch.matrix_power(union.double(), n) > 0
    assert reached.all()
    assert graphs.strongly_connected


@pytest.mark.parametrize(("name", "n"), PAIRED)
def test_push_sum_weights_keep_their_sum(name: str, n: int) -> None:
    graphs, a = network(name, n), torch.ones(n, 1, dtype=torch.float64)
    for k in range(1, 51):
        a = graphs.at(k).mix(a)
        assert abs(a.sum().item() - n) <= 1e-11
    if name == "uniform-out":
        assert (a - 1).abs().max() > 1e-3
    else:
        assert (a - 1).abs().max() <= 1e-12


@pytest.mark.parametrize("n", [4, 8, 32])
def test_one_period_of_the_exponential_graph_averages_exactly(n: int) -> None:
    graphs, X = network("exponential", n), torch.randn(n, 5, dtype=torch.float64)
    mixed = X
    for k in range(1, graphs.period + 1):
        mixed = graphs.at(k).mix(mixed)
    assert graphs.period == np.log2(n)
    torch.testing.assert_close(mixed, X.mean(0).expand(n, 5), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("n", "period"), [(10, 4), (20, 5), (2, 1), (3, 2), (9, 4)])
def test_the_period_of_the_exponential_graph_is_published(n: int, period: int) -> None:
    assert network("exponential", n).period == period


def test_half_exponential_of_eight_sends_to_published_sets() -> None:
    graphs = network("half-exponential", 8)
    sent = [set(g.W[:, 0].nonzero().flatten().tolist()) for g in graphs.graphs]
    assert sent == [{0, 1, 2, 3}, {0, 2, 4, 6}, {0, 4}]


def test_hub2_has_the_weights_of_the_public_code() -> None:
    W = network("hub2", 10).at(1).W
    assert W[0, 8] == W[9, 3] == 0.11
    assert W[8, 9] == W[0, 1] == 0
    torch.testing.assert_close(W[0, 0].item(), 1 - 2 * 0.11)
    torch.testing.assert_close(W[9, 9].item(), 1 - 8 * 0.11)


@pytest.mark.parametrize("n", [3, 6, 10, 31])
def test_the_spectrum_of_the_ring_is_the_closed_form(n: int) -> None:
    graph = network("ring", n).at(1)
    eigenvalues = np.sort((1 + 2 * np.cos(2 * np.pi * np.arange(n) / n)) / 3)
    second = np.sort(np.abs(eigenvalues))[-2]
    assert graph.spectral_gap == pytest.approx(1 - second, abs=1e-12)
    assert graph.smallest_eigenvalue == pytest.approx(eigenvalues[0], abs=1e-12)


def test_the_spectral_gap_of_a_directed_ring_is_the_closed_form() -> None:
    gap = network("directed-ring", 10).at(1).spectral_gap
    assert gap == pytest.approx(1 - np.cos(np.pi / 10), abs=1e-12)  # |1 + exp(2 pi i / 10)| / 2


def test_a_lazy_matrix_is_halfway_to_the_identity() -> None:
    plain, lazy = network("ring", 6).at(1), network("ring", 6, lazy=True).at(1)
    torch.testing.assert_close(lazy.W, (torch.eye(6, dtype=torch.float64) + plain.W) / 2)
    assert plain.smallest_eigenvalue == pytest.approx(-1 / 3)
    assert lazy.smallest_eigenvalue == pytest.approx(1 / 3)


def test_metropolis_weights_of_a_small_graph_are_those_by_hand() -> None:
    adjacency = np.zeros((4, 4), dtype=bool)  # a triangle 0, 1, 2 and a tail 2 - 3
    for i, j in [(0, 1), (0, 2), (1, 2), (2, 3)]:
        adjacency[i, j] = adjacency[j, i] = True
    expected = np.array([[5, 4, 3, 0], [4, 5, 3, 0], [3, 3, 3, 3], [0, 0, 3, 9]]) / 12
    np.testing.assert_allclose(
        metropolis(csr_array(adjacency)).toarray(), expected, rtol=0, atol=1e-15
    )


def test_edges_are_ordered_by_receiver_then_sender() -> None:
    graph = network("uniform-out", 10).at(1)
    pairs = list(zip(graph.receivers.tolist(), graph.senders.tolist(), strict=True))
    expected = [(i, j) for i in range(10) for j in range(10) if i != j and graph.W[i, j] > 0]
    assert pairs == expected
    assert graph.n_edges == len(pairs)
    assert graph.links == [(sender, receiver) for receiver, sender in pairs]


def test_neighbours_are_those_that_send_and_those_that_receive() -> None:
    assert network("directed-ring", 6).at(1).neighbours(0) == [1, 5]
    assert network("star", 5).at(1).neighbours(0) == [1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (200,), (3, 2), (2, 3, 40)])
@pytest.mark.parametrize(("name", "n"), [("uniform-out", 9), ("k-regular", 200)])
def test_mixing_is_the_matrix_product_in_the_models_dtype(
    name: str, n: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    graph = network(name, n).at(1)
    X = torch.randn(*shape[:-1], n, shape[-1], dtype=dtype)
    mixed = graph.mix(X)
    exact = torch.einsum("ij,...jd->...id", graph.W, X.double())
    assert mixed.dtype == dtype
    assert mixed.shape == X.shape
    atol = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 0.05}[dtype]
    torch.testing.assert_close(mixed.double(), exact, rtol=0, atol=atol)


def test_a_large_graph_of_low_degree_mixes_by_its_edges_alone() -> None:
    graph = network("k-regular", 200).at(1)
    cast = graph._cast(torch.float32, torch.device("cpu"))
    assert cast.is_sparse_csr == torch.backends.mkl.is_available()
    assert cast is graph._cast(torch.float32, torch.device("cpu"))
    assert not network("erdos-renyi", 200).at(1)._cast(torch.float32, torch.device("cpu")).is_sparse


@pytest.mark.parametrize(("n", "k"), [(6, 2), (7, 4), (10, 3), (10, 9), (20, 17), (40, 5)])
def test_every_agent_of_a_regular_graph_has_k_neighbours(n: int, k: int) -> None:
    W = network("k-regular", n, k=k).at(1).W
    assert ((W > 0).sum(0) == k + 1).all()
    torch.testing.assert_close(W[W > 0], torch.full((n * (k + 1),), 1 / (k + 1)).double())


@pytest.mark.slow
def test_random_regular_graphs_are_uniform_over_all_of_them() -> None:
    """The connected 2-regular graphs of 6 agents are the 5!/2 = 60 hexagons."""
    rng, draws, seen = np.random.default_rng(20240611), 3_000, {}
    for _ in range(draws):
        links = build_graph(graph_options("k-regular", k=2), 6, rng).at(1).W > 0
        key = links.numpy().tobytes()
        seen[key] = seen.get(key, 0) + 1
    counts = np.array(list(seen.values()))
    assert len(counts) == 60
    statistic = ((counts - draws / 60) ** 2 / (draws / 60)).sum()
    assert statistic <= chi2.isf(FALSE_FAILURE, 59)


def test_erdos_renyi_links_pairs_with_probability_p() -> None:
    n, p, pairs = 200, 0.1, 200 * 199 // 2  # disconnected with probability 2e-7
    links = network("erdos-renyi", n, seed=3, p=p).at(1).n_edges / 2
    low, high = binom.isf([1 - FALSE_FAILURE / 2, FALSE_FAILURE / 2], pairs, p)
    assert low <= links <= high


def test_each_agent_of_a_power_law_brings_m_links() -> None:
    graph = network("power-law", 500, m=3).at(1)
    degrees = np.bincount(graph.senders.numpy())
    assert graph.n_edges == 2 * 3 * (500 - 3)
    assert degrees[1:].min() >= 1
    assert degrees[4:].min() == 3
    assert degrees.max() > 30  # 5 standard deviations of a Poisson degree of mean 6 are 18


def test_a_power_law_links_in_proportion_to_links() -> None:
    """With m = 1 the fourth agent joins the centre, which has 2 of 4 ends, with probability 1/2."""
    stars = sum(
        int(np.bincount(network("power-law", 4, seed, m=1).at(1).senders.numpy()).max() == 3)
        for seed in range(1000)
    )
    low, high = binom.isf([1 - FALSE_FAILURE / 2, FALSE_FAILURE / 2], 1000, 1 / 2)
    assert low <= stars <= high


def test_a_random_graph_depends_on_its_generator_alone() -> None:
    for name in ("erdos-renyi", "k-regular", "power-law", "uniform-out"):
        first, again, other = (network(name, 20, seed).at(1).W for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_strong_connectivity_agrees_with_networkx() -> None:
    rng, verdicts = np.random.default_rng(5), []
    for _ in range(60):
        links = rng.random((8, 8)) < 0.3
        W = links | np.eye(8, dtype=bool)
        graph = Graph(torch.from_numpy(W / W.sum(0)))
        expected = networkx.is_strongly_connected(
            networkx.from_numpy_array(links.T, create_using=networkx.DiGraph)
        )
        verdicts.append(expected)
        if expected:
            assert Network((graph,)).strongly_connected
        else:
            with pytest.raises(ConfigError, match="not connected"):
                Network((graph,))
    assert 10 < sum(verdicts) < 50


def test_disconnected_graphs_may_be_connected_together() -> None:
    hops = [Graph(torch.eye(4).double() / 2 + torch.eye(4).double().roll(h, 0) / 2) for h in (1, 2)]
    with pytest.raises(ConfigError, match="not connected"):
        Network((hops[1],))
    graphs = Network((hops[1], hops[0]))
    assert [graphs.at(k) for k in (1, 2, 3)] == [hops[1], hops[0], hops[1]]


@pytest.mark.parametrize(
    ("W", "said"),
    [
        (torch.eye(3), "square float64"),
        (torch.ones(2, 3).double(), "square float64"),
        (torch.tensor([[1.5, -0.5], [-0.5, 1.5]]).double(), "negative"),
        (torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double(), "positive diagonal"),
        (torch.tensor([[0.5, torch.nan], [0.5, 0.5]]).double(), "negative"),
        (torch.tensor([[0.5, 0.6], [0.4, 0.5]]).double(), "sum to 1"),
        ((torch.ones(3, 3) / 3).double(), "sum to 1"),  # built in float32: 1 + 3e-8
    ],
)
def test_a_matrix_that_mixes_nothing_is_refused(W: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Graph(W)


@pytest.mark.parametrize(
    ("name", "n", "options", "said"),
    [
        ("ring", 1, {}, "graph ring: needs at least 3 agents, got 1"),
        ("ring", 2, {}, "at least 3 agents, got 2"),
        ("pairwise", 2, {"among": "ring"}, "graph pairwise: needs at least 3 agents, got 2"),
        ("complete", 1, {}, "at least 2 agents, got 1"),
        ("bipartite", 7, {}, "even number of agents, got 7"),
        ("hub2", 3, {}, "at least 4 agents, got 3"),
        ("hub2", 102, {}, "4 to 101"),
        ("half-exponential", 3, {}, "at least 4"),
        ("d-out", 4, {"d": 5}, "d=5 needs at least 5 agents, got 4"),
        ("k-regular", 5, {"k": 3}, "even k"),
        ("k-regular", 4, {"k": 4}, "k=4 needs at least 5 agents, got 4"),
        ("power-law", 1, {"m": 3}, "m=3 needs at least 4 agents, got 1"),
        ("erdos-renyi", 5, {"p": 0.001}, "none of 1000 draws"),
    ],
)
def test_a_graph_that_does_not_exist_is_refused(
    name: str, n: int, options: dict[str, float], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        network(name, n, **options)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("rign", {}, 'graph "rign": there is none .did you mean "ring".*; known: ring, '),
        ("ring", {"p": 0.1}, 'graph "ring": p: Extra inputs are not permitted'),
        ("d-out", {"d": 1}, "d: Input should be greater than or equal to 2"),
        ("erdos-renyi", {"p": 0.0}, "p: Input should be greater than 0"),
        ("erdos-renyi", {"p": float("nan")}, "p: Input should be"),
    ],
)
def test_a_misspelt_graph_or_option_is_refused(name: str, options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        graph_options(name, **options)


def test_what_makes_no_sense_of_a_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        network("ring", 4).at(0)
    with pytest.raises(ValueError, match="symmetric"):
        _ = network("directed-ring", 4).at(1).smallest_eigenvalue
    with pytest.raises(ValueError, match="needs a generator"):
        build_graph("erdos-renyi", 10)
    with pytest.raises(ValueError, match="same agents"):
        Network((network("ring", 4).at(1), network("ring", 5).at(1)))


def test_every_graph_can_be_built_and_has_a_line() -> None:
    union = get_args(get_args(GraphOptions)[0])
    written = set(get_args(FixedGraph.model_fields["name"].annotation))
    written |= {model.model_fields["name"].default for model in union if model is not FixedGraph}
    assert written == set(graph_names())
    assert all(len(line) > 10 for line in graph_names().values())


@pytest.mark.parametrize("name", list(graph_names()))
def test_a_drawing_has_a_place_of_its_own_for_every_agent(name: str) -> None:
    places = positions(name, 10)
    assert places.shape == (10, 2)
    assert np.abs(places).max() <= 1
    assert len(np.unique(places.round(6), axis=0)) == 10


@pytest.mark.parametrize(
    "name",
    fast_if("k-regular".__ne__, ["ring", "k-regular", "exponential", "star", "path"]),
)
def test_a_graph_of_ten_thousand_takes_what_its_links_take(name: str) -> None:
    graphs = network(name, 10_000)
    graph = graphs.at(1)
    assert graph.sparse.nnz == graph.n_edges + 10_000
    assert graph.doubly_stochastic
    X = torch.randn(10_000, 2, dtype=torch.float64)
    expected = graph.sparse @ X.numpy()
    torch.testing.assert_close(graph.mix(X).numpy(), expected, rtol=0, atol=1e-14)
    agent = 77
    assert dict(graph.heard_by(agent)) == {
        j: w for j, w in enumerate(graph.sparse[[agent]].toarray().ravel().tolist()) if w
    }
    with pytest.raises(ConfigError, match="mixing matrix of 800 MB.*4096 agents at most"):
        _ = graph.W


def test_weights_of_links_are_those_of_the_matrix() -> None:
    for name in ("uniform-out", "server", "star"):
        graph = network(name, 9).at(1)
        assert torch.equal(graph.own, graph.W.diagonal())
        assert torch.equal(graph.on_links, graph.W[graph.receivers, graph.senders])
        for i in range(9):
            heard = {j: w for j, w in enumerate(graph.W[i].tolist()) if w}
            assert dict(graph.heard_by(i)) == heard


@pytest.mark.parametrize("name", ["complete", "bipartite", "half-exponential", "erdos-renyi"])
def test_too_many_links_of_many_agents_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"graph {name}: 20000 agents have .* weights, .*GB"):
        network(name, 20_000)
