"""A ledger of releases: one JSON object a line, the budget in the first, then what was released.

A line is written before its release, so that a file never holds less than what was released. Lines
are only ever added. A last line that is cut off is of a program that was killed before its release.
If only its end is missing, an editor may have removed that, and the line counts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationError, model_validator

from dpaudit.errors import RunError
from dpaudit.release import Release
from dpaudit.strict import Strict

from .documents import json_from

FORMAT: Literal["dpaudit-ledger"] = "dpaudit-ledger"
CUT_OFF = (
    "its last line is cut off and does not count: a program was killed while it wrote the line, or "
    "the file is not whole"
)
Kind = TypeVar("Kind", bound=Strict)
Composition = Literal["fixed", "gaussian-filter", "renyi-filter"]


class Budget(Strict):
    """What all releases together may not exceed, for each agent's records."""

    format: Literal["dpaudit-ledger"] = FORMAT
    version: Literal[1] = 1
    epsilon: PositiveFloat
    delta: Annotated[float, Field(ge=0, lt=1)]
    adjacency: Literal["add-remove", "replace-one"] = "add-remove"
    composition: Composition = "fixed"  # or which filter, if noise is chosen from earlier releases
    order: Annotated[float, Field(gt=1)] | None = None  # of a Renyi filter

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.order is None) == (self.composition == "renyi-filter"):
            raise ValueError(
                "a renyi-filter, and only that, has an order: say which release to expect"
            )
        if self.composition != "fixed" and self.delta == 0:
            raise ValueError("a filter needs delta above 0; with delta = 0 fixed is one")
        return self


class PrivacyEvent(Strict):
    """What other code released: it is (epsilon, delta)-DP for the ledger's adjacency."""

    epsilon: NonNegativeFloat
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0


class LedgerEntry(Strict):
    """One line: a release of noised values, or an event."""

    release: Release | None = None
    event: PrivacyEvent | None = None
    agent: str | None = None  # whose records it is about; None: all agents'
    note: str = ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.release is None) == (self.event is None):
            raise ValueError("expected either release or event")
        return self


def to_line(content: Budget | LedgerEntry) -> bytes:
    """The line of a ledger as bytes, with its line end."""
    fields = content.model_dump(
        exclude_defaults=isinstance(content, LedgerEntry), exclude_none=True
    )
    return (json.dumps(fields, ensure_ascii=False) + "\n").encode()


def budget_of(line: bytes, path: Path) -> Budget:
    """The first line. Raises RunError."""
    return _checked(Budget, line, path, 1)


def entry_of(line: bytes, path: Path, number: int) -> LedgerEntry:
    """A later line. Raises RunError."""
    return _checked(LedgerEntry, line, path, number)


class CountedLines(NamedTuple):
    """The lines of a file that count, each with its end."""

    lines: bytes
    is_cut_off: bool  # whether an incomplete line follows


def counted_lines(content: bytes) -> CountedLines:
    """All lines of a file, but for a last one that is cut off."""
    lines, rest = content[: (end := content.rfind(b"\n") + 1)], content[end:]
    try:
        LedgerEntry.model_validate(json_from(rest.decode()))
    except ValueError:
        return CountedLines(lines, bool(rest))
    return CountedLines(content + b"\n", False)


def read_ledger(content: bytes, path: Path) -> tuple[Budget, list[LedgerEntry]]:
    """The content of a file, but for a last line that is cut off. Raises RunError."""
    first, *others = counted_lines(content).lines.splitlines() or [b""]
    return budget_of(first, path), [entry_of(line, path, i) for i, line in enumerate(others, 2)]


def message(error: Mapping[str, Any]) -> str:
    """One error of pydantic in one line: the key, what was expected, and what was found."""
    key = ".".join(map(str, error["loc"]))
    said = str(error["msg"]).removeprefix("Value error, ")
    return f"{key}: {said}, got {error['input']!r}" if key else said


def _checked(kind: type[Kind], line: bytes, path: Path, number: int) -> Kind:
    try:
        return kind.model_validate(json_from(line.decode()))
    except ValidationError as error:
        said = message(error.errors()[0])
    except ValueError as error:
        said = str(error)
    raise RunError("DPA082", f"{path}:{number}: not a line of a ledger: {said}") from None
