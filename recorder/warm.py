"""A simulation that has run up to its first call of the tap, from where each world is a fork.

Until then nothing depends on the world but its seed: what the program imports, reads and makes is
the same, and is done once. A fork goes on where the program stands. A program is forked only where
that is all of it: on Linux, with one thread, without children or memory that processes share, and
with no file whose position one world would move for another. Elsewhere every run starts anew.
"""

from __future__ import annotations

import os
import random
import select
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from .forks import adopt, children, ended
from .player import World
from .transports.unseen import begin_anew

if TYPE_CHECKING:
    from collections.abc import Callable

    Wait = Callable[[], Path]

_SELF = Path("/proc/self")
READY = "ready\n"


class WarmProgram:
    """The process in which the program waits, as its server has it.

    Args:
        run: plays the program of a world in this process. Its first call of the tap waits by what
            it is given, and goes on, in a fork, with the world whose path that returns.
        seconds: that a run may take.
    """

    def __init__(self, run: Callable[[Path, Wait], None], seconds: float) -> None:
        self._run, self._seconds = run, seconds
        self._asked, self._seed = 0, -1
        self._pid: int | None = None

    def status(self, path: Path) -> int | None:
        """The exit status of a world's run; None: it has to start anew.

        The first one always does. The audit holds later runs against it, and so finds what the
        program draws without a seed before its first call of the tap.
        """
        self._asked += 1
        if self._asked == 1 or not (_SELF / "task").is_dir():
            return None
        seed = World(str(path)).seed
        if self._asked == 2:
            self._seed = seed
            self._start(path)
        if self._pid is None or seed != self._seed:
            return None
        self._orders.write(f"{path}\n")
        self._orders.flush()
        answer = self._answers.readline()
        if answer:
            return int(answer)
        self.end()
        return None

    def end(self) -> None:
        """End the process, the run that it waits for, and what its program has started."""
        if self._pid is not None:
            self._orders.close()
            ended(self._pid, 0.0, self._others)
            self._pid = None

    def _start(self, path: Path) -> None:
        (orders, to_it), (from_it, answers) = os.pipe(), os.pipe()
        self._others = children()
        self._pid = os.fork()
        if self._pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setpgid(0, 0)
            os.close(to_it)
            os.close(from_it)
            self._run(path, ForkPoint(orders, answers, self._seconds).wait)
            os._exit(0)
        os.close(orders)
        os.close(answers)
        self._orders, self._answers = os.fdopen(to_it, "w"), os.fdopen(from_it)
        is_there, _, _ = select.select([self._answers], [], [], self._seconds)
        if not is_there or self._answers.readline() != READY:
            self.end()


class ForkPoint:
    """Where a program waits for worlds, in its own process.

    Args:
        orders, answers: of files: the paths of worlds, and the status of each one's run.
        seconds: that a run may take.
    """

    def __init__(self, orders: int, answers: int, seconds: float) -> None:
        self._orders, self._answers, self._seconds = orders, answers, seconds
        self._pid, self._files, self._memory = os.getpid(), _open_files(), _shared_memory()

    def wait(self) -> Path:
        """Fork this process for each world; in the fork, return the path of its world."""
        try:
            if os.getpid() != self._pid or not self._is_whole():
                os._exit(0)
            os.write(self._answers, READY.encode())
            state = random.getstate()  # a fork of Python replaces this state
            adopt()
            with os.fdopen(self._orders) as orders:
                for line in orders:
                    child = os.fork()
                    if child == 0:
                        os.setpgid(0, 0)
                        random.setstate(state)
                        begin_anew()
                        self._make_positions_own()
                        os.close(self._answers)
                        return Path(line.rstrip("\n"))
                    os.write(self._answers, f"{ended(child, self._seconds, set())}\n".encode())
        except BaseException:  # not an error of the program
            os._exit(1)
        os._exit(0)

    def _is_whole(self) -> bool:
        """Whether a fork has all of the program, and nothing of it together with others."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return False
        except ChildProcessError:
            pass
        return (
            len(os.listdir(_SELF / "task")) == 1
            and _shared_memory() <= self._memory
            and all(map(_can_be_shared, _open_files() - self._files))
        )

    def _make_positions_own(self) -> None:
        """Open again what the program reads, so that each fork has its own position there."""
        for number in _open_files() - self._files:
            if stat.S_ISREG(os.fstat(number).st_mode) and not _flags(number) & os.O_APPEND:
                own = os.open(_SELF / "fd" / str(number), os.O_RDONLY)
                os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, number, os.get_inheritable(number))
                os.close(own)


def _open_files() -> set[int]:
    return {int(name) for name in os.listdir(_SELF / "fd") if (_SELF / "fd" / name).exists()}


def _can_be_shared(number: int) -> bool:
    """Whether it is read alone, or only added to, or is a device such as /dev/urandom."""
    mode, flags = os.fstat(number).st_mode, _flags(number)
    read_alone = flags & os.O_ACCMODE == os.O_RDONLY
    return stat.S_ISCHR(mode) or (stat.S_ISREG(mode) and (read_alone or bool(flags & os.O_APPEND)))


def _flags(number: int) -> int:
    """Flags that a file was opened with."""
    lines = (_SELF / "fdinfo" / str(number)).read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("flags:")), 8)


def _shared_memory() -> set[str]:
    """What this process writes where others see it."""
    parts = [line.split() for line in (_SELF / "maps").read_text().splitlines()]
    return {part[0] for part in parts if part[1][1] == "w" and part[1][3] == "s"}
