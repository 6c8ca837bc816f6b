"""Recovered text on a page: each token beside the truth, and whether it is right."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dpaudit.errors import RunError
from dpaudit.files.atomic_files import artifact_file
from dpaudit.files.finding import Finding, Metric, Name, Role

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
    first: Mapping[int, list[Token]] = {}  # of each agent that was attacked, its first sequence


class TextKey(NamedTuple):
    """Which message one attack recovers text from."""

    threat_model: str | None
    attack: str | None
    message: str | None
    batch_size: int | None
    rounds: tuple[int, ...]


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

    @property
    def key(self) -> TextKey:
        """What sets it apart from others of an audit, and is the same in other audits."""
        f = self.finding
        return TextKey(f.threat_model, f.attack, f.message, f.batch_size, f.rounds)

    @property
    def of_defense(self) -> RecoveredText | None:
        """What was recovered under the defense."""
        return next((row for row in self.rows if row.finding.world == "defense"), None)

    def tokens(self, world: str) -> Metric | None:
        """The share of tokens that were recovered in a world at their place."""
        some = (row.finding for row in self.rows if row.finding.world == world)
        return next((f.metrics.get(Name.TOKENS_RECOVERED) for f in some), None)


class TextSequence(NamedTuple):
    """What one attack made of one agent's messages, round after round."""

    agent: int
    scenarios: list[TextScenario]  # of the same message, one for each round

    @property
    def worlds(self) -> list[tuple[str | None, tuple[str, ...]]]:
        """The worlds of the first round, with what distinguishes several guesses."""
        return [_which(row) for row in self.scenarios[0].rows]

    @property
    def by_round(self) -> list[tuple[TextScenario, str, list[RecoveredText | None]]]:
        """Each round's scenario, the truth, and what was recovered in each world."""
        found = []
        for scenario in self.scenarios:
            of_world = {_which(row): row for row in scenario.rows}
            texts = (row.first[self.agent] for row in scenario.rows if self.agent in row.first)
            truth = " ".join(token.truth for token in next(texts, []))
            found.append((scenario, truth, [of_world.get(world) for world in self.worlds]))
        return found


def _which(row: RecoveredText) -> tuple[str | None, tuple[str, ...]]:
    """The world of a row, and of a guess its name."""
    return row.finding.world, row.finding.notes if row.finding.world == "blind" else ()


def text_sequences(scenarios: Iterable[TextScenario]) -> list[TextSequence]:
    """Messages of several rounds of an agent that was attacked in all of them, the first such."""
    grouped: dict[TextKey, list[TextScenario]] = {}
    for one in scenarios:
        grouped.setdefault(one.key._replace(rounds=()), []).append(one)
    found = []
    for some in grouped.values():
        agents = [{a for row in one.rows for a in row.first} for one in some]
        always = set.intersection(*agents)
        if len(some) > 1 and always:
            order = sorted(some, key=lambda one: one.finding.rounds)
            found.append(TextSequence(min(always), order))
    return found


def most_recovered(scenarios: Iterable[TextScenario]) -> TextScenario | None:
    """The one with most tokens under the defense; None: there is none with any figure."""
    shares = [(share.value, s) for s in scenarios if (share := s.tokens("defense")) is not None]
    return max(shares, key=lambda one: one[0], default=(0.0, None))[1]


def text_scenarios(findings: Iterable[Finding], run_directory: Path) -> list[TextScenario]:
    """The recovered text of a result, in its order, worlds side by side."""
    grouped: dict[TextKey, list[tuple[int, Finding]]] = {}
    every = list(findings)
    for i, f in enumerate(every):
        if f.role is Role.TEXT_RECOVERY:
            key = TextKey(f.threat_model, f.attack, f.message, f.batch_size, f.rounds)
            grouped.setdefault(key, []).append((i, f))
    found = []
    for some in grouped.values():
        order = sorted(some, key=lambda one: WORLDS.index(one[1].world or "blind"))
        rows = [_read(i, f, run_directory) for i, f in order]
        leaks = exact_leaks(every, order[0][1].threat_model)
        found.append(TextScenario(order[0][1], rows, leaks))
    return found


def exact_leaks(findings: Iterable[Finding], threat_model: str | None) -> list[Finding]:
    """What the algebra of the protocol reveals to an adversary."""
    return [f for f in findings if f.role is Role.EXACT_LEAK and f.threat_model == threat_model]


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
        by_agent = [
            (
                int(target["agent"]),
                [
                    [Token(str(r), str(t)) for t, r in zip(*pair, strict=True)]
                    for pair in ((one["truth"], one["recovered"]) for one in target["sequences"])
                ],
            )
            for target in content
        ]
    except RunError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return RecoveredText(number, finding, [], f"{path}: damaged")
    sequences = [sequence for _, some in by_agent for sequence in some]
    first = {agent: some[0] for agent, some in by_agent if some}
    return RecoveredText(number, finding, sequences[:SHOWN], first=first)
