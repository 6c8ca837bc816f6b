"""What is said about each claim and limit, and how several of them are adjusted for one another."""

from math import inf
from pathlib import Path

import pytest

from dpaudit.check.baseline import Baseline, check_baseline
from dpaudit.check.statements import beside_baseline, statements
from dpaudit.files.claims_file import Claims, ClaimsFile, Statement
from dpaudit.files.finding import Finding, Metric, Role
from dpaudit.files.result import AuditResult, EpsilonRange, Premise
from dpaudit.files.verdict import Verdict

HELD = Premise(name="distance", status="examined", says="in all 5 rounds")
MISSING = Premise(name="completeness", status="not examined", says="exceptions were not looked for")
GOLDEN = AuditResult.read(Path(__file__).parents[1] / "golden" / "audit.json")


def file_of(*thresholds: dict, names: tuple[str, ...] = ("c",), **fields: object) -> ClaimsFile:
    checks = [
        {"name": name, "audit": {}, "threshold": list(thresholds), **fields} for name in names
    ]
    claims = Claims.model_validate({"check": checks})
    return ClaimsFile(Path("claims.toml"), "", claims)


def audit_of(
    verdict: Verdict, *findings: Finding, confidence: float | None = None, **fields: object
) -> AuditResult:
    claim = GOLDEN.claims[0].model_copy(
        update={
            "verdict": verdict,
            "confidence": confidence,
            "because": tuple(range(len(findings))),
            "reason": "The reason.",
            **fields,
        }
    )
    return GOLDEN.model_copy(update={"claims": (claim,), "findings": findings})


def empirical(p: float, bound: float = 1.9, **metrics: float) -> Finding:
    values = {"epsilon lower bound": bound, "p-value": p, "confidence": 0.95, **metrics}
    return Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title="t",
        attack="likelihood-ratio",
        threat_model="eavesdropper",
        metrics={key: Metric(value=value) for key, value in values.items()},
    )


def ssim(value: float, half: float, n: int = 8, **fields: object) -> Finding:
    metric = Metric(value=value, low=value - half, high=value + half, n=n)
    return Finding(
        role=Role.RECONSTRUCTION,
        kind="reconstruction",
        title="t",
        attack="gradient-inversion",
        threat_model="eavesdropper",
        metrics={"ssim": metric},
        **fields,
    )


@pytest.mark.parametrize("verdict", [Verdict.REFUTED, Verdict.UNSUPPORTED])
def test_what_speaks_against_a_claim_fails_with_its_reason(verdict: Verdict) -> None:
    """A bound below the claim is not what made it fail, and accounting certifies nothing."""
    found = audit_of(verdict, empirical(0.001, bound=0.098))
    [said] = statements(file_of(), {"c": found})
    assert (said.outcome, said.verdict) == ("fails", verdict.value)
    assert said.message == (
        '"DPDL, Theorem 1: (0.5, 1e-05)-DP for the whole run, add-remove adjacency" against '
        f'adversary "eavesdropper" is {verdict}: The reason.'
    )


@pytest.mark.parametrize(
    "verdict, outcome",
    [
        (Verdict.SUPPORTED, "holds"),
        (Verdict.NOT_REFUTED, "holds"),
        (Verdict.UNDERPOWERED, "warning"),
    ],
)
def test_other_verdicts_do_not_fail(verdict: Verdict, outcome: str) -> None:
    [said] = statements(file_of(), {"c": audit_of(verdict, empirical(0.001), confidence=0.95)})
    assert said.outcome == outcome


def accounted(verdict: Verdict, *premises: Premise, measured: float = inf) -> AuditResult:
    known = EpsilonRange(certified=0.25, accounted=0.5, measured=measured)
    return audit_of(verdict, premises=premises, range=known)


def test_a_claim_is_said_with_range_and_missing_premise() -> None:
    other = MISSING.model_copy(update={"name": "state"})
    found = accounted(Verdict.UNDERPOWERED, HELD, MISSING, other)
    [said] = statements(file_of(), {"c": found})
    assert said.message.endswith(
        "is underpowered: The reason. Epsilon at least 0.25 (by attacks or algebra), 0.5 if its "
        "premises held (accounted), no upper end (measured). Missing premise: completeness (not examined)."
    )
    [said] = statements(file_of(), {"c": accounted(Verdict.SUPPORTED, HELD, measured=0.5125)})
    assert said.message.endswith("at most 0.5 (accounted), at most 0.5125 (measured).")


def test_the_failed_premise_is_named_first_with_what_to_do() -> None:
    says = '"x" moves 4 times its stated bound: clipping is missing or too weak, or the noise too small'
    failed = Premise(name="distance", status="failed", says=says)
    [said] = statements(file_of(), {"c": accounted(Verdict.UNSUPPORTED, HELD, MISSING, failed)})
    assert said.message.startswith(f'{says}. "DPDL, Theorem 1')
    assert "Missing premise" not in said.message
    assert said.cause == says
    assert said.remedy.startswith("Clip the gradient of each record to the stated norm")


@pytest.mark.parametrize(
    "before, now, outcome",
    [
        (Verdict.SUPPORTED, Verdict.UNDERPOWERED, "fails"),
        (Verdict.SUPPORTED, Verdict.NOT_REFUTED, "fails"),
        (Verdict.UNDERPOWERED, Verdict.SUPPORTED, "holds"),
        (Verdict.NOT_REFUTED, Verdict.SUPPORTED, "holds"),
        (Verdict.SUPPORTED, Verdict.SUPPORTED, None),
        (Verdict.NOT_REFUTED, Verdict.UNDERPOWERED, None),  # which may be chance
        (Verdict.SUPPORTED, Verdict.REFUTED, None),  # which the claim says itself
    ],
)
def test_a_claim_that_is_no_longer_supported_got_worse(before, now, outcome) -> None:
    old = check_baseline({}, accounted(before, HELD, measured=0.5125))
    found = {"c": accounted(now, HELD, *[MISSING] * (now is not Verdict.SUPPORTED))}
    said = beside_baseline(file_of(), found, Baseline(checks={"c": old}), "content")
    about = [s for s in said if s.adversary]
    assert [s.outcome for s in about] == [outcome] * (outcome is not None)
    if outcome == "fails":
        assert about[0].code == "DPA142"
        assert about[0].message.endswith(
            f"got worse: it is {now} and was supported in the baseline with epsilon at least 0.25 "
            "(by attacks or algebra), at most 0.5 (accounted), at most 0.5125 (measured). What is "
            "missing now: completeness not examined: exceptions were not looked for"
        )


def test_a_limit_on_a_void_figure_is_broken() -> None:
    """Its upper end is not known, so nothing says that it keeps to anything."""
    epsilon = Metric(value=inf, low=0.0, high=inf)
    declared = Finding(
        role=Role.DECLARED,
        kind="accounting",
        title="t",
        metrics={"epsilon": epsilon},
        void='"x" moves 15.2 times as far as its noise is made for',
    )
    limit = {"metric": "epsilon", "at_most": 100.0, "kind": "accounting"}
    said = statements(file_of(limit), {"c": audit_of(Verdict.UNSUPPORTED, declared)})[1]
    assert said.outcome == "fails"
    assert said.message.endswith(
        'void, because "x" moves 15.2 times as far as its noise is made for'
    )
    known = {"epsilon": epsilon.model_copy(update={"low": 0.336})}
    more = declared.model_copy(update={"metrics": known, "void": "runs certify more"})
    said = statements(file_of(limit), {"c": audit_of(Verdict.UNSUPPORTED, more)})[1]
    assert said.message.endswith("void, because runs certify more (at least 0.336)")
    honest = declared.model_copy(update={"void": None})  # a bracket whose upper end is not proven
    assert statements(file_of(limit), {"c": audit_of(Verdict.UNSUPPORTED, honest)})[1].outcome == (
        "holds"
    )


def test_refutations_are_adjusted_for_all_claims_of_the_file() -> None:
    """At 0.05: 0.03 alone refutes; among three tests it is 0.09, and 0.01 is 0.03."""
    weak = audit_of(Verdict.REFUTED, empirical(0.03), confidence=0.95)
    strong = audit_of(Verdict.REFUTED, empirical(0.01), confidence=0.95)
    none = audit_of(Verdict.NOT_REFUTED, empirical(0.4), confidence=0.95)
    assert statements(file_of(), {"c": weak})[0].outcome == "fails"
    file = file_of(names=("a", "b", "c"))
    said = statements(file, {"a": weak, "b": strong, "c": none})
    assert [s.outcome for s in said] == ["warning", "fails", "holds"]
    assert (
        "alone this is significant (p = 0.03). Among the 3 claims that this file" in said[0].message
    )


def test_only_tests_of_the_claim_count() -> None:
    """0.03 as one of two tests is 0.06; a control's small p-value refutes nothing."""
    control = empirical(1e-9).model_copy(update={"kind": "control", "role": Role.NOISE})
    alone = audit_of(Verdict.REFUTED, empirical(0.03), control, confidence=0.95)
    shared = audit_of(Verdict.REFUTED, empirical(0.03), empirical(0.5), confidence=0.95)
    none = audit_of(Verdict.NOT_REFUTED, empirical(0.4), confidence=0.95)
    for found in (alone, shared):
        said = statements(file_of(names=("a", "b")), {"a": found, "b": none})
        assert said[0].outcome == "warning"
    assert statements(file_of(), {"c": alone})[0].outcome == "fails"
    assert statements(file_of(), {"c": shared})[0].outcome == "warning"


def test_what_is_exact_is_not_adjusted() -> None:
    exact = audit_of(Verdict.UNSUPPORTED)
    weak = audit_of(Verdict.REFUTED, empirical(0.03), confidence=0.95)
    said = statements(file_of(names=("a", "b")), {"a": exact, "b": weak})
    assert [s.outcome for s in said] == ["fails", "fails"]


def test_a_refutation_without_a_p_value_counts_at_its_level() -> None:
    bare = Finding(role=Role.TEST, kind="empirical-epsilon", title="t", metrics={})
    found = audit_of(Verdict.REFUTED, bare, confidence=0.99)
    assert statements(file_of(), {"c": found})[0].outcome == "fails"
    assert statements(file_of(significance=0.005), {"c": found})[0].outcome == "warning"


def limit(found: AuditResult, **threshold: object) -> Statement:
    [said] = [s for s in statements(file_of(threshold), {"c": found}) if s.about == "threshold"]
    return said


def test_a_limit_is_broken_only_beyond_the_error() -> None:
    """With n = 8 the 95% interval reaches t = 2.36 errors; one-sided 5% is 1.89 of them."""
    found = audit_of(Verdict.NOT_REFUTED, ssim(0.5, 0.1))
    assert limit(found, metric="ssim", at_most=0.38).outcome == "fails"
    assert limit(found, metric="ssim", at_most=0.45).outcome == "holds"  # 1.18 errors
    assert limit(found, metric="ssim", at_least=0.55).outcome == "holds"
    assert limit(found, metric="SSIM", at_least=0.62).outcome == "fails"
    broken = limit(found, metric="ssim", at_most=0.2)
    assert broken.message == (
        'ssim of gradient-inversion at most 0.2 against adversary "eavesdropper" is broken: the value is '
        "0.5 (0.4 to 0.6, n = 8)"
    )
    assert broken.verdict == "limit broken"


def test_limits_are_adjusted_too() -> None:
    found = audit_of(Verdict.NOT_REFUTED, ssim(0.5, 0.1, rounds=(1,)), ssim(0.5, 0.1, rounds=(2,)))
    about_one = {"metric": "ssim", "at_most": 0.405, "round": 1}  # p = 0.026
    about_both = {"metric": "ssim", "at_most": 0.405}
    assert statements(file_of(about_one), {"c": found})[1].outcome == "fails"
    said = statements(file_of(about_both, significance=0.03), {"c": found})
    assert [s.outcome for s in said[1:]] == ["warning", "warning"]


def test_the_claim_is_a_limit_for_certified_bounds() -> None:
    counts = {
        "false positives": Metric(value=40, n=1000),
        "false negatives": Metric(value=300, n=1000),
        "delta": Metric(value=1e-5),
    }
    bound = empirical(0.001, bound=1.9)
    metrics = {**bound.metrics, "epsilon lower bound": Metric(value=1.9, n=2000), **counts}
    found = audit_of(
        Verdict.REFUTED, bound.model_copy(update={"metrics": metrics}), confidence=0.95
    )
    said = limit(found, metric="epsilon lower bound", at_most="claim")
    assert said.outcome == "fails"
    assert "at most 0.5" in said.subject
    assert limit(found, metric="epsilon_lower_bound", at_most=2.0).outcome == "holds"
    assert limit(found, metric="epsilon_lower_bound", at_most=1.5).outcome == "fails"
    larger = found.claims[0].model_copy(update={"epsilon": 1.8})
    both = found.model_copy(update={"claims": (larger, *found.claims)})
    assert "at most 0.5" in limit(both, metric="epsilon lower bound", at_most="claim").subject


def test_utility_can_be_limited_over_agents() -> None:
    accuracy = GOLDEN.utility["defense"].accuracy[-1]
    found = audit_of(Verdict.NOT_REFUTED)
    least = {"metric": "accuracy", "kind": "utility"}
    assert limit(found, **least, at_least=max(accuracy) - 0.001).outcome == "holds"
    assert limit(found, **least, at_least=max(accuracy) + 0.001).outcome == "fails"
    assert limit(found, **least, at_most=min(accuracy) - 0.001).outcome == "fails"
    assert limit(found, metric="consensus distance", kind="utility", at_most=1e9).verdict
    *_, before, last = GOLDEN.utility["defense"].rounds
    assert limit(found, **least, at_least=0, round=last).outcome == "holds"
    said = limit(found, **least, at_least=0, round=before)
    assert (said.outcome, said.message.count("no finding")) == ("error", 1)


@pytest.mark.parametrize(
    "threshold, expected",
    [
        ({"metric": "ssmi"}, 'no finding has a metric "ssmi" (did you mean "ssim"?); there are ssim'),
        ({"metric": "ssim", "attack": "gradient-inverson"},
         'no finding has attack = "gradient-inverson" (did you mean "gradient-inversion"?)'),
        ({"metric": "ssim", "threat_model": "eve"}, 'no finding has threat_model = "eve"'),
        ({"metric": "ssim", "round": 9}, "no finding fits all that is given; there are rounds 1"),
    ],
)  # fmt: skip
def test_a_limit_on_what_is_missing_names_the_nearest(threshold, expected) -> None:
    found = audit_of(Verdict.NOT_REFUTED, ssim(0.5, 0.1, rounds=(1,)))
    claim, error = statements(file_of({**threshold, "at_most": 1.0}), {"c": found})
    assert (claim.about, claim.outcome) == ("claim", "holds")  # what can be said is said
    assert (error.outcome, error.code) == ("error", "DPA050")
    assert error.message.startswith("claims.toml: check[1].threshold[1].metric: ")
    assert expected in error.message
