"""What a check found, as data: all that JUnit, SARIF, Markdown and annotations are made from."""

from typing import Literal

from dpaudit.strict import Strict

from .finding import Metric

StatementOutcome = Literal["holds", "warning", "fails"]


class Statement(Strict):
    """One thing that a check says."""

    check: str  # name
    about: Literal["claim", "threshold", "evidence", "baseline"]
    subject: str  # the claim, the limit, or the metric
    adversary: str  # "" where it is about none
    outcome: StatementOutcome
    verdict: str  # a Verdict, or in two words what became of the limit or metric
    message: str  # one sentence, which names the claim, the adversary and the bound
    line: int  # of the claims file
    code: str  # of the reason: dpaudit explain CODE


class KeyFigure(Strict):
    """A metric of how much leaks, with what it was in the baseline."""

    label: str
    now: Metric
    before: Metric | None


class Checked(Strict):
    """One audit of the claims file."""

    name: str
    line: int
    seconds: float
    cached: bool
    figures: tuple[KeyFigure, ...]
    picture: str | None  # path of the reconstruction closest to the truth
    report: str  # path of report.html


class CheckReport(Strict):
    """A whole claims file, checked."""

    claims_file: str
    version: str  # of dpaudit
    checks: tuple[Checked, ...]
    statements: tuple[Statement, ...]
    notes: tuple[str, ...] = ()

    def exit_code(self, strict: bool = False) -> int:
        """1 if anything fails, or is a warning and ``strict``; else 0."""
        bad = ("fails", "warning") if strict else ("fails",)
        return int(any(statement.outcome in bad for statement in self.statements))
