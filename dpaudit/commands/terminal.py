"""What commands leave on a terminal and in files: lines, bars, exit codes. Nothing loads torch."""

import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from dpaudit.errors import DpauditError
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import MEANING
from dpaudit.progress import OnProgress

if TYPE_CHECKING:
    from dpaudit.check.one_audit import AuditJob
    from dpaudit.check.processes import Waiting
    from dpaudit.files.check_report import CheckReport

stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def errors_as_exit_codes(resume: str = "") -> Iterator[None]:
    """A DpauditError is a line for each problem and exit 2; Ctrl-C is exit 130.

    Native code that a signal meets may turn KeyboardInterrupt into an error of its own, so that
    whatever is raised after a signal counts as the interruption.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if interrupted or isinstance(error, KeyboardInterrupt):
            stderr.print("interrupted; what was done is kept.", markup=False)
            if resume:
                stderr.print(f"To finish: {resume}", markup=False)
            raise typer.Exit(130) from None
        if not isinstance(error, DpauditError):
            raise
        for line in str(error).splitlines():
            stderr.print(f"[red]error:[/red] {escape(line)}")
        raise typer.Exit(2) from None


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Each different Python warning is one line on stderr, at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        stderr.print(f"warning: {' '.join(text.split())}", markup=False)


@contextmanager
def progress_bars(quiet: bool) -> "Iterator[OnProgress]":
    """Bars with the time left on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, visible=done < total)

        yield on_progress


def passing_on(on_progress: "OnProgress") -> "Waiting":
    """What audits in processes of their own leave in progress.json, reported here."""

    def waiting(running: "Mapping[str, AuditJob]") -> None:
        for name, job in running.items():
            try:
                progress = json.loads(job.progress.read_text("utf-8"))
            except (OSError, ValueError):
                continue  # not begun
            for what, (done, total) in progress.items():
                on_progress(f"{name}: {what}", done, total)

    return waiting


def print_result(result: AuditResult, out: Path, as_json: bool) -> None:
    """Verdicts of an audit and where its report is, or audit.json as it is."""
    if as_json:
        print(result.to_json(), end="")
        return
    for note in result.notes:
        stdout.print(f"note: {note}", markup=False)
    for claim in result.claims:
        stdout.print(f"{claim.verdict.upper()}  {claim.sentence}", markup=False)
        stdout.print(f"  against {claim.threat_model}: {claim.reason}", markup=False)
    if result.verdict is None:
        stdout.print("no claim was made, so there is no verdict", markup=False)
    else:
        stdout.print(f"verdict: {result.verdict}. {MEANING[result.verdict]}", markup=False)
    stdout.print(f"report: {out / 'report.html'}", markup=False)


def remove_outputs(*files: Path | None) -> None:
    """What lies there is of another check, and must not pass for the answer of one that fails."""
    for file in files:
        if file is not None:
            with suppress(OSError):
                file.unlink()


def write_outputs(
    found: "CheckReport",
    strict: bool,
    junit: Path | None,
    sarif: Path | None,
    markdown: Path | None,
) -> None:
    """The picture of a summary goes beside it, because GitHub shows no embedded ones."""
    from dpaudit.check.whole import write_whole
    from dpaudit.reports import ci

    if junit is not None:
        write_whole(junit, ci.junit(found, strict).encode())
    if sarif is not None:
        write_whole(sarif, ci.sarif(found).encode())
    if markdown is not None:
        pictures = {}
        for i, check in enumerate(found.checks):
            if check.picture is not None and Path(check.picture).exists():
                pictures[check.name] = f"{markdown.stem}-{i + 1}.png"
                picture = Path(check.picture).read_bytes()
                write_whole(markdown.parent / pictures[check.name], picture)
        write_whole(markdown, ci.markdown(found, pictures).encode())


def write_problems(junit: Path | None, claims: Path, error: DpauditError) -> None:
    """CI systems that find no report call a run that could not start a success."""
    from dpaudit.check.whole import write_whole
    from dpaudit.reports import ci

    if junit is not None:
        xml = ci.junit_of_problems(str(claims), str(error).splitlines())
        write_whole(junit, xml.encode())


def print_check(found: "CheckReport", quiet: bool) -> None:
    """A line for each statement of a check, and annotations where GitHub runs it."""
    from dpaudit.reports import ci

    for line, statement in zip(ci.plain(found), found.statements, strict=True):
        if not quiet or statement.outcome != "holds":
            colour = {"fails": "red", "warning": "yellow", "holds": "green"}[statement.outcome]
            stdout.print(line, style=colour, markup=False)
    for note in found.notes:
        stdout.print(note, markup=False)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in ci.annotations(found):
            print(line)
