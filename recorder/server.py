"""A program in many worlds, each in forks of a process that has imported its libraries.

    python -m dpaudit_recorder.server SECONDS RANKS SCRIPT [ARGUMENTS]

Reads the path of a world from each line of stdin, and answers each with a line: the exit status of
that run, negative where a signal ended it. RANKS is 0 for a simulation in one process, whose forks
are made at its first call of the tap if that is the same. A run of several ranks is over when all
have ended, when one has failed, or when all that the world asks for is sent. What a run prints goes
to said.txt in the world's folder.
"""

from __future__ import annotations

import ast
import atexit
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import RecorderError
from .forks import adopt, children, ended, exit_code
from .log import Log
from .player import ERROR, FAILED, PROCESS, RAW, REFUSED, SAID, WORLD, Player, World
from .start import OPTIONS, begun, call_first, know_encoded, seed_libraries, start, watch_draws
from .warm import WarmProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLL = 2e-3  # seconds
LARGE = ("numpy", "opacus", "pandas", "scipy", "sklearn", "torch", "torchvision")  # slow to import


def main() -> int:
    seconds, ranks, script, *arguments = sys.argv[1:]
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # the script's folder takes this place
    for module in large_imports(Path(script)):
        with suppress(Exception):  # the script meets the same error itself
            importlib.import_module(module)
    if "torch" in sys.modules:
        with suppress(ImportError):  # once, before all forks
            importlib.import_module(f"{__package__}.transports.torch_distributed")
            importlib.import_module(f"{__package__}.draws.loaders")

    if int(ranks):
        return serve(
            float(seconds),
            lambda path: _status_of_ranks(int(ranks), script, arguments, _begun(path)),
        )

    def simulated(path: Path) -> int:
        world = _begun(path)
        seed_libraries(world.seed)
        know_encoded()
        log, player = _play(path)
        if not world.tapes:
            watch_draws(log, player)
        return _status_of(script, arguments)

    def waiting(path: Path, wait: Callable[[], Path]) -> None:
        seed_libraries(_begun(path).seed)
        know_encoded()
        call_first(lambda: _play(wait()))
        _leave(_status_of(script, arguments))

    warm = WarmProgram(waiting, float(seconds))
    try:
        return serve(float(seconds), simulated, warm.status)
    finally:
        warm.end()


def serve(
    seconds: float,
    run: Callable[[Path], int],
    warm: Callable[[Path], int | None] = lambda path: None,
) -> int:
    """Answer each path on stdin with the status of a fork that runs it and leaves.

    Args:
        warm: the status of a run that went on from where the program waits; None: there is none.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # runs are side by side; no thread outlives a fork
    os.register_at_fork(after_in_child=_own_thread_pool)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    adopt()
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        status = warm(path)
        if status is None:
            others, child = children(), os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.setpgid(0, 0)
                _leave(run(path))
            status = ended(child, seconds, others)
        print(status, flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # libraries' clean-up prints what is raised in it
    return 0


def _own_thread_pool() -> None:
    """Replace torch's pool of threads, which a fork has lost, before several threads do so at once.

    Those of autograd did, where ``torch.compile`` starts them, and ended the process now and then.
    """
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):  # or it is being imported
        torch.set_num_threads(torch.get_num_threads())


def _begun(path: Path) -> World:
    """The world of a path, to which this process's output goes from now on."""
    try:
        world = World(str(path))
    except RecorderError as error:  # another version may name its folder differently
        path.with_name(ERROR).write_text(error.coded, encoding="utf-8")
        os._exit(REFUSED)
    with open(os.path.join(world.out, SAID), "a") as said, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.environ.update({WORLD: str(path), PROCESS: str(os.getpid())})
    return world


def _play(path: Path) -> tuple[Log, Player | None]:
    """Play a world from here on, in a simulation."""
    log = Log(os.path.join(_begun(path).out, RAW), sys.maxsize)
    return log, begun(log, True)


def _status_of(script: str, arguments: list[str]) -> int:
    """The exit status of a program, run as Python would."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    except RecorderError as error:
        Path(World(os.environ[WORLD]).out, ERROR).write_text(error.coded, encoding="utf-8")
        return 2
    except BaseException:
        traceback.print_exc()
        failed = os.path.join(World(os.environ[WORLD]).out, FAILED)
        with suppress(FileExistsError), open(failed, "x") as file:
            file.write(traceback.format_exc())
        return 1
    return 0


def _leave(status: int) -> None:
    """End without the clean-up of the process that this one is a copy of."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _status_of_ranks(ranks: int, script: str, arguments: list[str], world: World) -> int:
    """0 when all have ended well or the run is over; else the status of the first that failed."""
    options = {**json.loads(os.environ[OPTIONS]), "folder": os.path.join(world.out, RAW)}
    os.environ[OPTIONS] = json.dumps(options)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    left, status = set(), 0
    for rank in range(ranks):
        child = os.fork()
        left.add(child)
        if child == 0:
            os.environ.update(_as_torchrun(rank, ranks, port))
            start()
            _leave(_status_of(script, arguments))
    while left and status == 0 and not world.is_over:
        pid, how = os.waitpid(-1, os.WNOHANG)
        left.discard(pid)
        status = exit_code(how) if pid else 0
        if not pid:
            time.sleep(POLL)
    status = 0 if world.is_over else abs(status)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return status


def _as_torchrun(rank: int, ranks: int, port: str) -> dict[str, str]:
    """The variables that torchrun would set in the environment of a process."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    numbers.update(WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks, ROLE_WORLD_SIZE=ranks)
    variables = {name: str(n) for name, n in {**numbers, "GROUP_WORLD_SIZE": 1}.items()}
    return {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}


def large_imports(script: Path, seen: frozenset[Path] = frozenset()) -> Iterator[str]:
    """What a script, and what lies beside it, imports that takes seconds.

    Every rank of every world would spend them.
    """
    if not script.is_file() or script in seen:
        return
    text = script.read_text(errors="replace")
    beside = {path.stem for path in script.parent.iterdir()}
    if "optim" in text and "torch" in text:  # torch imports it in the first step of an optimizer
        yield "torch._dynamo"
    try:
        parts = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return
    for part in parts:
        named = [alias.name for alias in part.names] if isinstance(part, ast.Import) else []
        if isinstance(part, ast.ImportFrom) and part.module and not part.level:
            named = [part.module]
        for name in named:
            package = name.partition(".")[0]
            if package in beside:
                yield from large_imports(script.parent / f"{package}.py", seen | {script})
            elif package in LARGE:
                yield name


if __name__ == "__main__":
    sys.exit(main())
