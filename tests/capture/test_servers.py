"""Servers of a program's runs."""

import sys
from pathlib import Path
from subprocess import DEVNULL, run
from threading import Thread

import pytest

from dpaudit.capture.program import Servers
from dpaudit.files.captured_file import ProgramOptions
from dpaudit.recorder.server import large_imports

pytestmark = pytest.mark.usefixtures("started_servers")

DEAF = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: None)  # as one that comes just before the read is
print("up", flush=True)
sys.stdin.read()
"""


def test_a_server_that_no_signal_reaches_ends_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(ProgramOptions(command=("x.py",), folder=tmp_path), ["x.py"], 1)
    monkeypatch.setattr(servers, "_command", [sys.executable, "-c", DEAF])

    def begin_and_end() -> None:
        with servers.running():
            server = servers._free.get()
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"

    running = Thread(target=begin_and_end, daemon=True)
    running.start()
    running.join(timeout=30)
    assert not running.is_alive()


CLEANING_UP = """
import atexit, os, signal
from dpaudit.recorder.server import serve
atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
serve(1.0, print)
"""


def test_a_signal_while_a_server_ends_is_not_reported() -> None:
    command = [sys.executable, "-c", CLEANING_UP]
    ended = run(command, stdin=DEVNULL, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


POOLS = """
import sys, types
from dpaudit.recorder.server import serve
asked = []
sys.modules["torch"] = types.SimpleNamespace(
    __name__="torch", __spec__=None, set_num_threads=asked.append, get_num_threads=lambda: 3
)
serve(60.0, lambda path: len(asked) * 10 + asked[-1])
"""


def test_a_fork_has_a_pool_of_threads_of_its_own() -> None:
    """Else the first two threads that need it may end the run: one is set before, and 3 here."""
    ended = run([sys.executable, "-c", POOLS], input="a\n", capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("23\n", "")


def test_large_libraries_are_imported_before_the_runs(tmp_path: Path) -> None:
    """But for what lies beside it, whose name may be theirs."""
    (tmp_path / "scipy.py").write_text("")
    (tmp_path / "pandas").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np, scipy.stats, json\n"
        "from opacus.accountants import RDPAccountant\n"
        "from torch import nn, optim\n"
        "from .torchvision import models\n"
        "def later():\n"
        "    import pandas\n"
        "    import torchvision.models\n"
    )
    expected = {"numpy", "opacus.accountants", "torch", "torch._dynamo", "torchvision.models"}
    assert set(large_imports(script)) == expected
    script.write_text("import numpy (")
    assert not list(large_imports(script))


def test_a_world_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "world.json").write_text('{"protocol": 2, "folder": "of another name"}')
    code = "import sys, pathlib; from dpaudit.recorder.server import _begun; "
    code += "_begun(pathlib.Path(sys.argv[1]))"
    ended = run([sys.executable, "-c", code, str(tmp_path / "world.json")], timeout=120)
    assert ended.returncode == 2
    said = (tmp_path / "error.txt").read_text()
    assert said.startswith("DPA010 ")
    assert said.endswith("dpaudit and dpaudit-recorder are of different versions")
