"""Weather: which messages arrive, and when, and who takes a step."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import Graph, Network, build_graph

FALSE_FAILURE = 1e-9  # probability that correct weather fails a test, over fresh seeds
CONTENT = {
    "data": {"name": "digits", "n_agents": 6},
    "graph": {"name": "ring"},
    "model": {"name": "logistic"},
    "defense": {"name": "dp-dpsgd", "n_rounds": 8, "noise_multiplier": 1.0},
}


def network(
    name: str, n: int = 6, n_rounds: int = 300, seed: int = 0, **weather: object
) -> Network:
    options = graph_options(name, **weather)
    rng = np.random.default_rng(7)
    return build_graph(options, n, rng, n_rounds, np.random.default_rng(seed))


def sent(graph: Graph) -> set[tuple[int, int]]:
    return set(graph.links)


def test_links_of_a_symmetric_graph_are_lost_in_both_directions() -> None:
    found = network("ring", loss=0.3)
    lost = sum(12 - len(sent(graph)) for graph in found.graphs) // 2
    assert binomtest(lost, 300 * 6, 0.3).pvalue > FALSE_FAILURE
    assert all(graph.symmetric and graph.doubly_stochastic for graph in found.graphs)
    assert all(graph.active is None for graph in found.graphs)


def test_directed_links_are_lost_one_by_one() -> None:
    found = network("directed-ring", loss=0.3)
    lost = sum(6 - len(sent(graph)) for graph in found.graphs)
    assert binomtest(lost, 300 * 6, 0.3).pvalue > FALSE_FAILURE
    for graph in found.graphs:
        assert graph.column_stochastic
        for j in range(6):
            heard = (j, (j + 1) % 6) in graph.links
            assert graph.own[j].item() == pytest.approx(0.5 if heard else 1.0)


def test_an_absent_agent_sends_nothing_and_a_straggler_sends() -> None:
    gone = network("complete", churn=0.2)
    absent = [set(range(6)) - set(graph.active) for graph in gone.graphs]
    assert binomtest(sum(map(len, absent)), 300 * 6, 0.2).pvalue > FALSE_FAILURE
    for graph, away in zip(gone.graphs, absent, strict=True):
        assert sent(graph) == {(j, i) for j in range(6) for i in range(6) if j != i} - {
            (j, i) for j in range(6) for i in range(6) if j in away or i in away
        }
    slow = network("complete", stragglers=0.2)
    assert all(len(graph.links) == 30 for graph in slow.graphs)
    assert any(len(graph.active) < 6 for graph in slow.graphs)


def test_each_link_has_a_delay_of_its_own() -> None:
    found = network("ring", n=40, n_rounds=6, delay=3)
    of_link = {
        (i, j): d
        for graph in found.graphs
        for d, late in enumerate(graph.late, 1)
        for i, j in zip(*late.nonzero(), strict=True)
    }
    delays = [0] * (80 - len(of_link)) + list(of_link.values())
    assert all(binomtest(delays.count(d), 80, 1 / 4).pvalue > FALSE_FAILURE for d in range(4))
    last = found.graphs[-1]  # all that is on its way has begun to arrive
    rows = last.W.sum(1) + sum(torch.from_numpy(late.sum(1)) for late in last.late)
    assert torch.allclose(rows, torch.ones(40, dtype=torch.float64))
    assert all(len(graph.links) == 80 for graph in found.graphs)
    assert found.delay == 3


def test_more_of_one_weather_draws_nothing_else_anew() -> None:
    one, both = network("ring", churn=0.2), network("ring", churn=0.2, loss=0.4)
    assert [g.active for g in one.graphs] == [g.active for g in both.graphs]
    assert all(sent(b) <= sent(a) for a, b in zip(one.graphs, both.graphs, strict=True))


def test_without_weather_nothing_changes() -> None:
    calm = build_graph("ring", 6)
    assert calm.weather is None
    assert calm.calm is calm
    assert calm.delay == 0
    assert "loss" not in graph_options("ring").model_dump()
    assert network("ring", loss=0.1).calm.at(1).W.equal(calm.at(1).W)


@pytest.mark.parametrize(
    ("name", "weather", "expected"),
    [
        ("ring", {"loss": 0.999}, "in this weather agent 0 never hears of agent 1 in 8 rounds"),
        ("ring", {"delay": 8}, "messages take up to 8 rounds in a run of 8"),
        ("ring", {"loss": 1.0}, "loss: Input should be less than 1"),
        ("server", {"loss": 0.1}, "are of links between agents"),
        ("pairwise", {"delay": 1}, "it varies by round"),
    ],
)
def test_weather_that_cannot_be_meant_is_one_line(name, weather, expected) -> None:
    with pytest.raises(ConfigError, match=expected) as refused:
        network(name, n_rounds=8, **weather)
    assert len(refused.value.problems) == 1


def test_an_audit_names_the_key_of_a_delay_that_outlasts_it() -> None:
    content = {**CONTENT, "graph": {"name": "ring", "delay": 8}}
    with pytest.raises(ConfigError, match=r"graph.delay: messages take up to 8 rounds") as refused:
        AuditConfig.from_dict(content)
    assert "raise defense.n_rounds" in refused.value.problems[0].help
