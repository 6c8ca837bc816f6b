"""The checker confirms audits as they were written, and contradicts changed ones."""

import ast
import copy
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.commands import page as report
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.verify.figures import Basis
from dpaudit.verify.verdict import (
    _known,
    _numbers,
    _of_finding,
    _restated,
    check,
    overall,
)
from tests.verify import test_values as of

ROOM = Path(__file__).parents[2] / "dpaudit" / "verify"
AUDIT = """\
seed = 3
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 2
batch_size = 287
sampling = "poisson"
noise_multiplier = 1.8
[[claim]]
text = "ours"
epsilon = 3.2
delta = 1e-5
[[attack]]
name = "likelihood-ratio"
trials = 1000
"""
Content = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose claim stands, with counted runs."""
    folder = tmp_path_factory.mktemp("verify")
    (folder / "audit.toml").write_text(AUDIT)
    run_audit(AuditConfig.from_toml(folder / "audit.toml"), folder / "run", Runtime(cores=1))
    return folder / "run"


@pytest.fixture(scope="module")
def content(run: Path) -> Content:
    found: Content = json.loads((run / "audit.json").read_text())
    return found


def answers(content: Content, folder: Path | None = None) -> list[str]:
    """Of each claim, and "contradicted" for the rest of the file if it is."""
    beside = ["contradicted" for flaw in overall(content) if flaw.contradicted]
    return [one.answer for one in check(content, folder)] + beside


def finding(content: Content, role: str) -> Content:
    found: Content = next(f for f in content["findings"] if f["role"] == role and f["metrics"])
    return found


def test_an_audit_is_confirmed_as_it_was_written(content: Content, run: Path) -> None:
    assert content["verdict"] == "supported"
    assert answers(content, run) == ["confirmed"]
    assert list(report.flaws(content, run / "audit.json")) == []


def metric(role: str, name: str, key: str, value: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        finding(content, role)["metrics"][name][key] = value

    return change


def release(role: str, key: str, value: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        for some in finding(content, role)["releases"].values():
            some[0][key] = value

    return change


def of_claim(key: str, value: Any, in_config: bool) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["claims"][0][key] = value
        if in_config:
            content["config"]["claim"][0][key] = value

    return change


def worst(content: Content) -> None:
    content["claims"][0]["verdict"] = content["verdict"] = "underpowered"
    content["claims"][0]["reason"] = "It stands."


def of_other_evidence(content: Content) -> None:
    content["claims"][0]["because"] = content["claims"][0]["because"][1:]


def other_figure(content: Content) -> None:
    content["claims"][0]["reason"] += " The bound is 7.77."


def of_finding(of_role: str, **other: Any) -> Callable[[Content], None]:
    return lambda content: finding(content, of_role).update(other)


def twice(content: Content) -> None:
    content["claims"] *= 2


CHANGES: dict[str, Callable[[Content], None]] = {
    "claimed epsilon": of_claim("epsilon", 3.5, False),
    "claimed epsilon, in the config too": of_claim("epsilon", 3.5, True),
    "claimed delta, in the config too": of_claim("delta", 1e-3, True),
    "a claim on mu": of_claim("mu", 1.0, False),
    "the verdict": worst,
    "the verdict of all": lambda content: content.update(verdict="refuted"),
    "a claim left out": lambda content: content.update(claims=[], verdict=None),
    "evidence left out": of_other_evidence,
    "a figure of the reason": other_figure,
    "false positives": metric("test", "false positives", "value", 390.0),
    "runs": metric("test", "false negatives", "n", 5000),
    "p-value": metric("test", "p-value", "value", 0.9),
    "certified bound": metric("test", "epsilon lower bound", "value", 3.9),
    "ceiling": metric("test", "ceiling", "value", 3.9),
    "accounted epsilon": metric("declared", "epsilon", "high", 0.1),
    "least accounted epsilon": metric("declared", "epsilon", "low", 4.5),
    "delta of a finding": metric("declared", "delta", "value", 0.1),
    "exact leak": metric("exact-leak", "epsilon", "low", 0.0),
    "claimed epsilon of a finding": metric("declared", "claimed epsilon", "value", 9.0),
    "declared noise": release("declared", "noise_multiplier", 9.0),
    "declared rate": release("declared", "sampling_rate", 0.9),
    "declared rounds": release("exact-leak", "count", 40),
    "distance": metric("sensitivity", "measured", "value", 5.0),
    "ratio of distances": metric("sensitivity", "measured over stated", "value", 2.0),
    "things that depend on data": metric("dependence", "found", "value", 2.0),
    "p-value of noise": metric("noise", "p-value", "value", 1e-9),
    "declared rate of batches": metric("records", "declared sampling rate", "value", 0.5),
    "adversary of a test": of_finding("test", threat_model="another"),
    "claim of a finding": of_finding("test", claim=7),
    "a claim twice": twice,
    "positive control": metric("positive-control", "epsilon lower bound", "value", 0.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_audit_is_contradicted(
    content: Content, change: Callable[[Content], None]
) -> None:
    changed = copy.deepcopy(content)
    change(changed)
    assert "contradicted" in answers(changed)


def figures(content: Content) -> Iterator[tuple[Content, str]]:
    """The numbers that verdicts are derived from, as places that hold one."""
    for i in content["claims"][0]["because"]:
        one = content["findings"][i]
        names = ("epsilon", "claimed epsilon", "epsilon lower bound", "p-value", "ceiling")
        for name in (*names, "false positives", "false negatives", "measured over stated"):
            if name in one["metrics"] and one["role"] in ("declared", "exact-leak", "test"):
                yield one["metrics"][name], "value"
        of_premises = one["role"] == "alignment"  # which another proof may hold as well
        for some in () if of_premises else one["releases"].values():
            yield from ((part, "noise_multiplier") for part in some)


@given(st.data(), st.sampled_from([0.0, 0.3, 0.8, 1.25, 4.0, 1e3]))
@settings(max_examples=60, deadline=None)
def test_any_changed_figure_is_contradicted(
    content: Content, data: st.DataObject, times: float
) -> None:
    changed = copy.deepcopy(content)
    places = list(figures(changed))
    place, key = places[data.draw(st.integers(0, len(places) - 1))]
    before = place[key]
    place[key] = before * times if before else 0.7
    assert place[key] == before or "contradicted" in answers(changed)


def test_evidence_that_is_missing_is_named(content: Content, run: Path) -> None:
    changed = copy.deepcopy(content)
    finding(changed, "declared")["releases"] = {}
    (checked,) = check(changed, run)
    assert checked.answer == "not checkable"
    ends = [f"the releases behind the {end} epsilon" for end in ("least", "most")]
    assert [p.what for p in checked.flaws][:2] == ends


@pytest.mark.parametrize("aligned", [True, False])
def test_matrices_count_if_a_premise_rests_on_them(
    content: Content, run: Path, aligned: bool
) -> None:
    """An alignment proves noise and composition; without it, the algebra of the view does."""
    changed = copy.deepcopy(content)
    finding(changed, "exact-leak")["artifacts"] = {}
    if not aligned:
        finding(changed, "alignment")["metrics"] = {}
    (checked,) = check(changed, run)
    missed = "the matrices of the view" in [flaw.what for flaw in checked.flaws]
    assert missed != aligned
    assert (checked.answer == "confirmed") == aligned


def test_a_figure_that_is_called_void_is_not_believed(content: Content) -> None:
    changed = copy.deepcopy(content)
    finding(changed, "declared")["void"] = "so they say"
    finding(changed, "declared")["metrics"]["epsilon"] = {"value": 1.0, "low": 1.0, "high": 1.0}
    assert "contradicted" in answers(changed)


def test_a_report_of_another_audit_is_contradicted(
    content: Content, run: Path, tmp_path: Path
) -> None:
    shutil.copy(run / "report.html", tmp_path)
    (tmp_path / "audit.json").write_text(json.dumps(content))
    (flaw,) = report.flaws(content, tmp_path / "audit.json")
    assert flaw.what == "it was not made from this audit.json"


def test_a_report_that_shows_another_reason_is_contradicted(
    content: Content, run: Path, tmp_path: Path
) -> None:
    shutil.copy(run / "audit.json", tmp_path)
    reason = content["claims"][0]["reason"]
    page = (run / "report.html").read_text()
    (tmp_path / "report.html").write_text(page.replace(reason, "All is well."))
    (flaw,) = report.flaws(content, tmp_path / "audit.json")
    assert flaw.what == f"it does not show: {reason}"


@pytest.mark.parametrize(
    ("says", "known"),
    [
        ('"x" moves 0.42% further than its stated bound', True),
        ('"x" moves 1.00421 times its stated bound', True),
        ('"x" moves 0.43% further than its stated bound', False),
        ('"x" moves 1.00422 times its stated bound', False),
    ],
)
def test_a_bound_that_is_exceeded_by_little_is_known(says: str, known: bool) -> None:
    """As percent beyond it, or as a factor of more digits."""
    metrics = {"measured over stated": {"value": 1.0042066, "low": None, "high": None, "n": None}}
    texts = dict.fromkeys(("not_examined", "unconfirmed", "title", "void"))
    moved = {"role": "sensitivity", "message": "x", "metrics": metrics, **texts}
    claim = {"text": "t", "threat_model": "e", "sentence": "", "meaning": "", "reason": "",
             "epsilon": 2.0, "delta": 0.0, "mu": None}  # fmt: skip
    claim["premises"] = [{"name": "distance", "says": says, "findings": [0]}]
    evidence = Basis(claim, 2.0, 0.0, None, [moved, {**moved, "role": "declared"}],
                        {"findings": [moved]}, None)  # fmt: skip
    assert [flaw.where for flaw in _numbers(evidence)] == ([] if known else ["premises.distance"])


@pytest.mark.parametrize(
    "metrics, n_rounds, n",
    [
        ({"psnr": (-3.0, -2.0, -1.0)}, 5, 0),
        ({"psnr": (-2.5, -3.0, -1.0)}, 5, 1),
        ({"psnr": (-3.0, 0.0, -1.0)}, 5, 1),
        ({"measured": (-0.1, 2.0, 3.0)}, 5, 1),
        ({"epsilon": 2.0}, 5, 0),
        ({"rounds": (5.0, 5)}, 5, 0),
        ({"rounds": (6.0, 5)}, 5, 1),
        ({"rounds": (3.0, 5)}, None, 0),
        ({"rounds": (3.0, 5)}, 6, 1),
        ({"rounds": 3.0}, 6, 0),
    ],
)
def test_metrics_and_rounds_are_in_their_range(metrics: Any, n_rounds: int | None, n: int) -> None:
    one = of.finding("noise", of=of.metrics(**metrics))
    assert len(list(_of_finding(one, n_rounds))) == n


@pytest.mark.parametrize(
    "claim, asked, where",
    [
        ({}, {}, []),
        ({}, {"epsilon": 3.0}, ["claims.epsilon"]),
        ({"mu": 1.0}, {}, ["claims.mu"]),
        ({"decisive": 7, "because": [3, 7]}, {}, []),
        ({"decisive": 7, "because": [3]}, {}, ["claims.decisive"]),
        ({"restated": "declared"}, {}, []),
        ({"restated": "other"}, {}, ["claims.restated"]),
        ({"restated": "void"}, {}, []),
        ({"restated": "adjacency"}, {}, []),
        ({"restated": "other", "scope": "round"}, {"scope": "round"}, []),
    ],
)
def test_a_claim_is_that_of_the_config_and_its_accounting(claim, asked, where) -> None:
    said = {"epsilon": 4.0, "delta": 0.1, "mu": None, "scope": "run", "text": "c"}
    said |= {"adjacency": "add-remove"}
    declared = of.accounted(0.5, 1.0)
    declared["metrics"] |= of.metrics(delta=0.1)
    same = {"epsilon": declared["metrics"]["epsilon"], "delta": 0.1, "void": None}
    same |= {"adjacency": "add-remove"}
    forms = {None: None, "declared": same, "other": same | {"delta": 0.2}}
    forms |= {"void": same | {"delta": 0.2, "void": "x"}}
    forms["adjacency"] = same | {"delta": 0.2, "adjacency": "replace-one"}
    own = {"confidence": None, "decisive": None, "because": []} | said | claim
    own["restated"] = forms[claim.get("restated")]
    evidence = of.evidence(declared, **own, config={"claim": [said | asked]})
    evidence = evidence._replace(claim=evidence.claim | own)
    assert [flaw.where for flaw in _restated(evidence, False)] == where


@pytest.mark.parametrize("role", ["declared", "measured"])
def test_what_is_restated_is_what_was_accounted(role: str) -> None:
    said = {"epsilon": 4.0, "delta": 0.1, "mu": None, "scope": "run", "text": "c"}
    said |= {"adjacency": "add-remove", "confidence": None}
    accounted = of.accounted(0.5, 1.0) | {"role": role}
    accounted["metrics"] |= of.metrics(delta=0.1)
    own = {"epsilon": accounted["metrics"]["epsilon"], "adjacency": "add-remove", "void": None}
    for delta, where in ((0.1, []), (0.2, ["claims.restated"])):
        claim = said | {"decisive": None, "because": [], "restated": own | {"delta": delta}}
        evidence = of.evidence(accounted, config={"claim": [said]})
        evidence = evidence._replace(claim=evidence.claim | claim)
        assert [flaw.where for flaw in _restated(evidence, False)] == where


@pytest.mark.parametrize(
    "verdict, refuted, confidence, where",
    [
        ("refuted", True, 0.95, []),
        ("refuted", True, None, ["claims.confidence"]),
        ("refuted", True, 0.99, ["claims.confidence"]),
        ("refuted", False, 0.95, ["claims.confidence"]),
        ("not refuted", False, 0.95, []),
        ("not refuted", False, None, ["claims.confidence"]),
        ("supported", False, None, []),
    ],
)
def test_a_verdict_by_statistics_alone_has_a_confidence(verdict, refuted, confidence, where):
    said = {"epsilon": 4.0, "delta": 0.1, "mu": None, "scope": "run", "text": "c"}
    said |= {"adjacency": "add-remove"}
    own = {"confidence": confidence, "decisive": None, "because": [], "restated": None}
    evidence = of.evidence(of.accounted(0.5, 1.0), config={"claim": [said]})
    evidence = evidence._replace(claim=evidence.claim | said | own, verdict=verdict)
    assert [flaw.where for flaw in _restated(evidence, refuted)] == where


def test_figures_of_a_claim_are_known_as_sentences_write_them() -> None:
    test = of.finding("test", of=of.metrics(confidence=0.9, epsilon_lower_bound=0.5), title="of 77")
    evidence = of.evidence(test, delta=None)
    evidence = evidence._replace(claim=evidence.claim | {"delta": 1e-3, "mu": None})
    known = _known(evidence)
    assert {"4", "0.001", "90", "8", "77", "0.5", "95", "1.65"} <= known
    assert not {"91", "0.125"} & known
    of_nothing = _known(evidence._replace(findings=[]))
    assert not {"90", "95", "8", "77"} & of_nothing


def test_the_room_shares_no_code_with_what_it_checks() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "scipy"}
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level != 1:
                assert node.module is not None
                assert node.module.split(".")[0] in allowed
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed
    lines = [line for path in ROOM.glob("*.py") for line in path.read_text().splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= 1000  # blank ones are not counted
