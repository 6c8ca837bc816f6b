"""The zoo audited: what was found, what was missed, which right mechanisms were accused."""

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.published import ResultTable, ResultTables
from dpaudit.files.result import JudgedClaim
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism.source import from_python, judged

from .additive import additive
from .discrete import discrete
from .entries import ZooEntry
from .selection import selection
from .updates import updates

RUNS = 4_000
AGAINST = (Verdict.REFUTED, Verdict.UNSUPPORTED)
COLUMNS = (
    "mechanism",
    "mistake",
    "epsilon",
    "claimed",
    "verdict",
    "certified",
    "measured",
    "seconds",
)


class AuditedEntry(NamedTuple):
    """One entry with the verdict on its claim."""

    entry: ZooEntry
    claim: JudgedClaim
    certified: float
    measured: float | None  # None: nothing was
    seconds: float

    @property
    def accused(self) -> bool:
        return self.claim.verdict in AGAINST

    @property
    def passed(self) -> bool:
        """Whether a wrong one was found, or a right one not accused."""
        return self.accused != self.entry.is_right


def zoo() -> list[ZooEntry]:
    """All mechanisms."""
    return [*additive(), *discrete(), *selection(), *updates()]


def audited(entries: Iterable[ZooEntry], seed: int = 0, runs: int = RUNS) -> Iterator[AuditedEntry]:
    """Audit each entry. Raises DpauditError: one cannot be audited."""
    for entry in entries:
        claim = {
            "text": entry.name,
            "epsilon": entry.claimed,
            "delta": entry.delta,
            "adjacency": entry.adjacency,
        }
        options = {"function": f"zoo:{entry.name}", "runs": runs, **entry.options}
        config = from_python({"seed": seed, "mechanism": options, "claim": [claim]})
        began = perf_counter()
        verdict, findings = judged(config, entry.function)
        seconds = perf_counter() - began
        certified = _value(findings, Role.TEST, Name.EPSILON_LOWER_BOUND) or 0.0
        measured = _value(findings, Role.MEASURED, Name.EPSILON)
        yield AuditedEntry(entry, verdict, certified, measured, seconds)


def _value(findings: Sequence[Finding], role: Role, name: Name) -> float | None:
    found = (finding.value(name) for finding in findings if finding.role is role)
    return next((value for value in found if value is not None), None)


def row(one: AuditedEntry) -> tuple[str, ...]:
    """The cells of ``COLUMNS``."""
    entry = one.entry
    figures = [f"{x:.3g}" for x in (entry.epsilon, entry.claimed)]
    measured = "" if one.measured is None else f"{one.measured:.3g}"
    verdict = one.claim.verdict.value
    if not one.passed:
        verdict += " (FALSE ALARM)" if entry.is_right else " (MISSED)"
    last = f"{one.certified:.3g}", measured, f"{one.seconds:.1f}"
    return (entry.name, entry.mistake or "right", *figures, verdict, *last)


def text(one: AuditedEntry) -> str:
    """The same as a line."""
    name, mistake, epsilon, claimed, verdict, certified, measured, seconds = row(one)
    known = f"epsilon {epsilon}, {claimed} claimed"
    figures = f"certified {certified}" + (f", measured {measured}" if measured else "")
    return f"{name} ({mistake}): {known}: {verdict}; {figures}; {seconds} s"


def tables(found: Sequence[AuditedEntry], seed: int) -> ResultTables:
    """All of it as published results."""
    table = ResultTable(
        title="Single functions",
        about="Epsilon is of the closed form: an upper bound of right ones, a lower bound of wrong "
        f"ones. {summary(found)}.",
        columns=COLUMNS,
        rows=tuple(map(row, found)),
    )
    command = f"dpaudit selftest --mechanisms --seed {seed} --results docs/results"
    return ResultTables(title="Zoo of mechanisms", command=command, tables=(table,))


def is_sound(found: Sequence[AuditedEntry]) -> bool:
    """Whether no right mechanism is accused, and no wrong one supported. A miss is allowed."""
    accused = any(one.accused for one in found if one.entry.is_right)
    supported = any(one.claim.verdict == "supported" for one in found if not one.entry.is_right)
    return not accused and not supported


def summary(found: Sequence[AuditedEntry]) -> str:
    """The counts."""
    wrong = [one for one in found if not one.entry.is_right]
    right = [one for one in found if one.entry.is_right]
    return (
        f"{sum(one.accused for one in wrong)} of {len(wrong)} wrong mechanisms found, "
        f"{sum(not one.accused for one in wrong)} missed; "
        f"{sum(one.accused for one in right)} of {len(right)} right ones accused; "
        f"{sum(one.seconds for one in found):.0f} s"
    )
