"""claims.toml: which audits a repository stands by, in what time, and which limits they keep.

And what a check of it found: all that JUnit, SARIF, Markdown and annotations are made from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from dpaudit.errors import Problem, nearest
from dpaudit.strict import Strict, Text

from .config import read_checked
from .documents import line_of
from .file_problems import FileKey, FileProblem, located
from .finding import Finding, FindingKind, Metric

LEAST_SECONDS = 5.0  # importing torch and loading data take most of that: no verdict in less

ASKED_FOR = ("control", "utility")


class ThresholdSubject(NamedTuple):
    """What a limit can be on: the metrics of a finding, or of the curves at their end."""

    kind: FindingKind | Literal["utility"]
    metrics: Mapping[str, Metric]
    attack: str | None = None
    threat_model: str | None = None
    message: str | None = None
    rounds: tuple[int, ...] = ()
    world: str | None = None
    batch_size: int | None = None
    void: str | None = None

    @classmethod
    def of(cls, finding: Finding) -> "ThresholdSubject":
        return cls(**{field: getattr(finding, field) for field in cls._fields})


class Threshold(Strict):
    """A limit on a metric of audit.json, on every finding that fits what is given here.

    A metric that is an estimate breaks a limit only if it does so beyond its own error: ``at_most``
    if the lower end of its one-sided confidence interval is above, ``at_least`` if the upper end is
    below. "claim" is the epsilon that is claimed against the finding's threat model. ``kind``
    "utility" is about loss, accuracy and consensus distance after the last round, of which the
    range over agents counts as the interval.
    """

    metric: str = Field(min_length=1)
    at_most: float | Literal["claim"] | None = None
    at_least: float | None = None
    kind: FindingKind | Literal["utility"] | None = None
    attack: str | None = None
    threat_model: str | None = None
    message: str | None = None
    round: PositiveInt | None = None
    batch_size: PositiveInt | None = None
    world: Literal["defense", "no-defense", "blind"] = "defense"

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("give either at_most or at_least")
        return self

    def selects(self, measured: ThresholdSubject) -> bool:
        """Whether this is about what was measured; what is of no world counts as of the defense.

        Controls, some of which leak on purpose, and utility are meant only where ``kind`` says so.
        """
        return (
            self.world == (measured.world or "defense")
            and (self.kind or measured.kind) == measured.kind
            and (self.kind is not None or measured.kind not in ASKED_FOR)
            and self.attack in (None, measured.attack)
            and self.threat_model in (None, measured.threat_model)
            and self.message in (None, measured.message)
            and self.batch_size in (None, measured.batch_size)
            and (self.round is None or self.round in measured.rounds)
        )


class Check(Strict):
    """One audit that must keep its claims and its limits.

    With ``fresh_seed`` its seed follows from its content, so that evidence against claims adds up
    from commit to commit; the same content has the same seed.
    """

    name: Text
    audit: str | dict[str, Any]  # a path relative to the claims file, or an audit's content
    seconds: Annotated[float, Field(ge=LEAST_SECONDS)] = 600.0
    significance: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    fresh_seed: Annotated[bool, Field(strict=True)] = False
    threshold: tuple[Threshold, ...] = ()


class LedgerClaim(Strict):
    """A ledger whose releases must stay within a claim. It is declared, and not audited."""

    name: Text
    file: Text  # a path relative to the claims file
    epsilon: PositiveFloat
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    adjacency: Literal["add-remove", "replace-one"] = "add-remove"

    @property
    def sentence(self) -> str:
        """The claim in words."""
        return (
            f"({self.epsilon:g}, {self.delta:g})-DP of all declared releases, "
            f"{self.adjacency} adjacency"
        )


class Claims(Strict):
    """The content of a claims file.

    ``import_from`` is a folder, relative to the file, from which the audits may name defenses and
    attacks as "module:Class"; without it none is imported from the repository.
    """

    import_from: str | None = None
    check: Annotated[tuple[Check, ...], Field(max_length=1000)] = ()
    ledger: Annotated[tuple[LedgerClaim, ...], Field(max_length=1000)] = ()

    @model_validator(mode="after")
    def _something_is_claimed(self) -> Self:
        if not self.check and not self.ledger:
            raise ValueError("expected at least one [[check]] or [[ledger]]")
        return self


@dataclass(frozen=True)
class ClaimsFile:
    """Claims with the text they come from, so that everything said about them names its line."""

    path: Path
    text: str
    claims: Claims

    @classmethod
    def read(cls, path: Path) -> "ClaimsFile":
        """Read a claims file; that its audits exist is checked, not what is in them.

        Raises:
            ConfigError: one line for each problem, with file, line and key.
        """
        claims, text = read_checked(path, "claims", Claims, _cross_checks)
        return cls(path, text, claims)

    @property
    def folder(self) -> Path:
        return self.path.parent

    def line(self, key: FileKey) -> int:
        """The line on which a key is written, or the nearest above it."""
        return line_of(self.text, key) or 1

    def located(self, key: FileKey, problem: Problem) -> Problem:
        """A problem at a key, with its line."""
        return located(self.path, self.text, key, problem)


def _cross_checks(claims: Claims, folder: Path) -> Iterator[FileProblem]:
    written: list[tuple[FileKey, str, str, Any]] = [
        *((("check", i), one.name, "audit", one.audit) for i, one in enumerate(claims.check)),
        *((("ledger", i), one.name, "file", one.file) for i, one in enumerate(claims.ledger)),
    ]
    names = set[str]()
    for key, name, where, path in written:
        if name in names:
            yield (*key, "name"), Problem("DPA005", f'another check is called "{name}"')
        names.add(name)
        if isinstance(path, str) and not (folder / path).is_file():
            there = [p.relative_to(folder).as_posix() for p in folder.glob("*.toml")]
            said = f'there is no file "{path}"{nearest(path, there)}'
            yield (*key, where), Problem("DPA007", said)
    if claims.import_from is not None and not (folder / claims.import_from).is_dir():
        said = f'there is no folder "{claims.import_from}"'
        yield ("import_from",), Problem("DPA007", said)


StatementOutcome = Literal["holds", "warning", "fails", "error"]  # error: nothing is known


class Statement(Strict):
    """One thing that a check says."""

    check: str  # name
    about: Literal["claim", "threshold", "evidence", "baseline", "audit"]
    subject: str  # the claim, the limit, or the metric
    adversary: str  # "" where it is about none
    outcome: StatementOutcome
    verdict: str  # a Verdict, or in two words what became of the limit or metric
    message: str  # one sentence, which names the claim, the adversary and the bound
    line: int  # line in the claims file
    code: str  # code of the reason: dpaudit explain CODE
    cause: str = ""  # what was found to be wrong; "" if nothing was
    remedy: str = ""  # what to do about the cause; "": see the code


class KeyFigure(Strict):
    """A metric of how much leaks, with what it was in the baseline."""

    label: str
    now: Metric
    before: Metric | None

    @property
    def name(self) -> str:
        return name_of_figure(self.label)


def name_of_figure(label: str) -> str:
    """A label of the baseline in words: its metric, then what it is of."""
    about, _, metric = label.rpartition(" | ")
    return f"{metric} of {about.replace(' | ', ', ')}" if about else label


class Checked(Strict):
    """One audit of the claims file."""

    name: str
    line: int
    seconds: float
    cached: bool = False
    figures: tuple[KeyFigure, ...] = ()
    picture: str | None = None  # path of the reconstruction closest to the truth
    report: str = ""  # path of report.html; "" if there is none


class CheckReport(Strict):
    """A whole claims file, checked."""

    claims_file: str
    version: str  # of dpaudit
    checks: tuple[Checked, ...]
    statements: tuple[Statement, ...]
    notes: tuple[str, ...] = ()

    def exit_code(self, strict: bool = False) -> int:
        """2 if anything could not be checked, 1 if anything fails (``strict``: or is a warning)."""
        if any(statement.outcome == "error" for statement in self.statements):
            return 2
        bad = ("fails", "warning") if strict else ("fails",)
        return int(any(statement.outcome in bad for statement in self.statements))
