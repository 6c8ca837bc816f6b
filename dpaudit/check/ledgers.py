"""Ledgers of a claims file: what programs declare to have released, held against claims.

A loop whose stop depends on what it released has the epsilon of its budget, and not the smaller one
that was spent at the stop. So a claim holds for certain only if the budget is within it, too.
"""

from dataclasses import dataclass
from typing import Any

from dpaudit.errors import RunError
from dpaudit.files.claims_file import (
    Checked,
    ClaimsFile,
    KeyFigure,
    LedgerClaim,
    Statement,
    StatementOutcome,
)
from dpaudit.files.documents import reason
from dpaudit.files.finding import Metric, Name
from dpaudit.files.ledger_file import CUT_OFF, Budget, counted_lines, read_ledger

from .baseline import Baseline, CheckBaseline, config_hash
from .changes import kept

ROUNDING = 1e-9  # relative: sums of many numbers are not exact
DECLARED = "A ledger is what a program declares: no audit examined it."


@dataclass(frozen=True)
class DeclaredLedger:
    """A ledger, and at most what its releases add up to at the claim's delta."""

    claim: LedgerClaim
    line: int  # line in the claims file
    budget: Budget
    releases: int
    epsilon: float
    is_cut_off: bool

    @property
    def name(self) -> str:
        return self.claim.name

    @property
    def content(self) -> dict[str, Any]:
        """What a baseline must have been made from."""
        return self.claim.model_dump()

    @property
    def statement(self) -> Statement:
        """Whether the releases stay within the claim."""
        outcome, verdict, code, why = self._judged
        added = f"{self.releases:,} declared releases add up to epsilon {self.epsilon:.4g}"
        added = f'"{self.claim.sentence}": {added} at delta {self.claim.delta:g}'
        left_out = f" But {CUT_OFF}." if self.is_cut_off else ""
        message = f"{added}{why}. {DECLARED}{left_out}"
        return self._says("claim", self.claim.sentence, outcome, verdict, code, message)

    @property
    def _judged(self) -> tuple[StatementOutcome, str, str, str]:
        """The outcome, the verdict, its code, and why."""
        claim, budget = self.claim, self.budget
        if budget.adjacency != claim.adjacency:
            why = f", but its neighbours are those of {budget.adjacency}"
            return "fails", "another adjacency", "DPA143", why
        if self.epsilon > claim.epsilon * (1 + ROUNDING):
            return "fails", "beyond the claim", "DPA143", f", above {claim.epsilon:g}"
        why = f", at most {claim.epsilon:g}"
        if budget.epsilon <= claim.epsilon and budget.delta <= claim.delta:
            return "holds", "within the claim", "DPA143", why
        larger = f"({budget.epsilon:g}, {budget.delta:g}) is not within the claim"
        why += f". Its budget of {larger}, and counts if what was released decided when to stop"
        return "warning", "budget beyond the claim", "DPA144", why

    @property
    def _metric(self) -> Metric:
        return Metric(value=self.epsilon)

    @property
    def baseline(self) -> CheckBaseline:
        """What is kept of it."""
        verdict = self._judged[1]
        return CheckBaseline(
            config=config_hash(self.content),
            written=kept(self.content),
            seed=0,
            claims={self.claim.sentence: verdict},
            metrics={Name.EPSILON: self._metric},
        )

    def beside(self, before: CheckBaseline) -> Statement:
        """Whether it adds up to more than it did."""
        was = before.metrics[Name.EPSILON].value
        said = f"declared epsilon is {self.epsilon:.4g} and was {was:.4g} in the baseline"
        if self.epsilon > was * (1 + ROUNDING):
            return self._says(
                "baseline", Name.EPSILON, "fails", "worse", "DPA132", f"it got worse: {said}"
            )
        return self._says("baseline", Name.EPSILON, "holds", "not worse", "DPA132", said)

    def checked(self, baseline: Baseline | None) -> Checked:
        """Its key figure, beside that of the baseline."""
        before = None if baseline is None else baseline.checks.get(self.name)
        was = None if before is None else before.metrics.get(Name.EPSILON)
        return Checked(
            name=self.name,
            line=self.line,
            seconds=0.0,
            cached=False,
            figures=(KeyFigure(label="declared epsilon", now=self._metric, before=was),),
            picture=None,
            report="",
        )

    def _says(
        self,
        about: Any,
        subject: str,
        outcome: StatementOutcome,
        verdict: str,
        code: str,
        message: str,
    ) -> Statement:
        return Statement(
            check=self.name,
            about=about,
            subject=subject,
            adversary="",
            outcome=outcome,
            verdict=verdict,
            message=message,
            line=self.line,
            code=code,
        )


def declared(file: ClaimsFile, index: int) -> DeclaredLedger:
    """A ledger of a claims file, added up.

    Raises:
        RunError: it cannot be read, or is damaged; a line for each problem.
    """
    from dpaudit.ledger.accounts import composed  # scipy, which no other check waits for

    claim = file.claims.ledger[index]
    path, line = file.folder / claim.file, file.line(("ledger", index))
    try:
        lines, is_cut_off = counted_lines(path.read_bytes())
        budget, entries = read_ledger(lines, path)
    except OSError as error:
        raise RunError("DPA007", f"{path}: {reason(error)}") from None
    count = sum(1 if one.release is None else one.release.count for one in entries)
    epsilon = max(composed(budget, entries, claim.delta).values())
    return DeclaredLedger(claim, line, budget, count, epsilon, is_cut_off)
