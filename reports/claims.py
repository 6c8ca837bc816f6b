"""What the page says of a claim: its premises in plain words, its range, and what to do next."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

from dpaudit.codes import entries
from dpaudit.files.finding import Name
from dpaudit.files.result import AuditResult, JudgedClaim, PremiseName
from dpaudit.files.verdict import AGAINST, NEXT_STEP, Verdict

from .numbers import at_most

PREMISES: Mapping[PremiseName, tuple[str, str]] = {  # the name of each, and what it asks
    "distance": ("Distance", "How far does one record move a message?"),
    "noise": ("Noise", "Is the added noise the declared one?"),
    "records": ("Use of records", "Are records drawn as often as declared?"),
    "completeness": ("Completeness", "Does anything else depend on the data?"),
    "composition": ("Composition", "Do all rounds stay within the account?"),
    "state": ("State", "Does a round depend on hidden state?"),
}
SIGNS = {"examined": "✓", "not examined": "?", "failed": "×"}


class NextStep(NamedTuple):
    """What to do about a verdict, and a command for it that can be copied."""

    says: str
    command: str
    does: str  # what the command does


def claimed_epsilon(result: AuditResult, claim: JudgedClaim) -> float | None:
    """Epsilon as claimed; for a claim of mu, as a test of the claim has converted it."""
    if claim.epsilon is not None:
        return claim.epsilon
    values = (result.findings[i].value(Name.CLAIMED_EPSILON) for i in claim.because)
    return next((x for x in values if x is not None), None)


def noticed(claim: JudgedClaim) -> str:
    """Which fault would have been noticed, or why that is not known; "" without a range."""
    if claim.range is None:
        return ""
    measured = claim.range.measured
    if measured < inf:
        return f"A fault that raises epsilon beyond {at_most(measured)} would have been noticed."
    why = "; ".join(_missing(claim)) or "nothing was measured that bounds it"
    if claim.verdict in AGAINST:
        return f"No upper end of epsilon is known: {why}."
    return f"A fault of any size may have gone unnoticed: {why}."


def _missing(claim: JudgedClaim) -> Iterator[str]:
    """The premises that do not hold, in a clause for those that failed and one for the others."""
    for status, said in (("failed", "failed"), ("not examined", "{} not examined")):
        names = [PREMISES[p.name][0].lower() for p in claim.premises if p.status == status]
        if names:
            listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
            yield f"{listed} {said.format('were' if names[1:] else 'was')}"


def next_step(result: AuditResult) -> NextStep | None:
    """What to do about the verdict of an audit; None without a claim."""
    claim = result.decided_by
    if claim is None:
        return None
    says = NEXT_STEP[claim.verdict]
    says = says[0].upper() + says[1:]
    known = [code for code in claim.codes if code in entries()]
    if claim.verdict is Verdict.SUPPORTED:
        return NextStep(says, "dpaudit verify .", "derives the verdict again, in the run directory")
    if not known:
        return NextStep(says, "dpaudit explain verdict", "says what the verdicts mean")
    helps = " ".join(dict.fromkeys(entries()[code].help for code in known))
    if claim.failed is not None and claim.remedy:  # the cause; codes say what follows from it
        helps = f"{_sentence(claim.failed.says)} {claim.remedy} Then run the audit again."
    return NextStep(helps, f"dpaudit explain {known[0]}", "explains the reason of this verdict")


def _sentence(says: str) -> str:
    return says if says.endswith(".") else f"{says}."
