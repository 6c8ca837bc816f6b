"""The tidy frame of findings: which figure stands for a claim, an attack, an adversary."""

import math

from dpaudit.files.finding import Metric, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.reports.tables import (
    LargestFigure,
    claim_figures,
    evidence_frame,
    findings_frame,
    largest,
    largest_figures,
    of_the_defense,
)
from tests.reports.pages import small_finding, with_findings


def ssim(value: float, **changes: object) -> object:
    return small_finding(metrics={Name.SSIM: Metric(value=value, n=8)}, **changes)


def test_a_frame_has_a_row_for_each_metric_of_each_audit(golden: AuditResult) -> None:
    frame = findings_frame([golden, golden])
    n = sum(len(finding.metrics) for finding in golden.findings)
    assert frame.run.tolist() == [0] * n + [1] * n
    assert findings_frame([with_findings(golden)]).empty


def test_the_largest_is_the_void_one_then_the_largest_number(golden: AuditResult) -> None:
    values = [ssim(math.nan), ssim(0.25), ssim(0.5), ssim(0.5, message="y")]
    for findings, expected, void in (
        (values, 2, None),
        ([*values, ssim(0.1, void="why")], 4, "why"),
        (values[:1], 0, None),
    ):
        results = [with_findings(golden, *findings)]
        frame = findings_frame(results)
        [row] = largest(frame, ["run", "metric"]).to_dict("records")
        assert (row["finding"], row["among"]) == (expected, len(findings))
        [figure] = largest_figures(frame, results, ["run", "metric"]).values()
        assert figure.void == void
        assert figure.compared is None or figure.compared == 0.5 or math.isnan(figure.compared)


def test_only_what_is_of_the_defended_run_is_compared(golden: AuditResult) -> None:
    findings = [ssim(0.1, world=w) for w in ("defense", None, "no-defense", "blind")]
    assert of_the_defense(findings_frame([with_findings(golden, *findings)])).finding.tolist() == [
        0,
        1,
    ]


def test_a_claim_has_its_own_tests_and_its_sensitivity(golden) -> None:
    def test(bound: float) -> object:
        metrics = {Name.EPSILON_LOWER_BOUND: Metric(value=bound)}
        return small_finding(role=Role.TEST, kind="empirical-epsilon", metrics=metrics)

    def moved(ratio: float, adjacency: str | None) -> object:
        metrics = {Name.MEASURED_OVER_STATED: Metric(value=ratio)}
        kind = {"role": Role.SENSITIVITY, "kind": "sensitivity", "adjacency": adjacency}
        return small_finding(metrics=metrics, threat_model=None, **kind)

    findings = [test(0.5), test(0.75), test(9.0), moved(1.5, None), moved(7.0, "replace-one")]
    claim = golden.claims[0].model_copy(
        update={"because": (0, 1), "adjacency": "add-remove", "decisive": None}
    )
    results = [with_findings(golden, *findings, claims=(claim,))]
    [[figures]] = claim_figures(evidence_frame(findings_frame(results), results), results)
    assert (figures.certified.compared, figures.certified.among) == (0.75, 2)
    assert figures.sensitivity.compared == 1.5
    assert figures.exact == LargestFigure()
