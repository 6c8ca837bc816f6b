"""Which of the files that commands read a TOML file is, by its keys."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from dpaudit.errors import ConfigError

FileKind = Literal["audit", "program", "claims", "benchmark"]

_READ_BY: Mapping[FileKind, tuple[str, str]] = {  # what it is, and the command that reads it
    "audit": ("an audit file", "audit"),
    "program": ("the audit of a program", "audit"),
    "claims": ("a claims file", "check"),
    "benchmark": ("a benchmark file", "benchmark"),
}
_OF_AUDITS = {"data", "graph", "model", "defense", "claim", "threat_model", "attack"}
_OF_BENCHMARKS = {"axis", "cell", "exclude", "seeds", "audit"}
_LEAST = 2  # keys that make a file an audit; a single one may be misplaced


def kind_of(keys: Collection[str]) -> FileKind | None:
    """What a file with these keys is meant to be; None if that is unclear."""
    if "program" in keys:
        return "program"
    if len(_OF_AUDITS & {*keys}) >= _LEAST:
        return "audit"
    if "check" in keys:
        return "claims"
    return "benchmark" if _OF_BENCHMARKS & {*keys} else None


def refuse_other_kind(path: Path, content: Mapping[str, Any], *expected: FileKind) -> None:
    """Raises ConfigError: another command reads the file, and the line names it."""
    found = kind_of(content.keys())
    if found is not None and found not in expected:
        what, command = _READ_BY[found]
        raise ConfigError("DPA009", f"{path}: this is {what}: dpaudit {command} {path}")
