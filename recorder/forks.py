"""How a fork that plays a world ends, with all that it started: by itself, or when time is over.

What a program leaves running, as a daemon in a session of its own, becomes a child of the process
that made the fork, and ends with it. Only Linux can do that; elsewhere the fork's group ends.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

TIMED_OUT = -1000  # returned instead of an exit status
ADOPT = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
GRACE = 0.5  # seconds in which what is left may clean up, as those that hold shared memory do


def adopt() -> None:
    """From now on, processes whose parent has ended become children of this one."""
    with suppress(Exception):  # a system or a Python that cannot
        import ctypes

        ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)


def children() -> set[int]:
    """Child processes, with adopted ones; empty if the system does not list them."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread may have ended
            found.update(map(int, path.read_text().split()))
    return found


def ended(child: int, seconds: float, others: set[int]) -> int:
    """The status of a child, which is ended when its time is over, with all that it started.

    Args:
        others: children of this process that go on.
    """
    deadline, pause = time.monotonic() + seconds, 1e-3
    try:
        while time.monotonic() < deadline:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return exit_code(status)
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        return TIMED_OUT
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        _end_all_but(others)


def _end_all_but(others: set[int]) -> None:
    """Children of a child that is ended are adopted in turn, until there are none."""
    deadline = time.monotonic() + GRACE
    while left := children() - others:
        for pid in left:
            over = time.monotonic() > deadline
            if over:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0 if over else os.WNOHANG)
        time.sleep(1e-3)


def exit_code(status: int) -> int:
    """Exit code from the status of ``os.waitpid``; negative if a signal ended the process."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
