"""The command that reads code for mistakes of privacy, without running it."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from dpaudit.errors import ConfigError, Problem

from . import terminal
from .running import progress_bars
from .terminal import complain, say

Paths = Annotated[
    list[Path], Argument(metavar="PATH...", help="Python files, notebooks, or folders of them.")
]
Format = Annotated[Literal["text", "json", "sarif"], Option(help="What is printed.")]


def lint(paths: Paths, format: Format = "text") -> int:
    """Hints of mistakes in privacy code, by reading it: nothing is imported or run.

    Exits 1 if there are hints, 2 if a file that is named cannot be examined, else 0.
    """
    from dpaudit.lint.lint import lint as linted
    from dpaudit.reports import hints

    with progress_bars(quiet=False) as on_progress:
        found = linted(paths, partial(on_progress, "reading files"))
    if not found.n_files and not found.unread:
        where = ", ".join(map(str, paths))
        raise ConfigError("DPA085", f"{where}: no Python file and no notebook is below it")
    wrong = [
        Problem(one.code, f"{one.path}: {one.reason}") for one in found.unread if one.is_asked_for
    ]
    code = 2 if wrong else 1 if found.hints else 0
    if format == "json":
        terminal.say_json(hints.to_json(found))
    elif format == "sarif":
        terminal.say_json(hints.sarif(found, code))
    else:
        for line in hints.text(found):
            say(line)
    for one in found.unread:
        if not one.is_asked_for:
            complain(f"{one.path}: not examined: {one.reason}", "note")
    terminal.print_problems(wrong)
    return code
