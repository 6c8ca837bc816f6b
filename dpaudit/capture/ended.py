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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OVER = "over"
_PAUSE = 0.01  # seconds


@contextmanager
def guarded(mark: str) -> Iterator["Guard"]:
    """What is started in the block has ended after it; or after this process, if that ends first.

    Args:
        mark: "NAME=VALUE", which the environment of all that it is about has, and no other.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=subprocess.PIPE,
        start_new_session=True,  # where no signal to this process's group reaches it
        text=True,
    )
    guard = Guard(process, mark)
    try:
        yield guard
    finally:
        guard.end()


class Guard:
    """Ends what was started, or has it ended by a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", mark: str) -> None:
        self._process, self._mark = process, mark
        self._started: subprocess.Popen[bytes] | None = None

    def has(self, started: "subprocess.Popen[bytes]") -> None:
        """The command, whose id is that of its group."""
        self._started = started
        self._tell(f"{started.pid}\n")

    def end(self) -> None:
        """End the command and all that it started."""
        if self._started is not None:
            _end([self._started.pid], self._mark)
            self._started.wait()
        self._tell(OVER)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, text: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # of a guard that somebody has ended
            self._process.stdin.write(text)
            self._process.stdin.flush()


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
