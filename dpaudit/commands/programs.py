"""dpaudit audit of a program that was not written for dpaudit."""

import os
from pathlib import Path

from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.result import AuditResult
from dpaudit.progress import OnProgress

from .terminal import say


def print_runs(config: CapturedConfig) -> None:
    """How often an audit runs its program."""
    say(
        f"{config.least_runs} runs of the program, and 3 more in each of "
        f"{len(config.record.rounds)} rounds for each further draw of noise; "
        f"{config.certify.runs} short runs, and {config.attack_runs} for attacks"
    )


def audit_program(
    config: CapturedConfig,
    config_file: Path,
    out: Path,
    workers: int | None,
    resume: bool,
    on_progress: OnProgress,
) -> AuditResult:
    """Run it."""
    from dpaudit.capture.audit import run_captured

    text, cores = config_file.read_text("utf-8"), workers or os.cpu_count() or 1
    return run_captured(config, out, cores, text, resume, on_progress)
