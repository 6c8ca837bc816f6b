"""The codes of errors, of reasons of verdicts and of lint's rules, with what each means."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple


class CodePage(NamedTuple):
    """The page of a code; a rule of `dpaudit lint` has all of it."""

    title: str
    meaning: str
    why: str  # it stops an audit, or what it says about a claim
    example: str  # example of a message; for a rule, the code that it finds
    help: str  # what to do, in one sentence
    instead: str = ""  # the code without the mistake
    seen: str = ""  # places in published code
    confirm: str = ""  # the audit that would confirm a hint

    @property
    def is_rule(self) -> bool:
        """Whether `dpaudit lint` finds it."""
        return bool(self.confirm)


@cache
def entries() -> Mapping[str, CodePage]:
    """Every code, such as "DPA017", in order."""
    content = tomllib.loads(Path(__file__).with_name("codes.toml").read_text("utf-8"))
    return {code: CodePage(**entry) for code, entry in content.items()}


def help_for(code: str, help: str = "") -> str:
    """What to do about a problem: its own advice, or else that of its code; and where to read on.

    Raises:
        KeyError: there is no such code.
    """
    return f"{(help or entries()[code].help).rstrip('.')}; see dpaudit explain {code}"


def page(code: str) -> str:
    """The page of a code in Markdown.

    Raises:
        KeyError: there is no such code.
    """
    entry = entries()[code]
    language = "python" if entry.is_rule else "text"
    sections = {
        "What it means": entry.meaning,
        "Why": entry.why,
        "Example": _fenced(entry.example, language),
        "Use instead": _fenced(entry.instead, language),
        "Seen in": entry.seen,
        "What confirms it": f"`{entry.confirm}`" if entry.is_rule else "",
        "What to do": entry.help,
    }
    parts = [f"## {heading}\n\n{text}" for heading, text in sections.items() if text]
    return "\n\n".join([f"# {code}: {entry.title}", *parts]) + "\n"


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.strip()}\n```" if text else ""
