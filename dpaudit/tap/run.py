"""A Python program in many worlds, each in a fork of a process that has imported the libraries.

    python -P -m dpaudit.tap.run SECONDS SCRIPT [ARGUMENTS]

Reads the path of a World from each line of stdin, and answers each with a line: the exit status of
that run, negative where a signal ended it. What a run prints goes to said.txt in the world's
folder, and what it did wrong with the tap to error.txt.
"""

import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from dpaudit.errors import DpauditError
from dpaudit.files.world import DONE, ERROR, FAILED, PROCESS, SAID, WORLD, World

from . import player as _imported  # noqa: F401  once, before all forks
from .seeds import seed_all

TIMED_OUT = -1000  # in the place of an exit status


def main() -> int:
    seconds, script, arguments = float(sys.argv[1]), sys.argv[2], sys.argv[3:]

    def run(path: Path) -> int:
        world = begun(path)
        seed_all(world.seed)
        return status_of(script, arguments, world.out)

    return serve(seconds, run)


def serve(seconds: float, run: Callable[[Path], int]) -> int:
    """Answer each path on stdin with the status of a fork that runs it and leaves."""
    torch.set_num_threads(1)  # runs are side by side; and no thread outlives a fork
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setpgid(0, 0)
            leave(run(Path(line.rstrip("\n"))))
        print(_ended(child, seconds), flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # libraries' clean-up prints what is raised in it
    return 0


def _ended(child: int, seconds: float) -> int:
    """The status of a child, which is ended when its time is over, with all of its group."""
    deadline, pause = time.monotonic() + seconds, 1e-3
    try:
        while time.monotonic() < deadline:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        return TIMED_OUT
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def begun(path: Path) -> World:
    """The world of a path, to which this process's output goes from now on."""
    world = World.model_validate_json(path.read_text())
    with open(world.out / SAID, "a") as said, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.environ.update({WORLD: str(path), PROCESS: str(os.getpid())})
    return world


def all_sent(world: World) -> bool:
    """Whether each agent has sent what the world asks for, where each has a process."""
    return bool(world.last) and all((world.out / f"{DONE}{agent}").exists() for agent in world.last)


def status_of(script: str, arguments: list[str], out: Path) -> int:
    """The exit status of a program, run as Python would."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return _status(end)
    except DpauditError as error:
        (out / ERROR).write_text(str(error))
        return 2
    except BaseException:
        traceback.print_exc()
        with suppress(FileExistsError), open(out / FAILED, "x") as file:
            file.write(traceback.format_exc())
        return 1
    return 0


def _status(end: SystemExit) -> int:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
        return 1
    return int(end.code or 0)


def leave(status: int) -> None:
    """End without the clean-up of the process that this one is a copy of."""
    import atexit

    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
