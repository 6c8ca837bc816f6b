"""Servers of programs that need torch as forks of this process: its import takes seconds.

Others start as users start them. That takes a tenth of a second, and a small process forks for each
world in a fifth of the time that this one takes, which holds all tests.
"""

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture import program
from dpaudit.recorder import server
from tests.material.forks import Forked


def quickest(command: Sequence[str], cwd: Path, **options: Any) -> Any:
    """A server as a fork where its program imports torch, and else as a process of its own."""
    script = command[command.index(program.SERVE) + 3]
    needs_torch = any(name.startswith("torch") for name in server.large_imports(cwd / script))
    if not needs_torch:
        return subprocess.Popen(command, cwd=cwd, **options)
    return Forked(server.main, command[command.index(program.SERVE) :], cwd, **options)


@pytest.fixture
def started_servers() -> None:
    """A test with this one starts all servers as users do."""


@pytest.fixture
def forked_servers() -> None:
    """For slow tests that change what a server finds: it is a fork of the test's own process."""


@pytest.fixture(autouse=True)
def _quickest_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request.fixturenames
    is_slow = request.node.get_closest_marker("slow") is not None
    if "forked_servers" in asked or (not is_slow and "started_servers" not in asked):
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
