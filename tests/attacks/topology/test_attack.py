"""The attack in audits: what it reads, what it is refused, and that it decides no claim."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpaudit
from dpaudit.attacks.topology.observer_view import known, linked, overhear
from dpaudit.defense.contract import Setting
from dpaudit.defense.transcript import Message, Transcript
from dpaudit.errors import ConfigError
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.reports.html import render
from dpaudit.reports.run import Run

EVERYONE = ThreatModel(name="every link")


def config(
    graph: dict[str, Any] | None = None, n_agents: int = 6, **options: Any
) -> dict[str, Any]:
    adversary = options.pop("adversary", {"name": "eavesdropper"})
    defense = options.pop("defense", {"name": "dp-dpsgd", "n_rounds": 4, "noise_multiplier": 1.0})
    return {
        "seed": 3,
        "data": {"name": "digits", "n_agents": n_agents},
        "graph": graph or {"name": "ring"},
        "model": {"name": "logistic"},
        "defense": {"batch_size": 8, **defense},
        "threat_model": [adversary],
        "attack": [{"name": "topology", **options}],
    }


def found(**changes: Any) -> list[Finding]:
    result = dpaudit.audit(config(**changes), cores=1)
    return [f for f in result.findings if f.role is Role.TOPOLOGY]


def test_an_audit_finds_the_ring_and_its_report_shows_it(tmp_path: Path) -> None:
    result = dpaudit.audit(config(), cores=1)
    findings = [f for f in result.findings if f.role is Role.TOPOLOGY]
    assert {f.world for f in findings} == {"defense", "no-defense"}
    metrics = next(f for f in findings if f.title == "links by sparse regression").metrics
    assert metrics[Name.AUC].value == 1.0
    assert metrics[Name.P_VALUE].value < 0.05  # 1/60 of the relabellings of a ring are that ring
    assert metrics[Name.AUC].n == 15
    page = render(result, tmp_path)
    assert "links by sparse regression" in page
    assert "AUC by chance" in page
    assert Run.headline(findings[0]) == Name.AUC


@pytest.mark.slow
def test_no_claim_is_decided_by_it() -> None:
    claimed = {**config(), "claim": [{"text": "ours", "epsilon": 100.0, "delta": 1e-5}]}
    with_it = dpaudit.audit(claimed, cores=1)
    without = dpaudit.audit({**claimed, "attack": []}, cores=1)
    places = {i for i, f in enumerate(with_it.findings) if f.role is Role.TOPOLOGY}
    assert all(with_it.findings[i].claim is None for i in places)
    assert not places & {i for claim in with_it.claims for i in claim.because}
    assert [c.verdict for c in with_it.claims] == [c.verdict for c in without.claims]


def test_receivers_are_not_read() -> None:
    network = build_graph("ring", 6)
    graph = network.at(1)
    X = torch.randn(6, 9)
    shuffled = graph.receivers[torch.randperm(len(graph.receivers))]

    def heard(receivers: torch.Tensor) -> torch.Tensor:
        sent = {"x": Message(X, graph.senders, receivers, graph.senders)}
        rng = np.random.default_rng(1)
        held = overhear(EVERYONE, Transcript({1: sent, 2: sent}), "x", range(1, 3), rng)
        assert held is not None
        assert held.agents == tuple(range(6))
        return held.models

    assert torch.equal(heard(graph.receivers), heard(shuffled))
    assert torch.equal(heard(graph.receivers)[0].float(), X)


def test_long_models_are_read_at_drawn_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.attacks.topology.observer_view.MOST_NUMBERS", 6 * 2 * 5)
    graph = build_graph("ring", 6).at(1)
    sent = {"x": Message(torch.randn(6, 90), graph.senders, graph.receivers, graph.senders)}
    held = overhear(
        EVERYONE, Transcript({1: sent, 2: sent}), "x", range(1, 3), np.random.default_rng(1)
    )
    assert held is not None
    assert held.models.shape == (2, 6, 5)
    assert (held.models[0].float()[:, :, None] == sent["x"].payload[:, None]).any(dim=2).all()


def test_links_are_those_of_the_rounds_that_are_read() -> None:
    network = build_graph("exponential", 8)
    setting = Setting(network, (1,) * 8, 4)
    first = linked(setting, tuple(range(8)), range(1, 2))
    assert first.sum() == 16  # each agent sends to one other, none of which sends back
    assert (linked(setting, tuple(range(8)), range(1, 9)) >= first).all()
    tapped = ThreatModel(name="tap", links=((0, 1), (3, 2)))
    assert {(int(i), int(j)) for i, j in np.argwhere(np.triu(known(tapped, (0, 1, 2, 3))))} == {
        (0, 1), (2, 3),
    }  # fmt: skip


def test_colluders_score_the_pairs_of_others_alone() -> None:
    colluders = {"name": "three", "kind": "colluding", "agents": [0, 3, 6]}
    findings = found(n_agents=9, adversary=colluders)
    scored = [f for f in findings if f.metrics]
    assert {f.metrics[Name.AUC].n for f in scored} == {15}  # of the six others, all of them heard


def test_a_listener_with_one_pair_has_no_finding_and_says_why() -> None:
    findings = found(adversary={"name": "curious", "kind": "curious", "agents": [1]})
    assert all(not f.metrics for f in findings)
    assert "can score 1 pairs, none of which are linked" in findings[0].notes[0]


def test_who_sends_when_tells_links_of_pairwise_gossip() -> None:
    """One pair averages in a round: the two that send together are linked."""
    defense = {"name": "adp2sgd", "n_rounds": 24, "noise_multiplier": 1.0}
    findings = found(graph={"name": "pairwise", "among": "ring"}, defense=defense)
    times = [f for f in findings if f.title == "links by the times of messages"]
    assert times
    assert {f.metrics[Name.AUC].value for f in times} == {1.0}


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"graph": {"name": "complete"}}, "all pairs of the 6 agents share a link in the 4 rounds"),
        ({"graph": {"name": "complete"}, "n_agents": 2}, "topology: 2 agents; expected 3 to 512"),
        ({"message": "gradient"}, "message"),
        ({"n_rounds": 1}, "one round has no step"),
        ({"n_rounds": 9}, "the run has 4 rounds"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        found(**changes)
    assert len(refused.value.problems) == 1


def test_a_server_is_one_end_of_every_link() -> None:
    with pytest.raises(ConfigError, match="all links are those of the server"):
        found(
            graph={"name": "server"},
            defense={"name": "fed-cdp", "n_rounds": 4, "noise_multiplier": 1.0},
        )
