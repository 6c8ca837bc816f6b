"""A command ends with all that it started, in whatever way the process ends that started it.

    python -I -S ended.py MARK

is the guard that sees to it, and imports nothing but Python's own. It reads the id of the command
from stdin, and then "over". Where stdin ends before that, it ends the command's group and session,
and all that have MARK in their environment. Only what leaves the session without the mark goes on.
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
        start_new_session=True,  # signals to this process's group do not reach it
        text=True,
    )
    try:
        with subprocess.Popen(command, start_new_session=True, **how) as started:
            try:
                with suppress(OSError):  # the guard may have been ended by somebody
                    print(started.pid, file=guard.stdin, flush=True)
                yield started
            finally:
                _end([started.pid], mark)
    finally:
        guard.communicate(OVER)


def left_running(session: int, mark: str) -> list[int]:
    """Processes of a session, or with a mark, that do not end by themselves within a second."""
    deadline = time.monotonic() + 1
    while (left := list(_all_of([session], mark))) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return left


def _end(sessions: list[int], mark: str) -> None:
    """Each session is that of its leader, which is in a group of the same number."""
    for group in sessions:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    while left := list(_all_of(sessions, mark)):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)


def _all_of(sessions: list[int], mark: str) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process may be of another user, or over
            state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            is_over = state in "ZX"
            of_session = int(session) in sessions and not is_over
            if of_session or mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name)


def main() -> None:
    words = sys.stdin.read().split()
    if OVER not in words:
        _end([int(word) for word in words], sys.argv[1])


if __name__ == "__main__":
    main()
