"""A command ends with all that it started, in whatever way the process ends that started it.

    python -I -S ended.py MARK

is the guard that sees to it, and imports nothing but Python's own. It reads the id of the command
from stdin, and then "over". Where stdin ends before that, it ends the command's group, and all that
have MARK in their environment.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

OVER = "over"
_PAUSE = 0.01  # seconds


@contextmanager
def guarded(mark: str, command: Sequence[str], **how: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A command, and what it starts, end after the block, or after this process if that ends first.

    Args:
        mark: "NAME=VALUE", which the environment of all that it is about has, and no other.
        how: what ``subprocess.Popen`` takes beside the command.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=subprocess.PIPE,
        start_new_session=True,  # where no signal to this process's group reaches it
        text=True,
    )
    try:
        with subprocess.Popen(command, start_new_session=True, **how) as started:
            try:
                with suppress(OSError):  # of a guard that somebody has ended
                    print(started.pid, file=guard.stdin, flush=True)
                yield started
            finally:
                _end([started.pid], mark)
    finally:
        guard.communicate(OVER)


def left_running(mark: str) -> list[int]:
    """Processes with a mark that do not end by themselves within a second."""
    deadline = time.monotonic() + 1
    while (left := list(_with_environment(mark.encode()))) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return left


def _end(groups: list[int], mark: str) -> None:
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    while left := list(_with_environment(mark.encode())):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)


def _with_environment(mark: bytes) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # of another user, or over
            if mark in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


def main() -> None:
    words = sys.stdin.read().split()
    if OVER not in words:
        _end([int(word) for word in words], sys.argv[1])


if __name__ == "__main__":
    main()
