"""A program that is started anew for every run ends with who started it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.material.ended import ended_by
from tests.some_fast import fast_if

CALLER = """
from pathlib import Path
from dpaudit.capture.program import Anew
from dpaudit.files.captured_file import ProgramOptions
from dpaudit.files.world import World

here = Path().resolve()
(here / "world" / "raw").mkdir(parents=True)
command = ("sh", "-c", "echo $$ > shell; sleep 600 & echo $! > sleeper.new; mv sleeper.new sleeper; wait")
anew = Anew(ProgramOptions(command=command, folder=here))
with anew.running():
    anew.run(here / "world.json", World(out=here / "world"))
"""


@pytest.mark.parametrize("by", fast_if(signal.SIGKILL.__eq__, [signal.SIGTERM, signal.SIGKILL]))
def test_all_that_was_started_ends_with_its_caller(tmp_path: Path, by: int) -> None:
    caller = subprocess.Popen([sys.executable, "-c", CALLER], cwd=tmp_path)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "sleeper").exists():
            assert time.monotonic() < until
            assert caller.poll() is None
            time.sleep(0.05)
    finally:
        caller.send_signal(by)
        caller.wait()
    pids = [(tmp_path / name).read_text().strip() for name in ("shell", "sleeper")]
    try:
        for pid in pids:
            ended_by(pid, time.monotonic() + 10)
    finally:
        for pid in pids:
            _end(int(pid))


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
