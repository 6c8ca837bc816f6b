"""Servers of programs that need torch as forks of this process: its import takes seconds.

Others start as users start them. That takes a tenth of a second, and a small process forks for each
world in a fifth of the time that this one takes, which holds all tests.
"""

import atexit
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture import program
from dpaudit.recorder import server


class ForkedServer:
    """What ``dpaudit.capture.program`` uses of a Popen, of a fork that becomes the server."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None,
        **_: object,
    ) -> None:
        (orders, to_it), (from_it, answers) = os.pipe(), os.pipe()
        self.stdin, self.stdout = open(to_it, "w"), open(from_it)  # noqa: SIM115
        self.pid = os.fork()
        if self.pid:
            os.close(orders)
            os.close(answers)
            return
        try:
            os.dup2(orders, 0)
            os.dup2(answers, 1)
            os.closerange(3, max(orders, to_it, from_it, answers) + 1)
            sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
            sys.stderr = open(2, "w")  # noqa: SIM115
            atexit._clear()  # what this copy of the tests would clean up
            os.chdir(cwd)
            os.environ.update(env or {})
            sys.argv = [*command[command.index(program.SERVE) :]]
            server.main()
        finally:
            os._exit(0)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)
        self.stdout.close()


def quickest(command: Sequence[str], cwd: Path, **options: Any) -> Any:
    """A server as a fork where its program imports torch, and else as a process of its own."""
    script = command[command.index(program.SERVE) + 3]
    needs_torch = any(name.startswith("torch") for name in server.large_imports(cwd / script))
    return (ForkedServer if needs_torch else subprocess.Popen)(command, cwd=cwd, **options)


@pytest.fixture
def started_servers() -> None:
    """A test with this one starts all servers as users do."""


@pytest.fixture(autouse=True)
def _quickest_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    is_slow = request.node.get_closest_marker("slow") is not None
    if not is_slow and "started_servers" not in request.fixturenames:
        instead = SimpleNamespace(**{**vars(subprocess), "Popen": quickest})
        monkeypatch.setattr(program, "subprocess", instead)


@pytest.fixture(scope="session")
def numpy_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment into which nothing was installed: NumPy is a link."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    for place in Path(np.__file__).parents[1].glob("numpy*"):
        (site / place.name).symlink_to(place)
    return folder / "bin" / "python"
