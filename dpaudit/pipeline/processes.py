"""Audits side by side, by processes that carry out one after the other and end with this one."""

import json
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from dpaudit.codes import entries
from dpaudit.errors import Problem
from dpaudit.memory import available

Waiting = Callable[[Mapping[str, Path]], None]  # where each audit that runs says how far it is

_POLL_SECONDS = 0.05
_INTERACTIVE = ("PYTHONINSPECT", "PYTHONSTARTUP")  # would go on at a prompt, or run a file


class Order(NamedTuple):
    """What a process is told to do."""

    text: str  # one line
    progress: Path  # where it says how far it is


class EndedAudit(NamedTuple):
    """An audit that is over."""

    name: str
    seconds: float
    problems: tuple[Problem, ...] = ()  # why there is no result; none: there is one
    out_of_time: bool = False  # it was stopped


@dataclass(frozen=True)
class Server:
    """A process that carries out orders (``orders.serve``), one after the other."""

    process: subprocess.Popen[str]
    errors: IO[str]

    @classmethod
    def of(cls, command: Sequence[str], environment: Mapping[str, str]) -> "Server":
        """Start a command, with more in its environment."""
        errors = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (read later)
        kept = {key: value for key, value in os.environ.items() if key not in _INTERACTIVE}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**kept, **environment},
        )
        return cls(process, errors)

    def order(self, text: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its exit code says why
            self.process.stdin.write(f"{text}\n")
            self.process.stdin.flush()  # and left open

    def answer(self) -> tuple[int, str] | None:
        """The exit code of its order and what was said; None while there is no answer."""
        assert self.process.stdout is not None
        if select.select([self.process.stdout], [], [], 0)[0]:
            line = self.process.stdout.readline()
            if line.endswith("\n"):
                code, said = json.loads(line)
                return code, said
        if (ended := self.process.poll()) is None:
            return None
        self.errors.seek(0)
        return ended, self.errors.read()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        """Kill it and all processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class _Running(NamedTuple):
    """An order that a process carries out."""

    name: str
    progress: Path
    server: Server
    began: float

    def ended(self, most_seconds: float) -> EndedAudit | None:
        """What became of it; None while it runs. Its process is stopped after so many seconds."""
        answer, seconds = self.server.answer(), time.monotonic() - self.began
        if answer is not None:
            return EndedAudit(self.name, seconds, _problems(*answer))
        if seconds <= most_seconds:
            return None
        self.server.stop()
        return EndedAudit(self.name, seconds, out_of_time=True)


def _problems(code: int, text: str) -> tuple[Problem, ...]:
    if code == 0:
        return ()
    if code == -signal.SIGKILL:
        return (Problem("DPA026", "killed, perhaps for lack of memory", "give fewer --workers"),)
    said = text.strip().splitlines()
    if code != 2:
        last = " / ".join(said[-3:])
        return (Problem("DPA027", f"a bug in dpaudit or a plug-in (exit code {code}): {last}"),)
    return tuple(map(_problem, said)) or (Problem("DPA026", "no reason was said"),)


def _problem(line: str) -> Problem:
    """A line of a process that carries out orders; what others print there has no code."""
    code, _, text = line.partition(" ")
    return Problem(code, text) if code in entries() else Problem("DPA026", line)


def side_by_side(
    command: Sequence[str],
    orders: Mapping[str, Order],
    places: Sequence[Mapping[str, str]],
    waiting: Waiting,
    seconds: Callable[[str], float] = lambda name: math.inf,
) -> Generator[EndedAudit]:
    """Each order as it ends; at most one in each place, and none is left when this is closed.

    Args:
        command: what is started in a place, for all orders in turn until it is stopped or ends.
        places: what each has in its environment besides.
        waiting: called often.
        seconds: when one is stopped.
    """
    queue, servers, running = list(orders), dict[int, Server](), dict[int, _Running]()
    try:
        while queue or running:
            for place, environment in enumerate(places):
                if queue and place not in running:
                    if place not in servers or servers[place].has_ended:
                        servers[place] = Server.of(command, environment)
                    name = queue.pop(0)
                    servers[place].order(orders[name].text)
                    progress, began = orders[name].progress, time.monotonic()
                    running[place] = _Running(name, progress, servers[place], began)
            waiting({one.name: one.progress for one in running.values()})
            time.sleep(_POLL_SECONDS)
            for place, one in list(running.items()):
                ended = one.ended(seconds(one.name))
                if ended is not None:
                    del running[place]
                    yield ended
    finally:
        for server in servers.values():
            server.stop()


def share_of_memory(max_memory: int | None, abreast: int, device: str) -> int | None:
    """Bytes for each of so many audits that run side by side; None: what is free."""
    if device != "cpu" or (abreast <= 1 and max_memory is None):
        return max_memory
    whole = max_memory or available()
    return None if whole is None else whole // max(1, abreast)
