"""Sparse accounting of one adversary: the figures of the dense algebra, and bounds on errors."""

from itertools import product

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import sparse

from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.network import local
from dpaudit.game.network.accounting import network_mu
from dpaudit.game.network.gossip import Schema
from dpaudit.game.network.local import LocalMu, local_mu
from dpaudit.graphs.graph import Network, build_graph

GRAPHS = {"ring": {}, "k-regular": {"k": 4}, "power-law": {}, "exponential": {}}
SCHEMAS: tuple[Schema, ...] = ("once", "every-round", (2, 3))
CURIOUS = ThreatModel(name="agent 3", kind="curious", agents=(3,))
TWO = ThreatModel(name="two agents", kind="colluding", agents=(3, 9))
EVERY_LINK = ThreatModel(name="every link")


def network(name: str, n: int, **options: int) -> Network:
    chosen = graph_options(name, **{**GRAPHS.get(name, {}), **options})
    return build_graph(chosen, n, np.random.default_rng(1))


def region(graphs: Network, receivers: int) -> ThreatModel:
    """Who reads every link into the first agents."""
    links = {link for graph in graphs.graphs for link in graph.links if link[1] < receivers}
    return ThreatModel(name="region", links=tuple(sorted(links)))


def others(n: int, adversary: ThreatModel) -> list[int]:
    return [v for v in range(n) if v not in adversary.agents]


def by_rows(
    graphs: Network, T: int, who: ThreatModel, schema: Schema, noise: torch.Tensor, cut: float = 0.0
) -> LocalMu:
    matrices = [graph.sparse for graph in graphs.graphs]
    return local_mu(matrices, T, who, others(graphs.n_agents, who), schema, noise, cut=cut)


def both(
    graphs: Network, T: int, who: ThreatModel, schema: Schema, noise: torch.Tensor, cut: float = 0.0
) -> tuple[LocalMu, torch.Tensor, torch.Tensor]:
    """By rows of a sparse W, and low and high by dense matrices."""
    victims = others(graphs.n_agents, who)
    found = by_rows(graphs, T, who, schema, noise, cut)
    dense = network_mu([graph.W for graph in graphs.graphs], T, schema, noise, [who])
    return found, dense.low[0, victims], dense.high[0, victims]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("who", [CURIOUS, TWO, EVERY_LINK, None], ids=lambda w: w and w.name)
def test_it_is_the_figure_of_dense_matrices(name: str, who: ThreatModel | None) -> None:
    graphs = network(name, 30)
    noise = torch.from_numpy(np.random.default_rng(2).uniform(0.5, 2.0, 30))
    for schema in SCHEMAS:
        found, low, high = both(graphs, 6, who or region(graphs, 5), schema, noise)
        torch.testing.assert_close(found.low, low, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.high, high, rtol=1e-9, atol=1e-9)
        assert found.error == 0


@pytest.mark.parametrize("n_rounds, expected", [(2, 0.316228), (5, 0.352642), (20, 0.352888)])
def test_a_path_of_three_has_its_published_figure(n_rounds: int, expected: float) -> None:
    A = nx.to_numpy_array(nx.path_graph(3)) + np.eye(3)
    W = sparse.csr_array(A / A.sum(1, keepdims=True))
    curious = ThreatModel(name="end", kind="curious", agents=(0,))
    found = local_mu(W, n_rounds, curious, [2], "once")
    assert float(found.high[0]) == pytest.approx(expected, abs=6e-7)


@pytest.mark.parametrize("quiet", [2, 4, 11])
def test_agents_without_noise_hide_nothing(quiet: int) -> None:
    """Neighbours of agent 3 show their own records; others may be hidden by what they relay."""
    graphs, noise = network("ring", 20), torch.ones(20)
    noise[quiet] = 0.0
    for who, schema in product((CURIOUS, region(graphs, 4)), SCHEMAS):
        found, low, high = both(graphs, 5, who, schema, noise)
        torch.testing.assert_close(found.low, low, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(found.high, high, rtol=1e-6, atol=1e-9)
        assert bool(found.high.isinf().any()) == (quiet != 11)


@pytest.mark.parametrize("name", ["ring", "k-regular", "power-law"])
@pytest.mark.parametrize("cut", [2e-3, 1e-2])
def test_what_is_left_out_is_bounded_from_both_sides(name: str, cut: float) -> None:
    graphs, noise = network(name, 60), torch.full((60,), 0.8)
    for who, schema in product((CURIOUS, region(graphs, 6)), SCHEMAS):
        try:
            found, low, high = both(graphs, 7, who, schema, noise, cut)
        except ConfigError as error:
            assert "has no bound" in str(error)  # noqa: PT017
            continue
        assert bool((found.low <= low + 1e-9).all())
        assert bool((found.high >= high - 1e-9).all())
        assert bool((found.high - found.low <= 2.0 * found.error + high - low + 1e-9).all())
        whole = by_rows(graphs, 7, who, schema, noise)
        assert found.touched <= whole.touched
        assert found.error > 0


def test_a_cut_touches_fewer_agents_and_its_bound_is_tight() -> None:
    graphs = network("ring", 300)
    victims = [2, 4, 40]
    found = local_mu(graphs.at(1).sparse, 60, CURIOUS, victims, cut=1e-8)
    whole = local_mu(graphs.at(1).sparse, 60, CURIOUS, victims)
    assert whole.touched == 120
    assert found.touched < 90
    assert 0 < found.error < 1e-4
    assert bool((found.low <= whole.low).all())
    assert bool((found.high >= whole.high).all())


def test_ten_thousand_agents_on_a_ring_are_as_few_within_reach() -> None:
    """Ten rounds reach ten agents on either side: a ring of 40 has the same figures."""
    large, small = (network("ring", n).at(1) for n in (10_000, 40))
    victims = [2, 4, 5, 8]
    for schema in SCHEMAS:
        found = local_mu(large.sparse, 10, CURIOUS, victims, schema)
        dense = network_mu(small.W, 10, schema, adversaries=[CURIOUS])
        torch.testing.assert_close(found.high, dense.high[0, victims], rtol=1e-9, atol=1e-12)
        assert found.touched == 20


@pytest.mark.slow
@pytest.mark.parametrize("name, options", [("k-regular", {"k": 10}), ("power-law", {})])
def test_a_thousand_agents_have_the_figures_of_dense_matrices(name, options) -> None:
    graphs = network(name, 1000, **options)
    for who in (CURIOUS, region(graphs, 10)):
        found, low, high = both(graphs, 6, who, "every-round", torch.ones(1000))
        torch.testing.assert_close(found.low, low, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(found.high, high, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"victims": [3]}, 'victim 3: expected an agent that "agent 3" does not hold'),
        ({"victims": [20]}, "victim 20: expected an agent"),
        ({"W": []}, "W: no matrix"),
        ({"W": sparse.csr_array(np.ones((3, 5)))}, r"W 1: shape \(3, 5\)"),
        ({"W": sparse.csr_array(np.full((20, 20), np.nan))}, "not all weights are finite"),
        ({"noise": float("inf")}, "noise: expected finite numbers"),
        ({"cut": -1.0}, "cut: -1.0; expected 0"),
        ({"cut": 0.3}, "cut: .* has no bound; expected a smaller cut"),
        ({"n_rounds": 0}, "expected at least 1 of each"),
        ({"adversary": ThreatModel(name="deaf", links=((0, 5),))}, "reads no message in 6 rounds"),
        (
            {"adversary": ThreatModel(name="far", kind="curious", agents=(30,))},
            "agent 30; expected 0 to 19",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(options, message) -> None:
    W = network("ring", 20).at(1).sparse
    given = {"W": W, "n_rounds": 6, "adversary": CURIOUS, "victims": [2]}
    with pytest.raises(ConfigError, match=message) as error:
        local_mu(**(given | options))
    assert "\n" not in str(error.value)


def test_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "available", lambda: 10**3)
    with pytest.raises(ConfigError, match="local accounting of 12 messages that 12 agents reach"):
        local_mu(network("ring", 20).at(1).sparse, 6, CURIOUS, [2])
