"""Audits side by side, each in processes of its own, which end with whoever started them."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from dpaudit.errors import DpauditError, is_out_of_memory
from dpaudit.memory import available
from dpaudit.unforeseen import unforeseen

Waiting = Callable[[Mapping[str, Path]], None]  # where each audit that runs says how far it is

_POLL_SECONDS = 0.05
_INTERACTIVE = ("PYTHONINSPECT", "PYTHONSTARTUP")  # would go on at a prompt, or run a file


class Ended(NamedTuple):
    """An audit that is over."""

    name: str
    seconds: float
    problems: tuple[str, ...] = ()  # why there is no result, in lines; none: there is one
    out_of_time: bool = False  # it was stopped


@dataclass(frozen=True)
class Started:
    """A process that reads its order from stdin, whose end tells it that the one who asked is gone.

    It exits 0 when it is done and 2 with a line on stderr for each problem.
    """

    name: str
    progress: Path
    process: subprocess.Popen[str]
    errors: IO[str]
    began: float

    @classmethod
    def of(
        cls,
        name: str,
        command: Sequence[str],
        order: str,
        progress: Path,
        environment: Mapping[str, str] | None = None,
    ) -> "Started":
        """Start a command with an order of one line, and with more in its environment."""
        errors = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (read later)
        kept = {key: value for key, value in os.environ.items() if key not in _INTERACTIVE}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**kept, **(environment or {})},
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its exit code says why
            process.stdin.write(f"{order}\n")
            process.stdin.flush()  # and left open
        return cls(name, progress, process, errors, time.monotonic())

    def ended(self, most_seconds: float) -> Ended | None:
        """What became of it; None while it runs. It is stopped after so many seconds."""
        code, seconds = self.process.poll(), time.monotonic() - self.began
        if code is None and seconds <= most_seconds:
            return None
        if code is None:
            self.stop()
            return Ended(self.name, seconds, out_of_time=True)
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines() if code else []
        if code == -signal.SIGKILL:
            said = ["killed, perhaps for lack of memory; give fewer --workers"]
        elif code not in (0, 2):
            said = [f"a bug in dpaudit or a plug-in (exit code {code}): {' / '.join(said[-3:])}"]
        return Ended(self.name, seconds, tuple(said or (["no reason was said"] if code else [])))

    def stop(self) -> None:
        """Kill it and all processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def side_by_side(
    names: Sequence[str],
    start: Callable[[str, int], Started],
    most: int,
    waiting: Waiting,
    seconds: Callable[[str], float] = lambda name: math.inf,
) -> Generator[Ended]:
    """Each audit as it ends; at most so many run at once, and none is left when this is closed.

    Args:
        start: begins one, in a place from 0 below ``most`` that no other has meanwhile.
        waiting: called often.
        seconds: when one is stopped.
    """
    queue, running = list(names), dict[int, Started]()
    try:
        while queue or running:
            for place in range(most):
                if queue and place not in running:
                    running[place] = start(queue.pop(0), place)
            waiting({started.name: started.progress for started in running.values()})
            time.sleep(_POLL_SECONDS)
            for place, started in list(running.items()):
                ended = started.ended(seconds(started.name))
                if ended is not None:
                    del running[place]
                    yield ended
    finally:
        for started in running.values():
            started.stop()


def carried_out(make: Callable[[str], None]) -> int:
    """The exit code of a process that ``Started`` began, once ``make`` has done its order."""
    order = sys.stdin.readline()
    threading.Thread(target=_end_with_the_asker, daemon=True).start()
    warnings.simplefilter("ignore")
    try:
        make(order)
    except BaseException as error:  # SystemExit of the code that is audited, too
        for line in problems_of(error):
            print(line, file=sys.stderr)
        return 2
    return 0


def problems_of(error: BaseException) -> list[str]:
    """Why an audit has no result, in lines."""
    if isinstance(error, DpauditError) and (text := str(error)):
        return text.split("\n")
    if is_out_of_memory(error):
        return ["out of memory; give --workers 1, or audit less at once"]
    return [unforeseen(error)]


def _end_with_the_asker() -> None:
    sys.stdin.read()
    os._exit(1)


def share_of_memory(max_memory: int | None, abreast: int, device: str) -> int | None:
    """Bytes for each of so many audits that run side by side; None: what is free."""
    if device != "cpu" or (abreast <= 1 and max_memory is None):
        return max_memory
    whole = max_memory or available()
    return None if whole is None else whole // max(1, abreast)
