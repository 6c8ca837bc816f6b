"""What an adversary replays of the mixing, and releases counted by value."""

from typing import get_args

import numpy as np
import pytest
import torch

from dpaudit.defense.contract import Bracket, Setting, Target
from dpaudit.defense.gossip import (
    clipped_whole,
    known_rounds,
    mixed,
    of_acting,
    releases,
    start_and_step,
)
from dpaudit.defense.graph_conditions import column_stochastic
from dpaudit.defense.transcript import Transcript, broadcast
from dpaudit.defense.view import View
from dpaudit.defenses.decor import Decor
from dpaudit.defenses.dfedsam import DPDFedSAM
from dpaudit.defenses.dgd import DGD
from dpaudit.defenses.gradient_tracking import GradientTracking
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph, Network, build_graph

EVERYONE = ThreatModel(name="eavesdropper")


def test_mixture_and_step_are_what_the_agent_computed() -> None:
    network = build_graph("exponential", 5)
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    transcript = Transcript(
        {k: {"u": broadcast(network.at(k), U)} for k, U in ((1, first), (2, second))}
    )
    view = View.of(EVERYONE, transcript, {1, 2})
    start, step = start_and_step(view, network.at, "u", Target(2, 3, 0))
    expected = 0.5 * first[3] + 0.5 * first[2]  # hop 1 in round 1
    torch.testing.assert_close(start, expected, rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(step, expected - second[3], rtol=1e-15, atol=1e-15)


def test_first_round_and_unread_links_are_not_observable() -> None:
    network = build_graph("ring", 4)
    transcript = Transcript({1: {"u": broadcast(network.at(1), torch.ones(4, 2))}})
    with pytest.raises(NotObservable, match="first"):
        mixed(View.of(EVERYONE, transcript, {1}), network.at, "u", 0, 0)
    curious = ThreatModel(name="c", kind="curious", agents=(0,))
    with pytest.raises(NotObservable, match="agent 2"):  # of which only 1 and 3 hear
        mixed(View.of(curious, transcript, {1}), network.at, "u", 1, 1)


@pytest.mark.parametrize(
    "graph, agents, victim, expected",
    [
        ("complete", (2,), 0, [1, 1, 1, 1, 1]),  # hears everybody
        ("ring", (1,), 0, [1, 0, 0, 0, 0]),  # does not hear agent 4, whom 0 mixes in
        ("ring", (1, 4), 0, [1, 1, 1, 1, 1]),
        ("ring", (2,), 0, [0, 0, 0, 0, 0]),  # is no neighbour
        ("exponential", (1,), 0, [1, 0, 0, 0, 0]),  # in round 4 too, but not 0 -> 4 in round 3
        ("exponential", (1, 4), 0, [1, 0, 0, 1, 0]),
    ],
)
def test_rounds_known_to_colluders_are_those_by_hand(graph, agents, victim, expected) -> None:
    kind = "curious" if len(agents) == 1 else "colluding"
    adversary = ThreatModel(name="a", kind=kind, agents=agents)
    known = known_rounds(build_graph(graph, 5).at, 5, adversary, victim)
    assert known.tolist() == [bool(e) for e in expected]


def test_known_rounds_are_those_in_which_a_view_gives_the_step() -> None:
    for graph, agents in (("exponential", (1, 2, 4)), ("ring", (1, 4)), ("star", (0,))):
        network = build_graph(graph, 6)
        adversary = ThreatModel(
            name="a", kind="colluding" if agents[1:] else "curious", agents=agents
        )
        sent = {k: {"u": broadcast(network.at(k), torch.ones(6, 1))} for k in range(1, 9)}
        view = View.of(adversary, Transcript(sent), set(sent))
        known = known_rounds(network.at, 8, adversary, 3)
        for k in range(2, 9):
            try:
                start_and_step(view, network.at, "u", Target(k, 3, 0))
                derived = True
            except NotObservable:
                derived = False
            assert derived == known[k - 1], (graph, k)


@pytest.mark.parametrize("graph", ["exponential", "half-exponential", "directed-ring", "path"])
@pytest.mark.parametrize("agents", [(0,), (0, 3), ()])
def test_rounds_that_repeat_are_known_as_with_own_graphs(graph, agents) -> None:
    kind = ("external", "curious", "colluding")[len(agents)]
    adversary = ThreatModel(name="a", kind=kind, agents=agents)
    network, n_rounds = build_graph(graph, 9), 40
    each = [Graph(network.at(k).W) for k in range(1, n_rounds + 1)]
    for victim in set(range(9)) - set(agents):
        known = known_rounds(network.at, n_rounds, adversary, victim)
        assert (known == known_rounds(lambda k: each[k - 1], n_rounds, adversary, victim)).all()


def test_an_eavesdropper_on_all_links_knows_every_round() -> None:
    for graph in ("ring", "directed-ring", "exponential", "star"):
        assert known_rounds(build_graph(graph, 6).at, 7, EVERYONE, 2).all()


def external(*links: tuple[int, int]) -> ThreatModel:
    return ThreatModel(name="e", links=links)


@pytest.mark.parametrize(
    "threat_model, expected",
    [
        (EVERYONE, [1, 1, 1, 1]),
        (ThreatModel(name="s", kind="curious", agents=(0,)), [1, 1, 1, 1]),
        (ThreatModel(name="a", kind="curious", agents=(1,)), [0, 0, 0, 0]),
        (external((2, 0)), [1, 0, 0, 0]),  # not where the agent starts from
        (external((2, 0), (0, 2)), [1, 1, 1, 1]),
        (external((1, 0), (2, 0), (3, 0)), [1, 1, 1, 1]),  # of which the average is made
        (external((1, 0), (2, 0)), [1, 0, 0, 0]),
    ],
)
def test_with_a_server_agents_start_from_what_it_tells(threat_model, expected) -> None:
    known = known_rounds(build_graph("server", 4).at, 4, threat_model, 2)
    assert known.tolist() == [bool(e) for e in expected]


def paired(*pairs: tuple[int, int]) -> Network:
    """Of four agents; the first of each pair takes a step, and averages with the second."""
    graphs = []
    for i, j in pairs:
        W = torch.eye(4, dtype=torch.float64)
        W[[i, i, j, j], [i, j, i, j]] = 0.5
        graphs.append(Graph(W, (i,)))
    return Network(tuple(graphs), drawn=True)


@pytest.mark.parametrize(
    "agents, expected",
    [
        ((0,), [1, 0, 1, 0, 1]),  # reads all that agent 1 ever sent
        ((2,), [0, 0, 0, 0, 0]),
        ((3,), [0, 0, 0, 0, 0]),
    ],
)
def test_an_agent_that_waits_keeps_what_it_had(agents, expected) -> None:
    network = paired((1, 0), (2, 3), (1, 0), (3, 2), (1, 0))
    curious = ThreatModel(name="c", kind="curious", agents=agents)
    assert known_rounds(network.at, 5, curious, 1).tolist() == [bool(e) for e in expected]


def test_who_met_an_unread_agent_starts_from_an_unknown_model() -> None:
    network = paired((1, 0), (2, 1), (1, 0), (1, 0), (0, 1), (1, 0))
    curious = ThreatModel(name="c", kind="curious", agents=(0,))
    known = known_rounds(network.at, 6, curious, 1).tolist()
    assert known == [True, False, False, True, True, True]  # round 5: what it sent, without a step
    assert known_rounds(network.at, 6, EVERYONE, 1).tolist() == [True] * 6


def test_oracles_are_asked_for_agents_that_take_a_step_alone() -> None:
    graph, X = paired((1, 0)).at(1), torch.randn(3, 4, 2, dtype=torch.float64)
    asked = []

    def oracle(rows, who):
        asked.append((rows, who))
        return 2 * rows

    answer = of_acting(graph, X, oracle)
    (rows, who), = asked  # fmt: skip
    assert who.tolist() == [1]
    assert torch.equal(rows, X[:, [1]])
    assert torch.equal(answer, 2 * X * graph.acting(X))
    assert torch.equal(of_acting(build_graph("ring", 4).at(1), X, lambda X, who: X), X)


def test_the_step_of_an_agent_with_a_server_is_from_its_average() -> None:
    network = build_graph("server", 3)
    X = torch.tensor([[0.0], [1.0], [3.0]])
    transcript = Transcript({k: {"x": broadcast(network.at(k), k * X)} for k in (1, 2)})
    view = View.of(EVERYONE, transcript, {1, 2})
    start, step = start_and_step(view, network.at, "x", Target(2, 1, 0))
    assert (start.item(), step.item()) == (2.0, 0.0)


def test_releases_count_equal_rounds_and_keep_others_apart() -> None:
    mechanism = releases([0.5, 2.0, 0.5, 0.5], "poisson", 0.1)
    assert [(r.noise_multiplier, r.count) for r in mechanism] == [(0.5, 3), (2.0, 1)]
    assert all(r.sampling == "poisson" and r.sampling_rate == 0.1 for r in mechanism)
    assert releases(np.array([]), "fixed", 0.1) == ()


def test_matrices_whose_columns_do_not_sum_to_one_are_refused() -> None:
    W = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]], dtype=torch.float64)
    column_stochastic("SGP").check(Network((Graph(W.T.contiguous()),)))
    with pytest.raises(ConfigError, match="columns sum to 1"):
        column_stochastic("SGP").check(Network((Graph(W.T.contiguous()), Graph(W))))


def test_the_sum_of_local_steps_is_hidden_by_the_noise_of_all() -> None:
    setting = Setting(build_graph("complete", 4), (40,) * 4, 10)
    defense = DPDFedSAM(noise_multiplier=1.5, local_steps=4, n_rounds=3)
    bracket = defense.mechanism(setting, EVERYONE, 0)
    ends = [[(r.noise_multiplier, r.count) for r in end] for end in (bracket.least, bracket.most)]
    assert ends == [[(3.0, 12)], [(1.5, 12)]]  # 1.5 sqrt(4) at least, each step by itself at most


def test_a_bound_of_one_record_counts_twice_if_replaced() -> None:
    setting = Setting(build_graph("ring", 4), (40,) * 4, 10)
    defense = Decor(noise_multiplier=1.0, learning_rate=0.1, clip_norm=3.0, batch_size=6)
    stated = {a: defense.sensitivity(1, setting, a, 0, {}) for a in get_args(Adjacency)}
    assert stated.pop("add-remove") == {"y": (2, pytest.approx(0.05))}
    assert stated.pop("replace-one") == {"y": (2, pytest.approx(0.1))}
    assert not any(stated.values())


def test_methods_without_noise_release_once_data_matters() -> None:
    setting = Setting(build_graph("ring", 4), (1,) * 4, 10)
    for defense, count in ((DGD(n_rounds=7), 6), (GradientTracking(n_rounds=7), 7)):
        for adversary in (EVERYONE, ThreatModel(name="far", links=((2, 3),))):
            least, most, _ = defense.mechanism(setting, adversary, 0)
            assert [(r.noise_multiplier, r.count) for r in most] == [(0.0, count)]
            assert least == (most if adversary is EVERYONE else ())


def test_a_record_alone_turns_no_mean_around() -> None:
    alone = releases([4.0], "none", 1.0)
    for size, least in ((1, 4.0), (2, 2.0)):
        bracket = clipped_whole(Bracket(alone, alone, ()), DGD(), size)
        ends = [end[0].noise_multiplier for end in (bracket.least, bracket.most)]
        assert ends == [least, 2.0]
