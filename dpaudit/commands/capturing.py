"""The command that records a program which was not written for dpaudit."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpaudit.errors import ConfigError
from dpaudit.files.whole import write_whole
from dpaudit.memory import bytes_of

from .terminal import complain, errors_as_exit_codes

if TYPE_CHECKING:
    from dpaudit.capture.recording import Recording


def capture(
    command: Annotated[
        list[str], Argument(metavar="-- COMMAND", help="What to run, as in a shell.")
    ],
    out: Annotated[Path, Option(help="The folder of the capture, new or of an earlier one.")],
    max_bytes: Annotated[
        str, Option(metavar="SIZE", help="Of all that is sent, like 2GB.")
    ] = "2GB",
    seconds: Annotated[float, Option(help="That the command may take.")] = 600.0,
    cpu: Annotated[
        bool, Option("--cpu", help="Answer for CUDA with the CPU, and for nccl with gloo.")
    ] = False,
    round_starts_at: Annotated[
        str | None, Option(metavar="FILE:LINE", help="Where each round starts; default: a guess.")
    ] = None,
) -> None:
    """Run a torch.distributed program, with every message it sends recorded. Exits 0 or 2."""
    with errors_as_exit_codes():
        if not seconds > 0:
            raise ConfigError(f"--seconds: expected more than 0, got {seconds:g}")
        size = bytes_of(max_bytes, "--max-bytes")
        from dpaudit.capture.draft import draft
        from dpaudit.capture.recording import DRAFT, PAGE
        from dpaudit.capture.run import Options
        from dpaudit.capture.run import capture as record
        from dpaudit.reports.captured import render

        recording = record(command, out, Options(seconds, size, cpu, round_starts_at))
        write_whole(
            out / PAGE, render(shlex.join(command), recording.events, recording.draws).encode()
        )
        if not (out / DRAFT).exists():
            write_whole(out / DRAFT, draft(command, recording, seconds).encode())
        for line in _said(recording, out):
            complain(line)
