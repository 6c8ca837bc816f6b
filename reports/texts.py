"""Recovered text on a page: each token beside the truth, and whether it is right."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dpaudit.errors import RunError
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.whole import artifact_file

WORLDS = ("no-defense", "defense", "blind")
METRICS = (
    Name.TOKENS_RECOVERED,
    Name.SEQUENCES_RECOVERED,
    Name.ROUGE_1,
    Name.ROUGE_2,
    Name.TPR,
    Name.FPR,
)
SHOWN = 4  # sequences of a finding on the page, the first ones; its artifact has them all
LARGEST = 2**24  # bytes of an artifact that a page shows


class Token(NamedTuple):
    """A token as it was recovered, and as it is."""

    recovered: str
    truth: str

    @property
    def is_right(self) -> bool:
        return self.recovered == self.truth


class RecoveredText(NamedTuple):
    """The text of one finding, beside its truth."""

    number: int  # of the finding in the result
    finding: Finding
    sequences: list[list[Token]]
    problem: str = ""  # why there is no text to show


class TextScenario(NamedTuple):
    """What one attack made of one message, batch size and round, in every world."""

    finding: Finding
    rows: list[RecoveredText]
    exact_leak: list[Finding]  # by the algebra of the protocol, against the same adversary

    @property
    def metrics(self) -> list[str]:
        return [n for n in METRICS if any(n in row.finding.metrics for row in self.rows)]

    @property
    def truth(self) -> list[str]:
        """The sequences as they are."""
        first = next((row.sequences for row in self.rows if row.sequences), [])
        return [" ".join(token.truth for token in sequence) for sequence in first]

    def tokens(self, world: str) -> Metric | None:
        """The share of tokens that were recovered in a world at their place."""
        some = (row.finding for row in self.rows if row.finding.world == world)
        return next((f.metrics.get(Name.TOKENS_RECOVERED) for f in some), None)


def most_recovered(scenarios: Iterable[TextScenario]) -> TextScenario | None:
    """The one with most tokens under the defense; None: there is none with any figure."""
    shares = [(share.value, s) for s in scenarios if (share := s.tokens("defense")) is not None]
    return max(shares, key=lambda one: one[0], default=(0.0, None))[1]


def text_scenarios(findings: Iterable[Finding], run_directory: Path) -> list[TextScenario]:
    """The recovered text of a result, in its order, worlds side by side."""
    grouped: dict[tuple[Any, ...], list[tuple[int, Finding]]] = {}
    every = list(findings)
    for i, f in enumerate(every):
        if f.role is Role.TEXT_RECOVERY:
            key = f.threat_model, f.attack, f.message, f.batch_size, f.rounds
            grouped.setdefault(key, []).append((i, f))
    found = []
    for some in grouped.values():
        order = sorted(some, key=lambda one: WORLDS.index(one[1].world or "blind"))
        rows = [_read(i, f, run_directory) for i, f in order]
        leaks = [
            f
            for f in every
            if f.role is Role.EXACT_LEAK and f.threat_model == order[0][1].threat_model
        ]
        found.append(TextScenario(order[0][1], rows, leaks))
    return found


def _read(number: int, finding: Finding, run_directory: Path) -> RecoveredText:
    """Raises RunError: the path of its artifact leaves the run directory."""
    path = finding.artifacts.get("text")
    if path is None:
        return RecoveredText(
            number, finding, [], "; ".join(finding.notes) or "no text was recorded"
        )
    inside = artifact_file(run_directory, path)
    try:
        if not inside.is_file() or inside.stat().st_size > LARGEST:
            return RecoveredText(number, finding, [], f"{path}: missing, or too large to show")
        content = json.loads(inside.read_text(encoding="utf-8"))
        sequences = [
            [Token(str(r), str(t)) for t, r in zip(one["truth"], one["recovered"], strict=True)]
            for target in content
            for one in target["sequences"]
        ]
    except RunError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return RecoveredText(number, finding, [], f"{path}: damaged")
    return RecoveredText(number, finding, sequences[:SHOWN])
