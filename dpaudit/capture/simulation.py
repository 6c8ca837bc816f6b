"""A program that loops over its agents in one Python process, run in one world after the other."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import TypeVar

from dpaudit.errors import ConfigError, RunError
from dpaudit.files.captured_file import ProgramOptions
from dpaudit.files.world import World
from dpaudit.tap.run import ERROR, SAID, TIMED_OUT

from .observed import Observed
from .recording import EVENTS

Found = TypeVar("Found")
LAST_LINES = 5  # of what a program printed before it failed


class Simulation:
    """Servers that fork the program, as many as may work side by side.

    Raises ConfigError for a command that is no Python script.
    """

    def __init__(self, options: ProgramOptions, scratch: Path, workers: int) -> None:
        self.options, self.folder, self.scratch = options, options.folder, scratch.resolve()
        self._free: Queue[subprocess.Popen[str]] = Queue()
        self._script = _script(options)
        self.script = self.folder / self._script[0]
        self._workers = workers
        self._made = 0

    @contextmanager
    def running(self) -> Iterator["Simulation"]:
        """All processes end with the block."""
        servers = [self._server() for _ in range(self._workers)]
        for server in servers:
            self._free.put(server)
        try:
            yield self
        finally:
            for server in servers:
                server.kill()
                server.wait()
            shutil.rmtree(self.scratch, ignore_errors=True)

    def each(
        self,
        worlds: Sequence[World],
        use: Callable[[Observed], Found],
        on_done: Callable[[], None] = lambda: None,
    ) -> list[Found]:
        """What ``use`` makes of each world's run, in their order; what a run leaves is removed.

        ``World.out`` is chosen here. Raises RunError for the first run that fails.
        """

        def one(world: World) -> Found:
            found = self._one(world, use)
            on_done()
            return found

        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(one, worlds))

    def _one(self, world: World, use: Callable[[Observed], Found]) -> Found:
        server = self._free.get()
        try:
            self._made += 1
            out = self.scratch / f"{id(server)}-{self._made}"
            out.mkdir(parents=True)
            path = out / "world.json"
            path.write_text(world.model_copy(update={"out": out}).model_dump_json())
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(f"{path}\n")
            server.stdin.flush()
            answer = server.stdout.readline()
        finally:
            self._free.put(server)
        self._refuse_failure(answer, out)
        try:
            return use(Observed(out))
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def _refuse_failure(self, answer: str, out: Path) -> None:
        name = " ".join(self.options.command)
        if not answer:
            raise RunError(f"{name}: the process that runs it has ended")
        status = int(answer)
        if status == TIMED_OUT:
            raise RunError(f"{name}: not done after {self.options.seconds:g} s (program.seconds)")
        if (out / ERROR).exists():
            raise RunError(f"{name}: {(out / ERROR).read_text()}")
        if status != 0:
            said = (out / SAID).read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
            raise RunError("\n".join([f"{name}: ended with status {status}; it said last:", *said]))
        if not (out / EVENTS).exists():
            raise RunError(
                f"{name}: no message seen; expected tap.send(source, destinations, name, value) "
                "for each"
            )

    def _server(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-P", "-m", "dpaudit.tap.run", str(self.options.seconds)]
        return subprocess.Popen(
            [*command, *self._script],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def _script(options: ProgramOptions) -> list[str]:
    """A script and its arguments."""
    program, *rest = options.command
    if not Path(program).name.startswith("python") or not rest or not rest[0].endswith(".py"):
        raise ConfigError(
            f"program.command: {' '.join(options.command)}: expected python SCRIPT.py ... for a "
            "simulation in one process; a torch.distributed program needs program.ranks"
        )
    if not (script := options.folder / rest[0]).is_file():
        raise ConfigError(f"program.command: {script}: no such file")
    return rest
