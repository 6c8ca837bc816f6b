"""A process that is a fork of this one, whose imports it shares, in the place of one that starts."""

import atexit
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import torch

from dpaudit.inputs import recorder
from dpaudit.pipeline import processes


class Forked:
    """What dpaudit uses of a Popen with pipes, of a fork that runs a function.

    Args:
        main: called in the fork with the command as sys.argv; its SystemExit is the exit code.
        env: what is added to the environment.
        stderr: where the fork's goes; by default to this process's.
    """

    def __init__(
        self,
        main: Callable[[], object],
        command: Sequence[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stderr: IO[str] | None = None,
        start_new_session: bool = False,
        **_: object,
    ) -> None:
        (orders, to_it), (from_it, answers), (begun, begins) = os.pipe(), os.pipe(), os.pipe()
        self.stdin, self.stdout = open(to_it, "w"), open(from_it)  # noqa: SIM115
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid:
            for its in (orders, answers, begins):
                os.close(its)
            os.read(begun, 1)  # until it is in its session, whose end may be asked for
            os.close(begun)
            return
        code = 1
        try:
            if start_new_session:
                os.setsid()
            os.dup2(orders, 0)
            os.dup2(answers, 1)
            if stderr is not None:
                os.dup2(stderr.fileno(), 2)
            os.closerange(3, max(orders, answers, begins) + 1)
            sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
            sys.stderr = open(2, "w")  # noqa: SIM115
            atexit._clear()  # what this copy of the tests would clean up
            if cwd is not None:
                os.chdir(cwd)
            os.environ.update(env or {})
            sys.argv = [*command]
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._ended(os.WNOHANG)

    def wait(self) -> None:
        self._ended(0)
        self.stdout.close()

    def _ended(self, how: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, how)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


@cache
def know_what_is_installed() -> None:
    """Of all modules, once for all forks."""
    recorder._note_loaded(recorder.Recorder(None))


def fork_orders(patch: pytest.MonkeyPatch) -> None:
    """Processes that carry out orders are forks: what they would import takes seconds."""
    know_what_is_installed()
    instead = SimpleNamespace(**{**vars(subprocess), "Popen": _server_of_orders})
    patch.setattr(processes, "subprocess", instead)


def _server_of_orders(command: Sequence[str], **options: Any) -> Forked:
    """A script or, as ``python -P -m``, a module."""

    def main() -> None:
        torch.set_num_threads(1)  # no thread outlives a fork
        if "-m" not in command:
            runpy.run_path(command[1], run_name="__main__")
        else:
            sys.exit(import_module(command[-1]).main())

    return Forked(main, command[1:], **options)
