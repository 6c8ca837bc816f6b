"""A link to a finding leads to it whatever stands before it, and whatever its numbers are."""

from dpaudit.files.finding import Metric
from dpaudit.files.result import AuditResult
from dpaudit.reports.run import claim_links, finding_links
from tests.reports.pages import small_finding


def test_a_link_stays_when_findings_are_added(golden: AuditResult) -> None:
    first = finding_links(golden.findings, golden.claims)
    assert len(set(first)) == len(first)
    other = small_finding(title="Another", metrics={"ssim": Metric(value=0.9)})
    changed = [f.model_copy(update={"metrics": {}, "notes": ("new",)}) for f in golden.findings]
    assert finding_links([other, *changed], golden.claims)[1:] == first


def test_what_a_finding_is_about_makes_its_name() -> None:
    one = small_finding(title="Runs <with> & without", rounds=(3,))
    other = small_finding(title="Runs <with> & without", rounds=(4,))
    names = finding_links([one, other, one], ())
    assert names[0].startswith("finding-runs-with-without-")
    assert names[1].startswith("finding-runs-with-without-")
    assert names[2] == f"{names[0]}-2"
    assert len(set(names)) == 3


def test_a_claim_is_named_by_its_adversary_too(golden: AuditResult) -> None:
    claim = golden.claims[0]
    other = claim.model_copy(update={"threat_model": "someone else"})
    assert len(set(claim_links([claim, other]))) == 2
    assert claim_links([other, claim])[1] == claim_links([claim])[0]


def test_a_name_that_no_address_can_have_becomes_one() -> None:
    (name,) = finding_links([small_finding(title='"><script>\ud800 é #')], ())
    assert name.removeprefix("finding-").replace("-", "").isalnum()
    assert name.isascii()
