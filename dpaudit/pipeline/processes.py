"""Audits side by side, by processes that carry out one after the other and end with this one."""

import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from dpaudit.codes import entries
from dpaudit.errors import Problem
from dpaudit.memory import available
from dpaudit.text import one_line
from dpaudit.unexpected_errors import problems_of

Waiting = Callable[[Mapping[str, Path]], None]  # is given each running audit's file of progress

BY_EVERY_AUDIT = ("dpaudit.pipeline.run", "matplotlib.figure")  # imported by what serves it
_POLL_SECONDS = 0.05
_INTERACTIVE = ("PYTHONINSPECT", "PYTHONSTARTUP")  # would go on at a prompt, or run a file


class Order(NamedTuple):
    """What a process is to do."""

    text: str  # one line
    progress: Path  # file in which it says how far it is


class EndedAudit(NamedTuple):
    """An audit that is over."""

    name: str
    seconds: float
    problems: tuple[Problem, ...] = ()  # why there is no result; none: there is one
    out_of_time: bool = False  # it was stopped


@dataclass(frozen=True)
class AuditProcess:
    """A process that carries out orders (``serve``), one after the other."""

    process: subprocess.Popen[str]
    errors: IO[str]

    @classmethod
    def of(cls, command: Sequence[str], environment: Mapping[str, str]) -> "AuditProcess":
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

    def stop(self) -> None:
        """Kill it and all processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


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
    code, _, said = line.partition(" ")
    if code not in entries():
        return Problem("DPA026", line)
    text, _, to_do = said.partition("\t")
    return Problem(code, text, to_do)


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
    queue, servers = list(orders), dict[int, AuditProcess]()
    running: dict[int, tuple[str, float]] = {}  # place -> order, and when it began
    try:
        while queue or running:
            for place, environment in enumerate(places):
                if queue and place not in running:
                    if place not in servers or servers[place].process.poll() is not None:
                        servers[place] = AuditProcess.of(command, environment)
                    name = queue.pop(0)
                    servers[place].order(orders[name].text)
                    running[place] = name, time.monotonic()
            waiting({name: orders[name].progress for name, _ in running.values()})
            time.sleep(_POLL_SECONDS)
            for place, (name, began) in list(running.items()):
                answer, took = servers[place].answer(), time.monotonic() - began
                if answer is None and took <= seconds(name):
                    continue
                del running[place]
                if answer is None:
                    servers[place].stop()
                    yield EndedAudit(name, took, out_of_time=True)
                else:
                    yield EndedAudit(name, took, _problems(*answer))
    finally:
        for server in servers.values():
            server.stop()


def share_of_memory(max_memory: int | None, abreast: int, device: str) -> int | None:
    """Bytes for each of so many audits that run side by side; None: what is free."""
    if device != "cpu" or (abreast <= 1 and max_memory is None):
        return max_memory
    whole = max_memory or available()
    return None if whole is None else whole // max(1, abreast)


def serve(carry_out: Callable[[str], None], modules: Sequence[str] = BY_EVERY_AUDIT) -> int:
    """Carry out orders until there are no more; of a fork, the exit code of its order.

    This is the other end of an ``AuditProcess``. Each order is carried out in a fork, which finds
    all modules imported. An order is a line of stdin, whose end means that whoever asked is gone;
    its answer is a line of JSON on stdout: the exit code of its fork, and what that said on
    stderr. The code is 0 if the order is done, and 2 with a line for each problem.

    Args:
        modules: imported once, before all orders. None of them may start a thread.
    """
    warnings.simplefilter("ignore")
    for module in modules:
        import_module(module)
    answers, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # audited code may print
    while order := sys.stdin.readline():
        with TemporaryFile() as said:
            fork = os.fork()
            if fork == 0:
                os.dup2(said.fileno(), 2)
                return _carried_out(carry_out, order)
            code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            said.seek(0)
            answer = code, said.read().decode(errors="replace")
        os.write(answers, f"{json.dumps(answer)}\n".encode())
    return 0


def _carried_out(carry_out: Callable[[str], None], order: str) -> int:
    threading.Thread(target=_end_with_the_asker, daemon=True).start()
    try:
        carry_out(order)
    except BaseException as error:  # SystemExit of the code that is audited, too
        for problem in problems_of(error):
            to_do = f"\t{one_line(problem.help)}" if problem.help else ""
            print(f"{problem.code} {problem.text}{to_do}", file=sys.stderr)
        return 2
    return 0


def _end_with_the_asker() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
