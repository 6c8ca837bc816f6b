"""The codes of errors and of reasons of verdicts, with what each of them means."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """The page of a code."""

    title: str
    meaning: str
    why: str  # it stops an audit, or what it says about a claim
    example: str  # of what is printed
    help: str  # what to do, in one sentence


@cache
def entries() -> Mapping[str, Entry]:
    """Every code, such as "DPA017", in order."""
    content = tomllib.loads(Path(__file__).with_name("codes.toml").read_text("utf-8"))
    return {code: Entry(**entry) for code, entry in content.items()}


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
    return (
        f"# {code}: {entry.title}\n\n## What it means\n\n{entry.meaning}\n\n"
        f"## Why\n\n{entry.why}\n\n## Example\n\n```text\n{entry.example}\n```\n\n"
        f"## What to do\n\n{entry.help}\n"
    )
