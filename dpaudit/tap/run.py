"""A Python program in many worlds, each in a fork of a process that has imported the libraries.

    python -P -m dpaudit.tap.run SECONDS SCRIPT [ARGUMENTS]

Reads the path of a World from each line of stdin, and answers each with a line: the exit status of
that run, negative where a signal ended it. What a run prints goes to said.txt in the world's
folder, and what it did wrong with the tap to error.txt.
"""

import os
import random
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

from dpaudit.errors import DpauditError
from dpaudit.files.world import WORLD, World

from . import player as _imported  # noqa: F401  once, before all forks

SAID, ERROR = "said.txt", "error.txt"
TIMED_OUT = -1000  # in the place of an exit status


def main() -> int:
    seconds, script, arguments = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    torch.set_num_threads(1)  # runs are side by side; and no thread outlives a fork
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _child(Path(line.rstrip("\n")), script, arguments)
        print(_ended(child, seconds), flush=True)
    return 0


def _ended(child: int, seconds: float) -> int:
    """The status of a child, which is killed when its time is over."""
    deadline, pause = time.monotonic() + seconds, 1e-3
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TIMED_OUT
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _child(path: Path, script: str, arguments: list[str]) -> None:
    """The program, as Python would run it, and its end."""
    os.setpgid(0, 0)
    world = World.model_validate_json(path.read_text())
    with open(world.out / SAID, "w") as said, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.environ[WORLD] = str(path)
    random.seed(world.seed)
    np.random.seed(world.seed)  # noqa: NPY002  what programs use
    torch.manual_seed(world.seed)
    sys.argv, status = [script, *arguments], 0
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = _status(end)
    except DpauditError as error:
        (world.out / ERROR).write_text(str(error))
        status = 2
    except BaseException:
        traceback.print_exc()
        status = 1
    _leave(status)


def _status(end: SystemExit) -> int:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
        return 1
    return int(end.code or 0)


def _leave(status: int) -> None:
    """End without the clean-up of the process that this one is a copy of."""
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
