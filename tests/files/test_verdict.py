"""Verdicts from the worst to the best, adversaries and claims: what each word decides."""

from pathlib import Path

import pytest

from dpaudit.files.claim import Claim, measured_change
from dpaudit.files.result import AuditResult
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import SEVERITY, Verdict, worst

GOLDEN = AuditResult.read(Path(__file__).parents[1] / "golden" / "audit.json")
REFUTED, UNSUPPORTED, UNDERPOWERED, NOT_REFUTED = SEVERITY[:4]


def test_the_worst_verdict_is_the_most_severe() -> None:
    assert (REFUTED, UNSUPPORTED) == (Verdict.REFUTED, Verdict.UNSUPPORTED)
    assert (UNDERPOWERED, NOT_REFUTED) == (Verdict.UNDERPOWERED, Verdict.NOT_REFUTED)
    assert worst([NOT_REFUTED, UNDERPOWERED]) is UNDERPOWERED
    assert worst([UNDERPOWERED, UNSUPPORTED, NOT_REFUTED]) is UNSUPPORTED
    assert worst([UNSUPPORTED, REFUTED]) is REFUTED
    assert worst([]) is None


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(REFUTED, 1), (UNSUPPORTED, 1), (UNDERPOWERED, 0), (NOT_REFUTED, 0), (None, 0)],
)
def test_only_what_speaks_against_a_claim_exits_1(verdict: Verdict | None, code: int) -> None:
    assert GOLDEN.model_copy(update={"verdict": verdict}).exit_code == code


def test_an_adversary_sees_its_links_in_their_direction() -> None:
    every = ThreatModel(name="a")
    one = ThreatModel(name="b", links=((0, 1),))
    agent = ThreatModel(name="c", kind="curious", agents=(1,))
    links = [(0, 1), (1, 0), (0, 2)]
    assert [every.sees(*link) for link in links] == [True, True, True]
    assert [one.sees(*link) for link in links] == [True, False, False]
    assert [agent.sees(*link) for link in links] == [True, True, False]


def test_a_delta_of_one_half_promises_nothing() -> None:
    assert Claim(text="t", epsilon=1.0, delta=0.499).delta == 0.499
    with pytest.raises(ValueError, match=r"promises nothing"):
        Claim(text="t", epsilon=1.0, delta=0.5)
    assert [measured_change(a) for a in ("user", "replace-one")] == ["add-remove", "replace-one"]
