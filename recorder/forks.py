"""How a fork that plays a world ends: by itself, or when its time is over."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

TIMED_OUT = -1000  # in the place of an exit status


def ended(child: int, seconds: float) -> int:
    """The status of a child, which is ended when its time is over, with all of its group."""
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


def exit_code(status: int) -> int:
    """Of what ``os.waitpid`` returns; negative where a signal ended the process."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
