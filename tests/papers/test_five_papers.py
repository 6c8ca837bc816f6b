"""What five papers' claims come to: figures of docs/findings.md that accounting fixes."""

from pathlib import Path

import pytest

from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Setting
from dpaudit.files.options import graph_options
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.papers.five_papers import (
    CASES,
    EAVESDROPPER,
    NEIGHBOUR,
    SCALES,
    PaperCase,
    PlayedScale,
    examined,
    lines,
    options_of,
)
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

BY_TITLE = {case.title: case for case in CASES}


def accounted(case: PaperCase) -> tuple[float, float]:
    network = build_graph(graph_options(**case.graph), case.n_agents, Streams(1).numpy("graph"))
    setting = Setting(network, (case.records,) * case.n_agents, 1)
    defense = load_plugin("defenses", case.defense)(**case.options).calibrate(setting)
    return account_claim(case.claim, EAVESDROPPER, defense, setting).epsilon


@pytest.mark.parametrize(
    "title, low, high",
    [
        ("Dyn-D2P (const), CIFAR-10, claimed 1", 2.26, 2.26),
        ("Dyn-D2P (const), CIFAR-10, claimed 3", 5.37, 5.37),
        ("DPDL, MNIST, bipartite", 1.65, 3.48),
        pytest.param(
            "Xie, Liu, Chai, sensor fusion, as printed",
            1 / 0.99,
            1 / 0.99,
            marks=pytest.mark.slow,
        ),
        ("Xie, Liu, Chai, sensor fusion, noise aligned", 1.0, 1.0),
    ],
)
def test_accounting_gives_the_figures_of_the_page(title, low, high) -> None:
    found = accounted(BY_TITLE[title])
    assert found == (pytest.approx(low, rel=2e-3), pytest.approx(high, rel=2e-3))


def test_a_scalar_without_noise_refutes_dpps() -> None:
    claim, findings = examined(CASES[0], EAVESDROPPER, PlayedScale(200, 5), Streams(0))
    assert claim.verdict is Verdict.REFUTED
    assert "no noise at all" in claim.reason
    assert any(f.kind == "empirical-epsilon" for f in findings)


@pytest.mark.slow
@pytest.mark.parametrize("title", BY_TITLE)
def test_each_case_is_examined(title: str) -> None:
    for threat_model in (EAVESDROPPER, NEIGHBOUR):
        claim, findings = examined(BY_TITLE[title], threat_model, PlayedScale(60, 3), Streams(1))
        assert claim.reason
        assert {"accounting", "empirical-epsilon"} <= {finding.kind for finding in findings}


@pytest.mark.slow
@pytest.mark.parametrize(
    "title, threat_model, expected",
    [
        ("DECOR, MNIST, ring of 16, example level", EAVESDROPPER, (1000, True)),
        ("ADP-VRSGP, sigma follows the clip norm, claimed 8, c2 = 2", EAVESDROPPER, (1000, False)),
        ("Xie, Liu, Chai, sensor fusion, as printed", EAVESDROPPER, (200, False)),
        ("DPDL, MNIST, bipartite", NEIGHBOUR, (200, False)),
        ("DPPS in SGPDP, MNIST, 4-Out", EAVESDROPPER, (200, False)),
    ],
)
def test_runs_are_whole_where_accounting_exceeds_a_claim_by_far(
    title, threat_model, expected
) -> None:
    """Bets need some e^epsilon runs: against a claimed 8 all are counted."""
    case = BY_TITLE[title]
    network = build_graph(graph_options(**case.graph), case.n_agents, Streams(1).numpy("graph"))
    setting = Setting(network, (case.records,) * case.n_agents, 1)
    defense = load_plugin("defenses", case.defense)(**case.options).calibrate(setting)
    accounted = account_claim(case.claim, threat_model, defense, setting)
    options = options_of(case.claim, accounted, defense, setting, SCALES["paper"])
    assert (options["n_rounds"], options.get("stop_early", False)) == expected


@pytest.mark.slow
def test_the_printed_form_names_claim_assumption_and_verdict(monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.papers.five_papers.CASES", CASES[:1])
    monkeypatch.setitem(SCALES, "quick", PlayedScale(100, 3))
    printed = list(lines("quick", 0))
    assert not any("\n" in line for line in printed)  # the terminal shows what it does not print
    text = "\n".join(printed)
    for expected in ("claimed:", "assumed:", "eavesdropper: refuted", "no proof of privacy"):
        assert expected in text


def test_the_page_names_every_paper() -> None:
    page = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    for name in ("DPPS in SGPDP", "Dyn-D2P", "ADP-VRSGP", "DPDL", "Xie, Liu, Chai"):
        assert name in page
