"""Evidence has a type: its role, its claim by index, and one vocabulary of metrics."""

import json
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dpaudit.errors import RunError
from dpaudit.files import finding as finding_file
from dpaudit.files.finding import (
    KINDS,
    Finding,
    Metric,
    Name,
    Role,
    canonical,
    claim_column,
    known_releases,
    restart_column,
)
from dpaudit.files.result import (
    AuditResult,
    Curve,
    EpsilonRange,
    GraphSummary,
    JudgedClaim,
    Premise,
    _citing,
    _finding,
    _indexed,
    upgraded,
)
from dpaudit.files.verdict import Verdict
from dpaudit.release import Release

GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"


def finding(role: Role = Role.TEST, **fields: object) -> Finding:
    return Finding(**{"role": role, "kind": KINDS[role], "title": "t", **fields})


def test_a_role_has_one_kind() -> None:
    assert set(KINDS) == set(Role)
    with pytest.raises(ValidationError, match='role "test" is of kind "empirical-epsilon"'):
        finding(kind="control")


@pytest.mark.parametrize("spelling", ["M_NMI", "m nmi", "m-nmi", "M-NMI"])
def test_every_spelling_of_a_metric_is_one_name(spelling: str) -> None:
    assert canonical(spelling) == Name.M_NMI


def test_a_known_metric_cannot_be_respelt() -> None:
    with pytest.raises(ValidationError, match='"p_value" is spelt "p-value"'):
        finding(metrics={"p_value": Metric(value=0.5)})
    assert finding(metrics={"My own": Metric(value=1.0)}).value("My own") == 1.0
    assert finding().value(Name.P_VALUE) is None


def test_no_two_names_are_one_in_other_spellings() -> None:
    assert all(canonical(name) == name for name in Name)


def test_a_file_of_version_1_is_read_with_roles_and_claims(tmp_path: Path) -> None:
    """Roles from what a finding holds, claims from what the claims cite; no title is read."""
    old: dict = json.loads(GOLDEN.read_text())
    assert old["schema_version"] == 1
    for finding in old["findings"]:
        finding["title"] = "anything"
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(old))
    result = AuditResult.read(path)
    assert [claim.claim for claim in result.claims] == [0, 0]  # one claim, two adversaries
    by_role = {found.role: found for found in reversed(result.findings)}
    assert by_role[Role.TEST].claim == 0
    assert by_role[Role.NULL_CONTROL].claim is None  # cited by no claim in that file
    assert by_role[Role.DECLARED].value(Name.EPSILON) is not None
    assert by_role[Role.RECONSTRUCTION].value(Name.SSIM_OVER_BLIND) is not None
    path.write_text(result.to_json())
    assert AuditResult.read(path) == result


def test_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text(json.dumps({"schema_version": 4}))
    with pytest.raises(RunError, match="reads versions 1 to 3; update dpaudit, or run"):
        AuditResult.read(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["claims"][1].update(because=[0, 99]),
            "claims[2].because: there is no finding 99",
        ),
        (lambda c: c.update(verdict="fine"), "verdict: Input should be 'refuted', "),
        (
            lambda c: c["claims"][0].update(verdict="unsupported"),
            "verdict: expected unsupported, the worst of those of the claims, got ",
        ),
        (lambda c: c.update(claims=[]), "verdict: expected none, "),
        (lambda c: c["findings"][0].pop("title"), "findings[1].title: Field required"),
        (
            lambda c: c["findings"][0].update(role="nose"),
            "findings[1].role: Input should be 'test', ",
        ),
        (
            lambda c: c["graph"].update(n_agents=2),
            "graph: expected a position for each of 2 agents",
        ),
        (lambda c: c["graph"]["links"][2].pop(), "graph.links[3]: expected 2 values, got [1]"),
        (lambda c: c.update(extra=1), "extra: unknown key"),
    ],
)
def test_what_is_wrong_in_an_audit_json_is_one_line(
    tmp_path: Path, change: Callable[[dict], object], said: str
) -> None:
    content = json.loads(AuditResult.read(GOLDEN).to_json())
    change(content)
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(content))
    with pytest.raises(RunError) as refused:
        AuditResult.read(path)
    assert str(refused.value).startswith(f"{path}: {said}")
    assert "\n" not in str(refused.value)
    assert "Value error" not in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"'])
def test_a_json_file_that_holds_no_object_is_no_audit_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"audit.json: not an audit.json \(expected an object, "):
        AuditResult.read(path)


def test_an_end_that_is_not_known_is_the_value() -> None:
    assert Metric(value=2.0, low=1.0, high=4.0).ends == (1.0, 4.0)
    assert Metric(value=2.0, high=4.0).ends == (2.0, 4.0)
    assert Metric(value=2.0, low=1.0).ends == (1.0, 2.0)


def test_columns_of_a_table_have_one_length() -> None:
    given = {"role": Role.TEST, "kind": KINDS[Role.TEST], "title": "t"}
    assert Finding(**given, series={"a": (1.0, 2.0), "b": (3.0, 4.0)}, trace={"a": (1.0,)})
    for table in ("series", "trace"):
        with pytest.raises(ValueError, match=f"the columns of {table} differ in length"):
            Finding(**given, **{table: {"a": (1.0, 2.0), "b": (3.0,)}})


@pytest.mark.parametrize(
    "finding, role",
    [
        ({"kind": "control", "world": "no-defense"}, Role.POSITIVE_CONTROL),
        ({"kind": "control", "metrics": {Name.P_VALUE: 1}}, Role.NOISE),
        ({"kind": "control", "world": "defense"}, Role.NULL_CONTROL),
        ({"kind": "accounting"}, Role.DECLARED),
        ({"kind": "accounting", "attack": "a"}, Role.EXACT_LEAK),
        ({"kind": "accounting", "attack": "a", "series": {"victim": []}}, Role.WHO_LEARNS_WHAT),
        ({"kind": "accounting", "series": {"victim": []}}, Role.DECLARED),
        ({"kind": "sensitivity"}, Role.SENSITIVITY),
        ({"kind": "sensitivity", "metrics": {Name.FOUND: 1}}, Role.DEPENDENCE),
        ({"kind": "empirical-epsilon"}, Role.TEST),
        ({"kind": "empirical-epsilon", "metrics": {Name.EPSILON_LOWER_BOUND: 1}}, Role.TEST),
        ({"kind": "empirical-epsilon", "metrics": {Name.MU_LOWER_BOUND: 1}}, Role.NOISE_BOUND),
        ({"kind": "mutual-information"}, Role.INFORMATION),
        ({"kind": "mutual-information", "metrics": {Name.VARIANCE_EXPLAINED: 1}}, Role.BEST_ESTIMATE),
        ({"kind": "reconstruction", "metrics": {Name.VARIANCE_EXPLAINED: 1}}, Role.RECONSTRUCTION),
    ],
)  # fmt: skip
def test_a_finding_of_version_1_has_the_role_of_what_it_holds(finding: dict, role: Role) -> None:
    assert _finding(finding, None)["role"] is role


def test_claims_of_version_1_stand_one_by_one() -> None:
    """One claim is made against one of the two adversaries; a claim too many is of the last one."""
    stated: list[dict] = [{}, {"threat_model": "a"}, {}]
    content = {"config": {"claim": stated}, "threat_models": ["a", "b"], "claims": [{}] * 6}
    assert [claim["claim"] for claim in _indexed(content)] == [0, 0, 1, 2, 2, 2]
    assert [claim["claim"] for claim in _indexed({"claims": [{}]})] == [0]


def test_what_is_malformed_in_version_1_is_left_for_checks() -> None:
    claims: list[Any] = [3, {"because": [0, 1, "x"]}, {"because": 7}]
    stated: list[Any] = [{"threat_model": "a"}, 5]
    content = {"config": {"claim": stated}, "threat_models": ["a"], "claims": claims}
    found = upgraded({**content, "findings": [4, {"kind": "control", "metrics": 8}]})
    assert found["claims"] == [3, {"because": [0, 1, "x"], "claim": 1}, {"because": 7, "claim": 1}]
    assert found["findings"][0] == 4
    assert found["findings"][1] == {**_finding({"kind": "control", "metrics": 8}, 1)}
    assert [_indexed({"config": config, "claims": [{}]}) for config in (3, None)] == [
        [{"claim": 0}]
    ] * 2
    assert _citing([{"because": [0, 1], "claim": 2}, {"because": (1,), "claim": 3}]) == {0: 2}


def test_ends_that_are_of_no_releases_are_left_out() -> None:
    release = Release(family="gaussian", noise_multiplier=1.0)
    assert known_releases(None, None) == {}
    assert known_releases([release], None) == {"least": (release,)}
    assert known_releases(None, []) == {"most": ()}
    assert [restart_column(2), claim_column(3)] == ["loss of restart 2", "claim 3 allows"]


def test_infinite_numbers_are_texts_in_json() -> None:
    metric = Metric(value=inf, low=-inf, high=nan)
    assert '"inf","low":"-inf","high":"nan"' in metric.model_dump_json()
    assert Metric.model_validate_json(metric.model_dump_json()).value == inf
    assert Metric(value=float("inf")).model_dump()["value"] == inf


@pytest.mark.parametrize(
    "ends, said",
    [
        (
            (1.0, 2.0, 3.0),
            "at least 1 (by attacks or algebra), at most 2 (accounted), at most 3 (m",
        ),
        (
            (1.829988, 2.00001, 3.0),
            "at least 1.829 (by attacks or algebra), at most 2.001 (accounted), at most 3 (m",
        ),
        ((1.0, 2.0, inf), "at least 1 (by attacks or algebra), 2 if its premises held (accounted)"),
        ((1.0, inf, inf), "at least 1 (by attacks or algebra), no upper end (accounted), no upper"),
        ((inf, inf, 3.0), "infinite (by attacks or algebra), no upper end (accounted), at most 3"),
    ],
)
def test_what_is_known_of_epsilon_in_words(ends: tuple[float, ...], said: str) -> None:
    named = dict(zip(("certified", "accounted", "measured"), ends, strict=True))
    assert EpsilonRange(**named).sentence.startswith(f"epsilon {said}")


def claim_with(*statuses: str, **changed: Any) -> JudgedClaim:
    judged = AuditResult.read(GOLDEN).claims[0]
    names = ("distance", "noise", "records")
    premises = tuple(
        Premise(name=name, status=status, says="so")
        for name, status in zip(names, statuses, strict=False)
    )
    known = EpsilonRange(certified=0.1, accounted=1.0, measured=inf)
    fields = {"verdict": Verdict.NOT_REFUTED, "epsilon": 1.0, "range": known, "premises": premises}
    return judged.model_copy(update=fields | changed)


def test_premises_that_were_not_examined_are_missing() -> None:
    one = claim_with("examined", "not examined", "failed")
    assert [premise.name for premise in one.missing] == ["noise", "records"]
    assert one.failed == one.premises[2]
    assert one.examination == (
        "✓ distance examined; × records failed: so; ? noise not examined: so"
    )
    assert claim_with("failed").examination == "× distance failed: so"
    assert claim_with("examined", "examined").examination == "✓ distance, noise examined"
    assert [claim_with("examined").failed, claim_with().examination] == [None, ""]


def test_premises_missing_for_one_reason_share_a_clause() -> None:
    one = claim_with("not examined", "failed", "not examined")
    assert one.examination == "× noise failed: so; ? distance, records not examined: so"


def test_a_failed_premise_has_a_remedy() -> None:
    failed = claim_with("failed", verdict=Verdict.UNSUPPORTED)
    assert failed.remedy.startswith("Clip the gradient of each record")
    noiseless = {"verdict": Verdict.REFUTED, "codes": ("DPA101", "DPA121")}
    assert claim_with("failed", **noiseless).remedy == ""  # no clip helps: the code says what does
    assert claim_with("examined", "failed", **noiseless).remedy.startswith("Draw fresh noise")
    assert claim_with("failed").remedy == ""  # of no verdict against a claim
    assert claim_with("examined", "not examined", verdict=Verdict.REFUTED).remedy == ""


def test_what_a_claim_lacks() -> None:
    settled = claim_with("examined")
    above = settled.model_copy(update={"epsilon": 0.9})
    lacking = {
        "": settled.model_copy(update={"verdict": Verdict.SUPPORTED}),
        "no premise was examined": settled.model_copy(update={"range": None}),
        "noise failed: so": claim_with("examined", "failed"),
        "no premise is missing": settled,
        "accounting does not settle the claim": above,
    }
    assert [one.lacking for one in lacking.values()] == list(lacking)
    assert above.model_copy(update={"epsilon": None}).lacking == above.lacking


def test_a_graph_and_curves_that_can_be_drawn() -> None:
    places = ((0.0, 1.0), (1.0, 0.0))
    assert GraphSummary(name="g", n_agents=2, links=((0, 1),), positions=places)
    for wrong in ({"links": ((0, 2),)}, {"positions": places[:1]}, {"links": ((-1, 0),)}):
        with pytest.raises(ValidationError, match="expected a position for each of 2 agents"):
            GraphSummary(**{"name": "g", "n_agents": 2, "links": (), "positions": places} | wrong)
    given: dict[str, Any] = {"rounds": (1, 2), "loss": ((1.0,), (2.0,))}
    given |= {"accuracy": (), "consensus_distance": (0.0, 0.0)}
    assert Curve(**given).messages == ()
    for name, column in (("loss", ((1.0,),)), ("consensus_distance", ()), ("messages", (3,))):
        with pytest.raises(ValidationError, match="differ in length"):
            Curve(**given | {name: column})


def test_the_first_claim_with_the_worst_verdict_decides() -> None:
    result = AuditResult.read(GOLDEN)
    first, second = (claim_with(claim=i, reason=f"r{i}", meaning="") for i in (0, 1))
    worse = second.model_copy(update={"verdict": Verdict.REFUTED})
    both = result.model_copy(update={"claims": (first, worse), "verdict": Verdict.REFUTED})
    assert both.decided_by == worse
    assert both.sentence.startswith("r1 ")
    assert f"\n2 verdicts and {len(both.findings)} findings in to_frame" in str(both)
    assert "premises: " not in str(both)
    alone = both.model_copy(update={"claims": (claim_with("failed"),), "verdict": first.verdict})
    assert "\npremises: × distance failed: so\n1 verdict and " in str(alone)
    none = both.model_copy(update={"claims": (), "verdict": None})
    assert (none.sentence, none.decided_by) == ("No claim was made, so there is no verdict.", None)
    assert str(none).startswith("no claim was made, so there is no verdict\n0 verdicts and ")


def test_a_bound_is_exceeded_beyond_a_millionth_of_it() -> None:
    assert pytest.approx(1.000001, abs=1e-12) == finding_file.WITHIN_BOUND
