"""Graphs that are drawn anew in every round, servers, and push and pull weights of one graph."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import Graph, Network, build_graph

FALSE_FAILURE = 1e-9  # probability that a correct random graph fails a test, over fresh seeds


def drawn(name: str, n: int, n_rounds: int, seed: int = 0, **options: object) -> Network:
    chosen = graph_options(name, **options)
    return build_graph(chosen, n, np.random.default_rng(seed), n_rounds)


def test_one_agent_of_each_round_averages_with_one_neighbour() -> None:
    network = drawn("pairwise", 6, 600, among="ring")
    assert network.drawn
    assert network.period == 600
    for graph in network.graphs:
        (active,) = graph.active
        other = next(j for j in graph.neighbours(active))
        assert (other - active) % 6 in (1, 5)
        expected = torch.eye(6, dtype=torch.float64)
        expected[[active, active, other, other], [active, other, active, other]] = 0.5
        assert torch.equal(graph.W, expected)
        assert graph.acting(graph.W).flatten().tolist() == [float(i == active) for i in range(6)]
    first = sum(graph.active == (0,) for graph in network.graphs)
    assert binomtest(first, 600, 1 / 6).pvalue > FALSE_FAILURE


def test_an_erdos_renyi_graph_is_drawn_anew_if_asked() -> None:
    network = drawn("erdos-renyi", 8, 200, p=0.3, redrawn=True)
    links = sum(graph.n_edges for graph in network.graphs) // 2
    assert binomtest(links, 200 * 28, 0.3).pvalue > FALSE_FAILURE
    assert not torch.equal(network.at(1).W, network.at(2).W)
    assert all(graph.doubly_stochastic and graph.symmetric for graph in network.graphs)
    same = drawn("erdos-renyi", 8, 200, p=0.3, redrawn=True)
    assert all(torch.equal(a.W, b.W) for a, b in zip(network.graphs, same.graphs, strict=True))


def test_a_server_averages_over_those_that_take_part() -> None:
    network = drawn("server", 5, 40, participation=0.5)
    assert network.server == 0
    for graph in network.graphs:
        assert len(graph.active) == 2
        assert 0 not in graph.active
        X = torch.arange(5, dtype=torch.float64)[:, None]
        mean = sum(graph.active) / 2
        assert graph.mix(X).flatten().tolist() == pytest.approx([mean, 1, 2, 3, 4])
        up = {(i, 0) for i in graph.active}
        assert set(graph.links) == up | {(0, i) for i in graph.active}
    assert len({graph.active for graph in network.graphs}) > 1


def test_all_take_part_if_no_share_is_asked() -> None:
    network = build_graph("server", 4)
    assert network.period == 1
    assert network.at(7).active == (1, 2, 3)
    assert not network.drawn


def test_weights_of_a_directed_graph_push_and_pull() -> None:
    W = torch.tensor([[0.5, 0, 0.3], [0.5, 0.5, 0.3], [0, 0.5, 0.4]], dtype=torch.float64)
    graph = Graph(W)
    assert graph.push is graph
    rows = graph.pull.W
    assert torch.allclose(rows.sum(1), torch.ones(3, dtype=torch.float64))
    assert torch.equal(rows > 0, W > 0)
    assert graph.pull.links == graph.links
    assert torch.allclose(graph.pull.push.W.sum(0), torch.ones(3, dtype=torch.float64))
    both = build_graph("ring", 5).at(1)
    assert both.pull is both
    assert both.push is both


def test_what_cannot_be_drawn_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="expected at most 200 rounds"):
        drawn("erdos-renyi", 1000, 201, redrawn=True)
    with pytest.raises(ConfigError, match="expected at most 66666 rounds"):
        drawn("pairwise", 1000, 66_667)
    with pytest.raises(ConfigError, match="leave lazy out"):
        drawn("server", 4, 2, lazy=True)
    with pytest.raises(ConfigError, match="among"):
        graph_options("pairwise", among="hub2")


def test_what_a_drawn_round_derives_of_its_graph_goes_with_it() -> None:
    """Kept, it fragments memory: a run of thousands of rounds grew by a model a round."""
    network = drawn("pairwise", 6, 50)
    before = [set(vars(graph)) for graph in network.graphs]
    for k in range(1, 51):
        graph = network.at(k)
        mixed = graph.mix(torch.ones(6, 3))  # whose cast it keeps
        assert torch.allclose(mixed, torch.ones(6, 3))
        assert graph.n_edges == 2
    assert [set(vars(graph)) for graph in network.graphs] == before
    assert all(not graph._casts for graph in network.graphs)
