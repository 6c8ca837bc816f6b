"""The checker on audits of claims that are not of one record over the whole run."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, run_audit
from tests.verify.test_verdict import Content, answers, finding

FUNCTION = {"delta": 0.0, "adjacency": "function"}
AGENT = {"delta": 0.0, "adjacency": "agent-identity"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "function": ({"name": "dp-dgd"}, {**FUNCTION, "scope": "run"}, "supported"),
    "function of a round": ({"name": "dp-dgd"}, {**FUNCTION, "scope": "round"}, "supported"),
    "agent of a round": (
        {"name": "pedfl", "epsilon": 20.0},
        {**AGENT, "scope": "round"},
        "underpowered",
    ),
    "agent of a round, under a protocol": (
        {"name": "dpps", "protocol": {"epsilon": 20.0}},
        {**AGENT, "scope": "round"},
        "refuted",
    ),
    "ends that rounding turns": (
        {"name": "mafalda", "noise_multiplier": 7.0318337074},
        {"delta": 1e-5, "adjacency": "add-remove"},
        "supported",
    ),
}


def audited(case: str, folder: Path) -> Content:
    defense, claim, verdict = CASES[case]
    setting = {
        "seed": 3,
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "defense": {"n_rounds": 3, "batch_size": 16, **defense},
        "claim": [{"text": "ours", "epsilon": 20.0, **claim}],
    }
    run_audit(AuditConfig.from_dict(setting), folder, Runtime(cores=1), report=False)
    content: Content = json.loads((folder / "audit.json").read_text())
    assert content["verdict"] == verdict
    return content


@pytest.fixture(scope="module")
def of_function(tmp_path_factory: pytest.TempPathFactory) -> tuple[Content, Path]:
    folder = tmp_path_factory.mktemp("function")
    return audited("function", folder), folder


def test_what_an_audit_of_a_function_wrote_stands(of_function: tuple[Content, Path]) -> None:
    assert set(answers(*of_function)) <= {"confirmed", "not checkable"}


@pytest.mark.parametrize("case", [case for case in CASES if case != "function"])
def test_what_an_audit_wrote_is_not_contradicted(case: str, tmp_path: Path) -> None:
    assert set(answers(audited(case, tmp_path), tmp_path)) <= {"confirmed", "not checkable"}


def further(content: Content) -> None:
    moved = next(f for f in content["findings"] if f["adjacency"] == "function")
    moved["metrics"]["measured over stated"]["value"] = 1.5


def unmeasured(content: Content) -> None:
    finding(content, "dependence")["metrics"]["rounds"]["value"] = 2.0


def by_algebra_of_fewer(content: Content) -> None:
    finding(content, "exact-leak")["metrics"]["rounds"]["value"] = 2.0


@pytest.mark.parametrize("change", [further, unmeasured, by_algebra_of_fewer])
def test_changed_evidence_of_a_function_is_contradicted(
    change: Callable[[Content], None], of_function: tuple[Content, Path]
) -> None:
    content = copy.deepcopy(of_function[0])
    change(content)
    assert "contradicted" in answers(content, of_function[1])
