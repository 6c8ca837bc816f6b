"""On what a statement is decided, value by value: tests of a claim, ends of curves, families."""

from typing import Any

import pytest

from dpaudit.check import statements as module
from dpaudit.check.statements import Tentative
from dpaudit.errors import ConfigError
from dpaudit.files.claims_file import Threshold, ThresholdSubject
from dpaudit.files.finding import Finding, Metric, Name
from dpaudit.files.result import Curve
from dpaudit.files.verdict import Verdict

from .test_statements import GOLDEN, audit_of, empirical, file_of, ssim

LIMIT = {"metric": "ssim", "at_most": 0.5}


def tentative(verdict: Verdict, *findings: Finding, confidence: float | None = None) -> Tentative:
    result = audit_of(verdict, *findings, confidence=confidence)
    [speaker] = module._speakers(file_of(LIMIT), {"c": result})
    return speaker.claim(result.claims[0])


@pytest.mark.parametrize(
    ("verdict", "p_values", "confidence", "p", "random"),
    [
        (Verdict.REFUTED, [0.01], 0.95, 0.01, True),
        (Verdict.REFUTED, [0.02, 0.01, 0.5], 0.95, 0.03, True),  # they share the claim's part
        (Verdict.REFUTED, [0.7, 0.6], 0.95, 1.0, True),
        (Verdict.REFUTED, [], 0.95, 0.05, True),
        (Verdict.UNSUPPORTED, [0.01], None, 0.0, False),
        (Verdict.NOT_REFUTED, [0.01], 0.95, 1.0, True),
        (Verdict.SUPPORTED, [], None, 1.0, False),
        (Verdict.UNDERPOWERED, [], None, 1.0, False),
    ],
)
def test_tests_of_a_claim_share_its_part(verdict, p_values, confidence, p, random) -> None:
    found = tentative(verdict, *map(empirical, p_values), ssim(0.1, 0.1), confidence=confidence)
    assert (found.p, found.random) == (pytest.approx(p, abs=1e-12), random)


def test_a_curve_ends_with_its_last_round_over_agents() -> None:
    curve = Curve(
        rounds=(1, 5), loss=((9.0, 9.0), (1.0, 3.0)), accuracy=((0.9, 0.9), (0.25, 0.5)),
        consensus_distance=(7.0, 2.0),
    )  # fmt: skip
    result = GOLDEN.model_copy(update={"utility": {"defense": curve}})
    [found] = module._utility(result)
    assert (found.kind, found.rounds, found.world) == ("utility", (5,), "defense")
    assert found.metrics == {
        Name.LOSS: Metric(value=2.0, low=1.0, high=3.0),
        Name.ACCURACY: Metric(value=0.375, low=0.25, high=0.5),
        Name.CONSENSUS_DISTANCE: Metric(value=2.0),
    }


@pytest.mark.parametrize(
    ("name", "metric", "side", "certified"),
    [
        (Name.EPSILON_LOWER_BOUND, Metric(value=1.0), "above", True),
        (Name.EPSILON_LOWER_BOUND, Metric(value=1.0), "below", False),
        (Name.EPSILON_LOWER_BOUND, Metric(value=1.0, low=0.5), "above", False),
        (Name.EPSILON_LOWER_BOUND, Metric(value=1.0, high=1.5), "above", True),
        (Name.EPSILON, Metric(value=1.0), "above", False),
    ],
)
def test_a_limit_on_a_lower_bound_alone_is_certified(name, metric, side, certified) -> None:
    assert module._is_certified(name, metric, side) is certified


def test_a_limit_of_the_claim_is_that_of_its_adversary() -> None:
    claims = [
        GOLDEN.claims[0].model_copy(update={"epsilon": e, "threat_model": m})
        for e, m in ((3.0, "a"), (2.0, "a"), (None, "a"), (1.0, "b"), (None, "c"))
    ]
    result = GOLDEN.model_copy(update={"claims": tuple(claims)})
    threshold = Threshold.model_validate({"metric": "epsilon", "at_most": "claim"})

    def limit(threat_model: str | None) -> float:
        subject = ThresholdSubject("accounting", {}, threat_model=threat_model)
        return module._limit_value(threshold, subject, result)

    assert [limit(m) for m in ("a", "b", None)] == [2.0, 1.0, 1.0]
    for other in ("c", "d"):
        with pytest.raises(ConfigError, match=f'no epsilon is claimed against "{other}"'):
            limit(other)


def test_the_selector_that_fits_nothing_is_named() -> None:
    result = audit_of(Verdict.REFUTED, ssim(0.1, 0.1, rounds=(9,)), ssim(0.1, 0.1, rounds=(3, 9)))

    def said(**of: Any) -> str:
        return module._no_finding(Threshold.model_validate({**LIMIT, **of}), result)

    rounds = "no finding fits all that is given; there are rounds 3, 9"
    assert said() == said(attack="gradient-inversion", round=4) == rounds
    assert said(attack="gradient-inversions") == (
        'no finding has attack = "gradient-inversions" (did you mean "gradient-inversion"?); '
        "there are gradient-inversion"
    )
    several = Threshold.model_validate({**LIMIT, "attack": "x"})
    named = "attack[1], attack[2], likelihood-ratio, mutual-information"
    assert module._no_finding(several, GOLDEN).endswith(f"; there are {named}")


def decided(*tests: tuple[str, float, bool], significance: float = 0.05) -> list[str]:
    """The outcomes of tests, by what each is about, its p-value and whether it is of chance."""
    [speaker] = module._speakers(file_of(LIMIT), {"c": audit_of(Verdict.REFUTED)})
    found = [
        Tentative(
            speaker.says(about, (str(i), ""), "holds", "kept", "m", "DPA134"),  # type: ignore[arg-type]
            p, significance, random, "broken", "n",
        )
        for i, (about, p, random) in enumerate(tests)
    ]  # fmt: skip
    return [statement.outcome for statement in module._decided(found)]


def test_p_values_are_adjusted_among_what_is_alike() -> None:
    """By Holm: the least of n counts n times."""
    assert decided(("claim", 0.03, True)) == ["fails"]
    assert decided(("claim", 0.03, True), ("claim", 0.5, True)) == ["warning", "holds"]
    assert decided(("claim", 0.02, True), ("claim", 0.03, True)) == ["fails", "fails"]
    for about in ("threshold", "evidence"):
        assert decided(("claim", 0.03, True), (about, 0.03, True)) == ["fails", "fails"]
        assert decided((about, 0.03, True), (about, 0.5, True)) == ["warning", "holds"]
        assert decided((about, 0.03, False), (about, 0.5, True)) == ["fails", "holds"]
        assert decided((about, 0.03, True), (about, 0.5, False)) == ["fails", "holds"]
    assert decided(("claim", 1 - 0.95, True)) == ["fails"]  # which is above 0.05 by rounding
    assert decided(("claim", 0.05 + 1e-9, True)) == ["holds"]
