"""The sentences of a verdict, each from the least evidence that decides it."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from dpaudit.accounting.releases import Interval
from dpaudit.defense.claim_accounting import AccountedClaim
from dpaudit.files.claim import Claim
from dpaudit.files.finding import KINDS, Finding, Metric, Name, Role
from dpaudit.files.result import Premise
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.rules import ClaimCase, Judging, decide, meaning

HELD = (Premise(name="noise", status="examined", says="it was tested"),)
EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
CLAIM = Claim(text="c", epsilon=2.0, delta=1e-5)


def case(*findings: Finding, held: bool = False, refuted: bool = False) -> ClaimCase:
    judging = Judging(0, CLAIM, EAVESDROPPER, AccountedClaim(Interval(0.0, inf), 1e-5, 0, ()), ())
    return ClaimCase(judging, findings, refuted, 1, HELD if held else ())


def finding(role: Role, *ends: float, **more: Any) -> Finding:
    """With an epsilon between its ends, if it has some."""
    epsilon = {Name.EPSILON: Metric(value=ends[-1], low=ends[0], high=ends[-1])} if ends else {}
    metrics = {**epsilon, Name.DELTA: Metric(value=1e-5), **more.pop("metrics", {})}
    return Finding(role=role, kind=KINDS[role], title=role, metrics=metrics, **more)


def certified(bound: float, ceiling: float = 6.0, **of_test: float) -> Finding:
    values = {Name.EPSILON_LOWER_BOUND: bound, Name.CEILING: ceiling, Name.P_VALUE: 0.5}
    values |= {Name(name): value for name, value in of_test.items()}
    return finding(Role.TEST, metrics={name: Metric(value=v) for name, v in values.items()})


@pytest.mark.parametrize(
    "role, says", [(Role.DECLARED, "Accounting"), (Role.MEASURED, "What was measured")]
)
def test_a_supported_claim_names_what_supports_it(role: Role, says: str) -> None:
    decision = decide(case(finding(role, 1.0, 1.5), held=True))
    assert (decision.verdict, decision.code) == (Verdict.SUPPORTED, "DPA141")
    figures = "epsilon between 1 and 1.5 at delta 1e-05, 2 claimed"
    held = "each premise that this rests on was examined and held"
    assert decision.reason == f"{says} supports the claim ({figures}), and {held}."


def test_a_void_or_exceeded_declaration_supports_nothing() -> None:
    assert case(finding(Role.DECLARED, 1.0, 2.0), held=True).is_supported
    assert not case(finding(Role.DECLARED, 1.0, 2.1), held=True).is_supported
    assert not case(finding(Role.DECLARED, 1.0, 1.5, void="x"), held=True).is_supported
    assert not case(finding(Role.DECLARED, 1.0, 1.5), certified(2.5), held=True).is_supported
    assert not case(finding(Role.DECLARED, 1.0, 1.5)).is_supported


NOISE = finding(Role.NOISE, unconfirmed=('"x"', '"y"'))


@pytest.mark.parametrize(
    "evidence, says",
    [
        ((), "Claimed epsilon 2, and no attack"),
        (
            (finding(Role.DECLARED, 1.5),),
            "Accounting stays within the claim (epsilon 1.5 at delta 1e-05, 2 claimed), and",
        ),
        (
            (finding(Role.DECLARED, 1.0, 2.5), NOISE),
            "Accounting does not settle the claim (epsilon between 1 and 2.5",
        ),
        (
            (finding(Role.DECLARED, 1.0, 2.0), NOISE),
            "Accounting would support the claim (epsilon between 1 and 2 at delta 1e-05, 2 "
            'claimed) if the noise had the declared law, which was not confirmed of "x", and of '
            '"y", and no',
        ),
        (
            (finding(Role.DECLARED, 1.0, void="x"),),
            "Claimed epsilon 2, which no accounting supports: what is declared is void, for x, and",
        ),
        (
            (finding(Role.DECLARED, 1.0, void="x"), finding(Role.EXACT_LEAK, 0.5, 1.5)),
            "The noise that is really added stays within the claim (epsilon between 0.5 and 1.5 at "
            "delta 1e-05, 2 claimed); what is declared is void, for x, and",
        ),
        (
            (finding(Role.MEASURED, 0.0, inf),),
            "Claimed epsilon 2; what was measured says nothing of this adversary, and",
        ),
        (
            (finding(Role.MEASURED, 1.2, inf),),
            "Claimed epsilon 2; what was measured comes to epsilon 1.2 at delta 1e-05, which does "
            "not contradict it, and",
        ),
        (
            (finding(Role.MEASURED, 1.2, 1.4),),
            "What was measured stays within the claim (epsilon between 1.2 and 1.4 at delta",
        ),
    ],
)
def test_accounting_is_said_where_nothing_decides(evidence: tuple[Finding, ...], says: str) -> None:
    decision = decide(case(*evidence))
    assert (decision.verdict, decision.code) == (Verdict.UNDERPOWERED, "DPA113")
    assert decision.reason.startswith(says)


def test_an_open_end_is_said_to_be_at_least() -> None:
    found = decide(case(finding(Role.DECLARED, 3.0, inf, verdict=Verdict.UNSUPPORTED)))
    assert found.reason == (
        "Claimed epsilon 2; the noise that is declared gives epsilon at least 3 at delta 1e-05 "
        'to "eavesdropper".'
    )


def test_a_figure_a_little_above_the_claim_reads_otherwise() -> None:
    above = finding(Role.DECLARED, 2.0004, 2.0004, verdict=Verdict.UNSUPPORTED)
    assert "gives epsilon 2.0004 at delta" in decide(case(above)).reason
    around = decide(case(finding(Role.DECLARED, 1.9999, 2.0004)))
    assert "does not settle the claim (epsilon between 2 and 2.0004 at" in around.reason


def moved(by: float | None, stated: float | None, ratio: float | None) -> Finding:
    names = (Name.MEASURED, Name.STATED_BOUND, Name.MEASURED_OVER_STATED)
    values = zip(names, (by, stated, ratio), strict=True)
    metrics = {name: Metric(value=value) for name, value in values if value is not None}
    against = {"verdict": Verdict.UNSUPPORTED, "message": "x"}
    return finding(Role.SENSITIVITY, metrics=metrics, **against)


@pytest.mark.parametrize(
    "values, says",
    [
        ((None, 1.0, 2.0), f"a measured sensitivity exceeds its bound: {Role.SENSITIVITY}."),
        ((2.0, None, None), '"x" moves by 2 when the data change, and no noise hides it.'),
        ((2.0, 1.0, None), '"x" moves by 2 when the data change, and no noise hides it.'),
        ((1.0, 1.0001, 0.9), '"x" moves by 1 when the data change, and no noise hides it.'),
        (
            (2.0, 0.5, 4.0),
            '"x" moves by 2 when the data change, 4 times the bound that its noise is made for '
            "(0.5).",
        ),
        (
            (1.0004, 1.0, 1.0004),
            '"x" moves by 1 when the data change, 1.0004 times the bound that its noise is made for '
            "(1).",
        ),
    ],
)
def test_a_message_that_moves_says_by_how_much(values: Any, says: str) -> None:
    decision = decide(case(moved(*values)))
    assert (decision.verdict, decision.code) == (Verdict.UNSUPPORTED, "DPA108")
    assert decision.reason == f"Claimed epsilon 2; {says}"


@pytest.mark.parametrize("n, says", [(1, "1 thing beside the values of messages depends"),
                                     (2, "2 things beside the values of messages depend")])  # fmt: skip
def test_what_depends_on_data_beside_values_is_counted(n: int, says: str) -> None:
    found = {Name.FOUND: Metric(value=n)}
    against = finding(Role.DEPENDENCE, metrics=found, verdict=Verdict.UNSUPPORTED)
    decision = decide(case(against))
    assert decision.code == "DPA109"
    assert says in decision.reason


@pytest.mark.parametrize(
    "least, most, says",
    [
        (0.0, 1.0, "rise 2.72-fold at most, by accounting"),
        (0.0, 4.7, "rise 110-fold at most, by accounting"),
        (0.0, 14.1, "rise e^14.1-fold at most, by accounting"),
        (14.1, inf, "can rise more than a million-fold; "),
        (0.0, inf, "no bound on how far the odds"),
        (inf, inf, "nothing bounds the odds"),
        (2.5, 3.0, "can rise 12.2-fold or more, and 20.1-fold at most"),
        (2.5, 2.5001, "can rise 12.2-fold; "),
        (2.5, inf, "can rise 12.2-fold or more; "),
    ],
)
def test_odds_rise_by_the_exponential_of_epsilon(least: float, most: float, says: str) -> None:
    said = meaning(case(finding(Role.DECLARED, least, most), held=True), Verdict.NOT_REFUTED)
    assert says in said
    assert said.startswith("For the owner of a record: ")
    assert said.endswith("the claim allows 7.39-fold.")


@pytest.mark.parametrize(
    "status, verdict, ends, says",
    [
        ("failed", Verdict.REFUTED, (2.5, 3.0), "can rise 12.2-fold or more; the claim"),
        ("failed", Verdict.REFUTED, (2.5, 2.5), "can rise 12.2-fold or more; the claim"),
        ("failed", Verdict.UNDERPOWERED, (0.0, 3.0), "can rise is proven here; the claim"),
        ("not examined", Verdict.UNSUPPORTED, (0.0, 3.0), "can rise is proven here; the claim"),
        (
            "not examined",
            Verdict.UNDERPOWERED,
            (0.0, 3.0),
            "can rise is proven here; accounting gives 20.1-fold if its premises hold, the claim",
        ),
    ],
)
def test_an_upper_end_of_odds_needs_each_premise(
    status: Any, verdict: Verdict, ends: tuple[float, float], says: str
) -> None:
    premises = (*HELD, Premise(name="composition", status=status, says="x"))
    said = meaning(replace(case(finding(Role.DECLARED, *ends)), premises=premises), verdict)
    assert says in said
    assert "at most" not in said


def test_only_what_refutes_is_certainly_reached() -> None:
    """A bound above the claim that refutes nothing beside other tests counts as the claim."""
    declared = finding(Role.DECLARED, 1.0, 3.0)
    assert case(certified(2.5), declared).least == 2.0
    assert case(certified(2.5), declared, refuted=True).least == 2.5
    assert case(certified(0.5), declared).least == 1.0
    assert case(certified(0.5), declared).most == 3.0


def test_the_smallest_upper_end_that_is_not_void_is_proven() -> None:
    declared, exact = finding(Role.DECLARED, 1.0, 3.0), finding(Role.EXACT_LEAK, 1.0, 1.5)
    assert case(declared, exact).most == 1.5
    assert case(declared, exact.model_copy(update={"void": "x"})).most == 3.0
    assert case().most == inf


def test_an_end_that_is_not_known_counts_as_nothing() -> None:
    unknown = finding(Role.DECLARED, 0.0, 1.0)
    unknown.metrics[Name.EPSILON] = Metric(value=1.0)
    assert (case(unknown).least, case(unknown).most) == (0.0, inf)
    said = decide(case(unknown, NOISE)).reason
    assert said.startswith(
        "Accounting would support the claim (epsilon 0 at delta 1e-05, 2 claimed)"
    )


@pytest.mark.parametrize(
    "ceiling, control, says",
    [
        (2.0, 2.0, "Even a perfect attack with these runs certifies 2 at most; 1e+04 runs of each"),
        (2.1, 2.0, "is played in fewer runs, by which even a perfect attack certifies 2 at most"),
        (2.1, 2.1, "was not refuted either: the runs tell this adversary too little"),
    ],
)
def test_runs_without_power_say_what_would_do(ceiling: float, control: float, says: str) -> None:
    needed = {Name.TRIALS_NEEDED: 1e4}
    silent = finding(Role.POSITIVE_CONTROL, metrics={Name.CEILING: Metric(value=control)})
    decision = decide(case(certified(0.5, ceiling, **needed), silent))
    assert decision.verdict is Verdict.UNDERPOWERED
    assert says in decision.reason
    refuted = silent.model_copy(update={"verdict": Verdict.REFUTED})
    found = decide(case(certified(0.5, 2.1, **needed), silent, refuted))
    assert (found.verdict, found.code) == (Verdict.NOT_REFUTED, "DPA118")


def test_a_bound_beyond_the_claim_of_one_test_alone_is_said() -> None:
    codes = [decide(case(certified(bound))).code for bound in (0.0, 1.0, 2.0, 2.1)]
    assert codes == ["DPA116", "DPA118", "DPA118", "DPA117"]
    assert "a claim 2 times smaller would have been refuted" in decide(case(certified(1.0))).reason
    expected = decide(case(certified(0.0, **{Name.EXPECTED_BOUND: 1.25}))).reason
    assert "either (1.25 was to be expected)." in expected
