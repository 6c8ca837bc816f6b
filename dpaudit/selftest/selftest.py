"""The auditor audited: planted privacy bugs that its checks must find, correct twins they must not.

Every check is applied to every defense of the zoo, bugs and correct twins alike. The checks that
are not exact share ``ALPHA`` (Bonferroni), so that all together they call a correct defense wrong
with probability ``ALPHA`` at most.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

from dpaudit.files.published import ResultTable, ResultTables, TableEntry
from dpaudit.rng import Streams

from .bugs import BUGS, Bug, Specimen
from .catalogue import Said
from .detectors import EXACT, SAMPLED, ExaminedSpecimen

ALPHA = 0.01  # of any false alarm on a correct defense
AUDIT_COLUMNS = ("mechanism", "is", "verdict", "so it is", "reason")
QUIET_COLUMNS = ("mechanism", "is", "leaks", "verdict", "so it is", "found by", "reason")
COLUMNS = ("bug", "the mistake it models", "caught by", "figure", "seconds", "correct twin")


class BugOutcome(NamedTuple):
    """One bug, what found it, and whether its correct twin passed."""

    bug: Bug
    found: Mapping[str, str]  # check -> what it found
    false_alarms: Mapping[str, str]  # the same on the twin
    seconds: float  # for the bug; twins that bugs have in common are examined once

    @property
    def passed(self) -> bool:
        return bool(self.found) and not self.false_alarms


def selftest(seed: int = 0, bugs: Sequence[Bug] = BUGS) -> Iterator[BugOutcome]:
    """Examine each bug and its correct twin."""
    known: dict[int, Mapping[str, str]] = {}
    for bug in bugs:
        began = perf_counter()
        found = alarms(bug.planted, Streams(seed))
        seconds = perf_counter() - began
        if id(bug.twin) not in known:
            known[id(bug.twin)] = alarms(bug.twin, Streams(seed))
        yield BugOutcome(bug, found, known[id(bug.twin)], seconds)


def alarms(specimen: Specimen, streams: Streams) -> dict[str, str]:
    """What each check that found something found; of a correct defense, with probability ALPHA."""
    examined = ExaminedSpecimen(specimen, streams)
    applied = [name for name in SAMPLED if name != "floating point" or specimen.sends_floats]
    found = {name: check(examined) for name, check in EXACT.items()}
    found |= {name: SAMPLED[name](examined, ALPHA / len(applied)) for name in applied}
    return {name: what for name, what in found.items() if what}


def row(outcome: BugOutcome) -> tuple[str, str, str, str, float, str]:
    """The cells of ``COLUMNS``: the check made for the bug first, with its figure."""
    bug, found = outcome.bug, outcome.found
    checks = sorted(found, key=lambda name: name != bug.by)
    alarms = "; ".join(f"FALSE ALARM, {k}: {v}" for k, v in outcome.false_alarms.items())
    return (
        bug.name,
        bug.mistake,
        ", ".join(checks) if checks else "NOT CAUGHT",
        found[checks[0]] if checks else "",
        round(outcome.seconds, 1),
        alarms or "clean",
    )


def text(outcome: BugOutcome) -> str:
    """The same as lines."""
    name, mistake, checks, figure, seconds, twin = row(outcome)
    first, _, others = checks.partition(", ")
    also = f"; also {others}" if others else ""
    return f"{name}: {mistake}\n  {first}: {figure}{also}\n  {seconds} s; correct twin: {twin}"


def said_text(said: Said) -> str:
    """One audit as a line."""
    mechanism, claim = said.mechanism, said.claim
    return f"{mechanism.name} ({mechanism.kind}): {claim.verdict}. {claim.reason}"


def summary(outcomes: Sequence[BugOutcome], said: Sequence[Said], quiet: Sequence[Said]) -> str:
    """The counts. ``quiet`` are the audits without attacks."""
    caught = sum(bool(outcome.found) for outcome in outcomes)
    alarmed = sum(bool(outcome.false_alarms) for outcome in outcomes)
    return (
        f"{caught} of {len(outcomes)} bugs caught, {alarmed} false alarms on their correct twins; "
        f"ordinary audits: {counts(said)}; audits without attacks: {counts(quiet)}"
    )


def counts(said: Sequence[Said]) -> str:
    """How many faults were found, and how many correct mechanisms accused or supported."""
    faults = [s for s in said if not s.mechanism.is_correct]
    correct = [s for s in said if s.mechanism.is_correct]
    by = Counter(s.found_by for s in faults if s.alarmed and s.found_by)
    checks = f" ({', '.join(f'{n} by {role}' for role, n in by.most_common())})" if by else ""
    return (
        f"{sum(s.alarmed for s in faults)} of {len(faults)} faults found{checks}, "
        f"{sum(s.alarmed for s in correct)} of {len(correct)} correct mechanisms accused and "
        f"{sum(s.is_supported for s in correct)} supported"
    )


def all_passed(outcomes: Sequence[BugOutcome], said: Sequence[Said], quiet: Sequence[Said]) -> bool:
    """Whether every bug was caught, no correct defense called wrong, and no audit off the mark."""
    return all(outcome.passed for outcome in outcomes) and all(s.passed for s in (*said, *quiet))


def to_json(
    outcomes: Sequence[BugOutcome], said: Sequence[Said], quiet: Sequence[Said], seed: int
) -> str:
    """All of it, for programs."""
    rows = [
        {
            "bug": outcome.bug.name,
            "mistake": outcome.bug.mistake,
            "made for it": outcome.bug.by,
            "found": dict(outcome.found),
            "false alarms on the twin": dict(outcome.false_alarms),
            "seconds": round(outcome.seconds, 2),
        }
        for outcome in outcomes
    ]
    content = {
        "seed": seed,
        "alpha": ALPHA,
        "passed": all_passed(outcomes, said, quiet),
        "bugs": rows,
        "audits": [_audit(one) for one in said],
        "audits without attacks": [
            {**_audit(one), "leaks": str(one.mechanism.leaks), "found by": one.found_by}
            for one in quiet
        ],
    }
    return json.dumps(content, indent=2)


def _audit(one: Said) -> dict[str, Any]:
    return {
        "mechanism": one.mechanism.name,
        "correct": one.mechanism.is_correct,
        "verdict": one.claim.verdict,
        "reason": one.claim.reason,
        "seconds": round(one.seconds, 2),
    }


def tables(
    outcomes: Sequence[BugOutcome], said: Sequence[Said], quiet: Sequence[Said], seed: int
) -> ResultTables:
    """All of it as published results."""
    bugs = ResultTable(
        title="Planted bugs",
        about="The check that is made for a bug is named first, and the figure is its own. Seconds "
        "are of all checks together on one bug, and vary with the machine.",
        columns=COLUMNS,
        rows=tuple(row(outcome) for outcome in outcomes),
    )
    audits = ResultTable(
        title="Ordinary audits",
        about="Each mechanism is audited as any audit file would: likelihood ratio, sensitivity, "
        "and the examination of the noise of the real run.",
        columns=AUDIT_COLUMNS,
        rows=tuple(map(said_row, said)),
    )
    without = ResultTable(
        title="Audits without attacks",
        about=f"Each audit has a claim and asks for no attack: {counts(quiet)}.",
        columns=QUIET_COLUMNS,
        rows=tuple(map(quiet_row, quiet)),
    )
    command = f"dpaudit selftest --seed {seed} --results docs/results"
    return ResultTables(title="Self-test", command=command, tables=(bugs, audits, without))


def quiet_row(said: Said) -> tuple[TableEntry, ...]:
    """The cells of ``QUIET_COLUMNS``."""
    name, what, verdict, found, reason = said_row(said)
    leaks = said.mechanism.leaks
    known = "inf" if leaks == inf else leaks and float(f"{leaks:.3g}")
    by = said.found_by if said.alarmed else None
    return name, what, known, verdict, found, by, reason


def said_row(said: Said) -> tuple[TableEntry, ...]:
    """The cells of ``AUDIT_COLUMNS``."""
    found = "found" if said.alarmed else "MISSED"
    if said.mechanism.is_correct:
        found = "FALSE ALARM" if said.alarmed else "passed" if said.passed else "NOT SUPPORTED"
    reason = said.claim.reason if said.alarmed else None
    return said.mechanism.name, said.mechanism.kind, said.claim.verdict, found, reason
