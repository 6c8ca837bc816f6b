"""The command that records a program which was not written for dpaudit."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpaudit.errors import ConfigError, RunError
from dpaudit.files.atomic_files import write_whole
from dpaudit.memory import bytes_of
from dpaudit.progress import one_step
from dpaudit.text import duration

from .running import progress_lines
from .terminal import complain

if TYPE_CHECKING:
    from dpaudit.capture.recording import CaptureFolder


def capture(
    command: Annotated[
        list[str], Argument(metavar="-- COMMAND", help="The command to run, as in a shell.")
    ],
    out: Annotated[Path, Option(help="The folder of the capture, new or of an earlier one.")],
    max_bytes: Annotated[
        str, Option(metavar="SIZE", help="Record at most so much of what is sent, like 2GB.")
    ] = "2GB",
    seconds: Annotated[float, Option(help="Stop the command after this many seconds.")] = 600.0,
    cpu: Annotated[
        bool, Option("--cpu", help="Answer for CUDA with the CPU, and for nccl with gloo.")
    ] = False,
    round_starts_at: Annotated[
        str | None,
        Option(metavar="FILE:LINE", help="The line where each round starts; default: a guess."),
    ] = None,
    python: Annotated[
        str | None,
        Option(metavar="FILE", help="The Python of the program's environment, 3.8 or newer."),
    ] = None,
    transport: Annotated[
        Path | None, Option(metavar="FILE", help="An adapter that records another transport.")
    ] = None,
) -> None:
    """Run a program, with what it sends and draws recorded. Exits 0 or 2."""
    if not seconds > 0:
        raise ConfigError("DPA014", f"--seconds: expected more than 0, got {seconds:g}")
    size = bytes_of(max_bytes, "--max-bytes")
    from dpaudit.capture.draft import draft, why_no_draft
    from dpaudit.capture.recording import CaptureFolder
    from dpaudit.capture.run import Options
    from dpaudit.capture.run import capture as record
    from dpaudit.files.interpreter import interpreter
    from dpaudit.files.recorded import DRAFT, EVENTS, PAGE
    from dpaudit.reports.captured import render

    theirs = None if python is None else interpreter(python, "--python")
    options = Options(seconds, size, cpu, round_starts_at, transport, theirs)

    def write_page(recording: "CaptureFolder") -> None:
        page = render(shlex.join(command), recording.events, recording.draws)
        write_whole(out / PAGE, page.encode())

    try:
        said = f"recording {shlex.join(command)}, {duration(seconds)} at most"
        with progress_lines() as on_progress, one_step(on_progress, said):
            recording = record(command, out, options)
    except (RunError, KeyboardInterrupt):
        if (out / EVENTS).exists():  # show what was recorded so far
            write_page(CaptureFolder(out))
        raise
    write_page(recording)
    state = "kept as it was"
    if not (out / DRAFT).exists():
        why = why_no_draft(command, recording, options)
        state = f"not written: {why}" if why else "to be confirmed"
        if not why:
            write_whole(out / DRAFT, draft(command, recording, options).encode())
    for line in _said(recording, state):
        complain(line)


def _said(recording: "CaptureFolder", state: str) -> Iterator[str]:
    """What was recorded, on stderr: stdout is the program's."""
    from dpaudit.files.recorded import DRAFT, PAGE

    events, out = recording.events, recording.path
    rounds = max((event.round or 0 for event in events), default=0)
    raced = sum(event.inconsistent for event in events)
    known = f"{rounds} rounds" if rounds else "no rounds found: give --round-starts-at FILE:LINE"
    yield f"recorded {len(events)} messages of {len(recording.ranks)} ranks, {known}: {out / PAGE}"
    if raced:
        yield f"{raced} messages were changed while they were on their way: see the page"
    for line in recording.unseen:
        yield f"warning: {line}"
    if recording.warning is not None:
        yield recording.warning
    yield f"draft of an audit, {state}" + (f": {out / DRAFT}" if (out / DRAFT).exists() else "")
