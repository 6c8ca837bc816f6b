"""Premises and the range of epsilon on the page: sign and word, resolution, evidence, one figure."""

import math
from pathlib import Path
from typing import get_args

import pytest

from dpaudit.files.finding import Metric, Name
from dpaudit.files.result import AuditResult, EpsilonRange, JudgedClaim, Premise, PremiseName
from dpaudit.files.verdict import Verdict
from dpaudit.reports.claims import PREMISES, SIGNS, claimed_epsilon, next_step, noticed
from dpaudit.reports.html import render
from dpaudit.reports.run import finding_links
from tests.reports.pages import HOSTILE, Element, Page, small_finding, visible, with_findings

STATUSES = get_args(Premise.model_fields["status"].annotation)


def claim(golden: AuditResult, measured: float, *statuses: str, **changes: object) -> JudgedClaim:
    names = get_args(PremiseName)
    made = tuple(
        Premise(name=name, status=status, says=f"says of {name}", findings=(i % 2,))
        for i, (name, status) in enumerate(zip(names, statuses, strict=False))
    )
    known = EpsilonRange(certified=0.25, accounted=3.5, measured=measured)
    fields = {"because": (), "premises": made, "range": known, "epsilon": 3.75}
    return golden.claims[0].model_copy(update=fields | changes)


def page_of(golden: AuditResult, *claims: JudgedClaim) -> Page:
    result = with_findings(golden, small_finding(), small_finding(title="y"), claims=claims)
    return Page(render(result.model_copy(update={"verdict": claims[0].verdict}), Path("nowhere")))


def figures(place: Element) -> list[Element]:
    return [e for e in place.every("svg") if "range" in e.classes()]


def test_every_premise_and_status_has_plain_words() -> None:
    assert list(PREMISES) == list(get_args(PremiseName))
    assert set(SIGNS) == set(STATUSES)
    assert len(set(SIGNS.values())) == len(SIGNS)


def test_a_premise_has_sign_word_resolution_and_evidence(golden: AuditResult) -> None:
    judged = claim(golden, math.inf, "examined", "not examined", "failed")
    page = page_of(golden, judged)
    (table,) = (e for e in page.by_id("claims").every("table") if "premises" in e.classes())
    rows = [row for row in table.every("tr")][1:]
    assert [row.text().split(" ")[0] for row in rows] == ["Distance", "Noise", "Use"]
    findings = (small_finding(), small_finding(title="y"))
    links = finding_links(findings, (judged,))
    for i, (row, status) in enumerate(zip(rows, STATUSES, strict=True)):
        state, says = row.every("td")
        assert state.text() == f"{SIGNS[status]} {status}"
        assert f"says of {get_args(PremiseName)[i]}" in says.text()
        assert [a.attributes["href"] for a in says.every("a")] == [f"#{links[i % 2]}"]


def test_premises_are_a_row_of_ticks_on_the_first_screen(golden: AuditResult) -> None:
    page = page_of(golden, claim(golden, math.inf, "examined", "not examined", "failed"))
    (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
    (row,) = (e for e in hero.every("ul") if "ticks" in e.classes())
    ticks = [e.text() for e in row.every("li")]
    assert ticks == ["✓ Distance examined", "? Noise not examined", "× Use of records failed"]


def test_the_range_is_one_figure_with_its_sentence(golden: AuditResult) -> None:
    page = page_of(golden, claim(golden, 3.625, *["examined"] * 6))
    (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
    (figure,) = figures(hero)
    said = [e.text() for e in figure.every("text")]
    labels = "measured: 0.25 to 3.63", "accounted as declared: 3.5"
    for label in ("claimed epsilon: 3.75", *labels):
        assert said.count(label) == 1
        assert label in figure.attributes["aria-label"]
    assert "A fault that raises epsilon beyond 3.63 would have been noticed." in hero.text()
    assert figures(page.by_id("claims")) == []


def test_other_claims_have_their_figure_folded(golden: AuditResult) -> None:
    one = claim(golden, 3.625, "examined")
    page = page_of(golden, one, claim(golden, math.inf, "failed", threat_model="other"))
    (folded,) = (e for e in page.by_id("claims").every("details") if figures(e))
    assert "A fault" not in page.by_id("claims").text(frozenset({"details"}))
    assert "No upper end of epsilon is known: distance failed." in folded.text()


@pytest.mark.parametrize(
    ("verdict", "measured", "statuses", "said"),
    [
        ("supported", 2.5, ["examined"] * 6, "beyond 2.5 would have been noticed"),
        (
            "underpowered",
            math.inf,
            ["not examined", "examined", "failed"],
            "A fault of any size may have gone unnoticed: use of records failed; "
            "distance was not examined.",
        ),
        (
            "underpowered",
            math.inf,
            ["not examined"] * 3,
            "unnoticed: distance, noise and use of records were not examined.",
        ),
        ("not refuted", math.inf, ["examined"] * 6, "nothing was measured that bounds it"),
        ("not refuted", math.nan, ["examined"] * 6, "nothing was measured that bounds it"),
        ("refuted", math.inf, ["failed"], "No upper end of epsilon is known: distance failed."),
    ],
)
def test_the_sentence_names_the_largest_fault(
    golden: AuditResult, verdict: str, measured: float, statuses: list[str], said: str
) -> None:
    assert said in noticed(claim(golden, measured, *statuses, verdict=Verdict(verdict)))


def test_a_result_of_an_older_version_has_no_premises(golden: AuditResult) -> None:
    old = golden.claims[0].model_copy(update={"because": ()})
    page = page_of(golden, old)
    assert noticed(old) == ""
    assert figures(page.root) == []
    assert "an earlier version wrote this audit" in page.by_id("claims").text()


def test_a_claim_of_mu_stands_where_a_test_converted_it(golden: AuditResult) -> None:
    test = small_finding(metrics={Name.CLAIMED_EPSILON: Metric(value=2.125)})
    of_mu = claim(golden, 3.0, epsilon=None, mu=0.5, because=(0,))
    assert claimed_epsilon(with_findings(golden, test), of_mu) == 2.125
    assert claimed_epsilon(with_findings(golden, small_finding()), of_mu) is None
    assert claimed_epsilon(golden, claim(golden, 3.0)) == 3.75


def test_the_next_step_names_the_cause_that_is_known(golden: AuditResult) -> None:
    failed = Premise(name="distance", status="failed", says='"x" moves 16 times its stated bound')
    judged = claim(golden, 3.0, verdict=Verdict.UNSUPPORTED, codes=("DPA105",), premises=(failed,))
    step = next_step(with_findings(golden, claims=(judged,), verdict=Verdict.UNSUPPORTED))
    assert step is not None
    assert step.says.startswith('"x" moves 16 times its stated bound. Clip the gradient of each')
    assert step.says.endswith("Then run the audit again.")
    assert step.command == "dpaudit explain DPA105"


@pytest.mark.parametrize(
    ("verdict", "codes", "command"),
    [
        (Verdict.SUPPORTED, ("DPA141",), "dpaudit verify ."),
        (Verdict.UNDERPOWERED, ("DPA113", "DPA119"), "dpaudit explain DPA113"),
        (Verdict.REFUTED, (), "dpaudit explain verdict"),
        (Verdict.REFUTED, ("DPA999",), "dpaudit explain verdict"),
    ],
)
def test_the_next_step_is_a_command_to_copy(
    golden: AuditResult, verdict: Verdict, codes: tuple[str, ...], command: str
) -> None:
    judged = claim(golden, 3.0, verdict=verdict, codes=codes)
    step = next_step(with_findings(golden, claims=(judged,), verdict=verdict))
    assert step is not None
    assert step.command == command
    assert step.says[0].isupper()
    assert next_step(with_findings(golden, verdict=None)) is None


def test_hostile_premises_stay_text(golden: AuditResult) -> None:
    judged = claim(golden, 3.0, "failed")
    hostile = judged.premises[0].model_copy(update={"says": HOSTILE})
    page = page_of(golden, judged.model_copy(update={"premises": (hostile,)}))
    assert " ".join(HOSTILE.split()) in visible(page)
    assert not any(name.startswith("on") for e in page.root.every() for name in e.attributes)
