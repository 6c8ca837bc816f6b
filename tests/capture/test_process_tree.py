"""A program that is started anew for every run ends with who started it."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.program import Anew, Program
from dpaudit.files.captured_file import CapturedConfig, ProgramOptions
from dpaudit.files.world import World
from tests.material.ended import ended_by
from tests.some_fast import fast_if

SLEEPS = (
    "echo $$ > shell; sleep 600 & echo $! > sleeper.new; mv sleeper.new sleeper; wait"  # a shell
)


def call(here: Path) -> None:
    """Run the program, as a process that is ended meanwhile."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    (here / "world" / "raw").mkdir(parents=True)
    anew = Anew(ProgramOptions(command=("sh", "-c", SLEEPS), folder=here))
    with anew.running():
        anew.run(here / "world.json", World(out=here / "world"))


@pytest.mark.parametrize("by", fast_if(signal.SIGKILL.__eq__, [signal.SIGTERM, signal.SIGKILL]))
def test_all_that_was_started_ends_with_its_caller(tmp_path: Path, by: int) -> None:
    caller = get_context("fork").Process(target=call, args=(tmp_path,))  # torch is imported
    caller.start()
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "sleeper").exists():
            assert time.monotonic() < until
            assert caller.is_alive()
            time.sleep(0.05)
    finally:
        assert caller.pid is not None
        os.kill(caller.pid, by)
        caller.join()
    pids = [(tmp_path / name).read_text().strip() for name in ("shell", "sleeper")]
    try:
        for pid in pids:
            ended_by(pid, time.monotonic() + 10)
    finally:
        for pid in pids:
            _end(int(pid))


SLOW = """
import time
open(f"{__file__}.up", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("ranks", [None, 2])
def test_an_interruption_does_not_wait_for_a_run(tmp_path: Path, ranks: int | None) -> None:
    """As Ctrl-C does: a run of a framework takes minutes. By itself this one would take ten."""
    (tmp_path / "slow.py").write_text(SLOW)
    program = {"command": ("python", "slow.py"), "folder": tmp_path, "ranks": ranks, "seconds": 600}
    config = CapturedConfig.model_validate({"program": program})
    caller = threading.main_thread().ident
    assert caller is not None

    def interrupt() -> None:
        while not (tmp_path / "slow.py.up").exists():
            time.sleep(0.05)
        signal.pthread_kill(caller, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()
    running = Program(config, tmp_path / "scratch", cores=1)
    with pytest.raises(KeyboardInterrupt), running.running():
        running.each([World(out=tmp_path)], lambda run: None)
    assert time.monotonic() - began < 120


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


LEAVES = """
import os, subprocess, sys
from dpaudit import tap

def leave(name):
    sleeper = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    with open(f"{__file__}.{os.getpid()}{name}", "w") as file:
        file.write(str(sleeper.pid))

"warm" in sys.argv and leave("before")
batch = tap.batch(int(os.environ.get("RANK", 0)), [[1.0]])
leave("after")
tap.send(0, 1, "x", 1.0)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands over orphans")
@pytest.mark.parametrize("how", ["simulation", "warm", "ranks"])
def test_what_a_run_leaves_behind_ends_with_it(tmp_path: Path, how: str) -> None:
    """Daemons in sessions of their own, without the environment; a warm program starts two."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    program: dict[str, Any] = {"command": ("python", "leaves.py", how), "folder": tmp_path}
    if how == "ranks":
        launched = ("torchrun", "--nproc-per-node", "2", "leaves.py")
        program.update(command=launched, ranks=2)
    config = CapturedConfig.model_validate({"program": program})
    world = World(out=tmp_path)
    with Program(config, tmp_path / "scratch", cores=1).running() as running:
        running.each([world, world, world], lambda run: None)
        pids = [path.read_text() for path in tmp_path.glob("leaves.py.*")]
        assert len(pids) == {"simulation": 3, "warm": 7, "ranks": 6}[how]
        for pid in pids:
            assert not Path(f"/proc/{pid}").exists()
