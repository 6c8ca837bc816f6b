"""Audits side by side, each in processes of its own that are stopped when its time is up."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

from dpaudit.errors import RunError
from dpaudit.files.claims_file import ClaimsFile

from .one_audit import AuditJob

Waiting = Callable[[Mapping[str, AuditJob]], None]  # the audits that run now, called often

_POLL_SECONDS = 0.05
_INTERACTIVE = ("PYTHONINSPECT", "PYTHONSTARTUP")  # would go on at a prompt, or run a file


@dataclass(frozen=True)
class _Running:
    name: str
    process: subprocess.Popen[str]
    errors: IO[str]
    began: float


def run_all(
    command: Sequence[str],
    file: ClaimsFile,
    jobs: Mapping[str, AuditJob],
    cores: int,
    waiting: Waiting,
) -> dict[str, float]:
    """Run jobs by the name of their check, as many at once as there are cores; seconds of each.

    Args:
        command: what is started for each, and reads its job from stdin.

    Raises:
        DpauditError: one could not be run, or not in its time; all others are finished, and a line
            says what is wrong with each.
    """
    queue, running = list(jobs), list[_Running]()
    seconds: dict[str, float] = {}
    problems: list[str] = []
    share = max(1, cores // max(1, len(jobs)))
    try:
        while queue or running:
            while queue and len(running) < cores:
                name = queue.pop(0)
                running.append(_started(command, name, jobs[name], share))
            waiting({r.name: jobs[r.name] for r in running})
            time.sleep(_POLL_SECONDS)
            for audit in [r for r in running if _is_over(file, r, problems)]:
                running.remove(audit)
                seconds[audit.name] = time.monotonic() - audit.began
    finally:
        for audit in running:
            _stop(audit)
    if problems:
        raise RunError("\n".join(problems))
    return seconds


def _started(command: Sequence[str], name: str, job: AuditJob, cores: int) -> _Running:
    errors = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (read later)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name not in _INTERACTIVE},
    )
    assert process.stdin is not None
    process.stdin.write(job.model_copy(update={"cores": cores}).model_dump_json() + "\n")
    process.stdin.flush()  # and left open: its end tells the process that this one is gone
    return _Running(name, process, errors, time.monotonic())


def _is_over(file: ClaimsFile, audit: _Running, problems: list[str]) -> bool:
    """Whether it ended or had to be stopped; what went wrong is added to the problems."""
    i = next(i for i, check in enumerate(file.claims.check) if check.name == audit.name)
    budget = file.claims.check[i].seconds
    code = audit.process.poll()
    if code is None and time.monotonic() - audit.began <= budget:
        return False
    if code is None:
        _stop(audit)
        said = [
            f"not finished after {budget:g} s, so there is no verdict; give it more, or the audit "
            "fewer rounds, trials or attacks. What was done is kept, and the next check goes on"
        ]
        key: tuple[str | int, ...] = ("check", i, "seconds")
    else:
        audit.errors.seek(0)
        said = audit.errors.read().strip().splitlines() if code else []
        if code not in (0, 2):
            said = [f"a bug in dpaudit or a plug-in (exit code {code}): {' / '.join(said[-3:])}"]
        key = ("check", i)
    problems += [str(file.problem(key, f'"{audit.name}": {line}')) for line in said]
    return True


def _stop(audit: _Running) -> None:
    """Kill the audit and all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(audit.process.pid, signal.SIGKILL)
    audit.process.wait()
