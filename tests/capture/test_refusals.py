"""What cannot be recorded is one line, and every process of it has ended."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from dpaudit.capture.recording import CaptureFolder
from dpaudit.capture.run import Options, capture
from dpaudit.errors import RunError

from .sheets import GUESTS

SENDS_MUCH = """
import os, torch, torch.distributed as dist
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=2)
for _ in range(20):
    dist.broadcast(torch.zeros(100_000), 0)
"""

SECOND_FAILS_FIRST = """
import os, torch, torch.distributed as dist
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=2)
dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.ones(2))
if rank == 1:
    raise ValueError("no such record")
dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.ones(2))
"""


def refused(
    command: list[str],
    out: Path,
    options: Options = Options(seconds=60),  # noqa: B008
    kept: bool = False,
) -> str:
    """The line that a command is refused with; nothing of it is left running.

    Args:
        kept: whether it has sent something, which is kept; otherwise its folder is empty.
    """
    with pytest.raises(RunError) as error:
        capture(command, out, options)
    assert bool(list(out.glob("*"))) == kept
    if kept:
        said = f"; what was recorded is kept: {len(CaptureFolder(out).events)} messages in {out}"
        assert str(error.value).endswith(said)
    assert _running(str(out.resolve() / "raw")) == []
    assert "\n" not in str(error.value)
    return str(error.value)


def _running(mark: str) -> list[str]:
    """Processes whose environment has a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


def test_a_command_that_does_not_start(tmp_path: Path) -> None:
    assert refused(["no-such-program"], tmp_path) == (
        "no-such-program: cannot be started: No such file or directory"
    )


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    began = time.monotonic()
    command = [sys.executable, "-c", f"{code}; time.sleep(60)"]
    line = refused(command, tmp_path, Options(seconds=1))
    assert "still running after 1 seconds, and was ended" in line
    assert time.monotonic() - began < 30


def test_an_error_of_the_program_is_shown_with_its_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "print('as it was')\nraise ValueError('no such file: data.npz')"
    line = refused([sys.executable, "-c", code], tmp_path)
    assert line.endswith("ended with exit code 1: ValueError: no such file: data.npz")
    shown = capfd.readouterr()
    assert shown.out == "as it was\n"
    assert shown.err.startswith("Traceback")
    assert refused(["false"], tmp_path).endswith("ended with exit code 1; its own output says why")
    line = refused(["sh", "-c", "kill -9 $$"], tmp_path)
    assert line.endswith("was ended by signal 9; its own output says why")


@pytest.mark.slow
def test_the_error_of_the_process_that_failed_first_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others fail because it does, and say so."""
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    line = refused([sys.executable, "-c", SECOND_FAILS_FIRST], tmp_path / "out", kept=True)
    assert "ended with exit code 1: ValueError: no such record; what was recorded" in line


def test_a_program_that_sends_nothing(tmp_path: Path) -> None:
    assert "no message was seen" in refused(["true"], tmp_path)


def test_a_torch_that_cannot_be_hooked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "torch.py").write_text('__version__ = "2.6.0+cpu"\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "old"))
    line = refused([sys.executable, "-c", "import torch"], tmp_path / "out")
    assert "no message was seen" in line
    assert "; torch 2.6.0+cpu could not be hooked: " in line


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"holds thesis\.tex; expected a new folder"):
        capture(["true"], tmp_path)


@pytest.mark.slow
def test_more_than_may_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    options = Options(seconds=60, most_bytes=1_000_000)
    line = refused([sys.executable, "-c", SENDS_MUCH], tmp_path / "out", options, kept=True)
    assert line.startswith("the transcript is larger than 1 MB")


@pytest.mark.slow
def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
        line = refused([sys.executable, *launch, str(GUESTS / "patterns.py")], tmp_path)
    assert f"port: {port}" in line
    assert "the port is in use: end what holds it, or give another one" in line


def test_a_sitecustomize_that_was_there_before_is_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('own')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    code = "import sitecustomize, sys; print(sitecustomize.__file__, *sys.path, sep='\\n')"
    refused([sys.executable, "-c", code], tmp_path / "out")
    own, file, *path = capfd.readouterr().out.splitlines()
    assert (own, file) == ("own", str(tmp_path / "own" / "sitecustomize.py"))
    assert not any(place.endswith("inside") for place in path)
    assert os.environ["PYTHONPATH"] == str(tmp_path / "own")
