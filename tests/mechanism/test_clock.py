"""The clock by which calls of a function are timed, on a machine that does other work."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dpaudit.recorder.clock
from dpaudit.recorder.clock import WAITED, working_seconds

BUSY = "while True: pass"
TIMED = """
import json, time
from clock import working_seconds
wall, working, own = time.perf_counter(), working_seconds(), time.thread_time()
while time.thread_time() - own < 0.2:
    pass
print(json.dumps([time.perf_counter() - wall, working_seconds() - working]))
"""


def test_sleep_is_work() -> None:
    """A function that sleeps takes as long on an idle machine."""
    began = working_seconds()
    time.sleep(0.05)
    assert working_seconds() - began >= 0.049


@pytest.mark.skipif(not os.path.exists(WAITED), reason="the system does not count waiting")
def test_waiting_for_a_cpu_is_not_work() -> None:
    """Beside another process on one CPU, 0.2 s of work take twice as long on the wall."""
    cpu = min(os.sched_getaffinity(0))

    def alone() -> None:
        os.sched_setaffinity(0, {cpu})

    other = subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=alone)
    try:
        timed, place = [sys.executable, "-c", TIMED], Path(dpaudit.recorder.clock.__file__).parent
        said = subprocess.run(timed, cwd=place, preexec_fn=alone, capture_output=True, check=True)
    finally:
        other.kill()
        other.wait()
    wall, working = json.loads(said.stdout)
    assert working >= 0.199
    assert working - 0.2 < (wall - 0.2) / 2
