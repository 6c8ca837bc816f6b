"""A torch.distributed program in many worlds: its ranks are forks of a process that has torch.

    python -P -m dpaudit.capture.warm SECONDS RANKS SCRIPT [ARGUMENTS]

Reads the path of a World from each line of stdin, and answers each with a line: the exit status of
that run, as ``dpaudit.tap.run``. A run is over when its ranks have ended, when one has failed, or
when all that the world asks for is sent.
"""

import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch.distributed as _imported  # noqa: F401  once, before all forks

from dpaudit.files.world import World
from dpaudit.tap import rank as _played  # noqa: F401
from dpaudit.tap.run import all_sent, begun, leave, serve, status_of

from .imports import large_imports
from .inside import draws, loaders, messages  # noqa: F401
from .inside.start import OPTIONS, start
from .run import RAW

POLL = 2e-3  # seconds


def main() -> int:
    seconds, ranks, script = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    arguments = sys.argv[4:]
    for module in large_imports(Path(script)):
        with suppress(Exception):  # which is for the script to meet
            importlib.import_module(module)

    def run(path: Path) -> int:
        world = begun(path)
        (world.out / RAW).mkdir()
        told = {**json.loads(os.environ[OPTIONS]), "folder": str(world.out / RAW)}
        os.environ[OPTIONS] = json.dumps(told)
        port = str(_free_port())
        each = [_of_rank(rank, ranks, port) for rank in range(ranks)]
        children = {_forked(one, script, arguments, world) for one in each}
        return _first_status(children, lambda: all_sent(world))

    return serve(seconds, run)


def _of_rank(rank: int, ranks: int, port: str) -> dict[str, str]:
    """What torchrun tells a process."""
    of_group = {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": ranks}
    of_process = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    told = {name: str(value) for name, value in {**of_group, **of_process}.items()}
    return {**told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}


def _forked(environment: Mapping[str, str], script: str, arguments: list[str], world: World) -> int:
    """The process of one rank."""
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        start()
        leave(status_of(script, arguments, world.out))
    return child


def _first_status(children: set[int], is_over: Callable[[], bool]) -> int:
    """0 when all have ended well or the run is over; else the status of the first that failed."""
    left = set(children)
    status = 0
    while left and status == 0 and not is_over():
        pid, ended = os.waitpid(-1, os.WNOHANG)
        left.discard(pid)
        status = os.waitstatus_to_exitcode(ended) if pid else 0
        if not pid:
            time.sleep(POLL)
    over = is_over()
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return 0 if over else abs(status)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
