"""The words of reports and configs, explained once. Nothing here imports torch."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from dpaudit.errors import nearest

from .verdict import MEANING

_WRITTEN = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text("utf-8"))
ENTRIES: Mapping[str, str] = {
    **{str(verdict): meaning for verdict, meaning in MEANING.items()},
    **_WRITTEN["terms"],
}


def entry_of(term: str) -> tuple[str, str] | None:
    """Name and text of an entry, however it is written; None if there is none."""
    asked = _plain(_WRITTEN["other-words"].get(_plain(term), term))
    return next(((n, text) for n, text in ENTRIES.items() if _plain(n) == asked), None)


def nearest_entry(term: str) -> str:
    """`` (did you mean "canary"?)``, or the empty string where no entry is close."""
    found = nearest(_plain(term), map(_plain, ENTRIES))
    for name in ENTRIES:
        found = found.replace(f'"{_plain(name)}"', f'"{name}"')
    return found


def _plain(term: str) -> str:
    return " ".join(term.lower().replace("-", " ").replace("_", " ").split())
