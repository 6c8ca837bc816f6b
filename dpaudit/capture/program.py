"""Somebody's program, run in one world after the other, and what each run leaves."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import TypeVar

from dpaudit.errors import ConfigError, RunError
from dpaudit.files.captured_file import CapturedConfig, ProgramOptions
from dpaudit.files.documents import reason
from dpaudit.files.world import ERROR, FAILED, RANKS, SAID, WORLD, World
from dpaudit.inputs import recorder

from .ended import guarded
from .inside.start import OPTIONS
from .process_logs import Process, all_over, first_failure, processes_in
from .run import INSIDE, MOST_BYTES, RAW, port_hint, too_large, with_hooks
from .runs import ProgramRun, RoundNumbers
from .server import TIMED_OUT

Found = TypeVar("Found")
LAST_LINES = 5  # of what a program printed before it failed
PORTS = 3  # runs that are tried while the port that was free is not any more
POLL = 5e-3  # seconds
WORLD_FILE = "world.json"  # in the folder of a run


class Program:
    """A program and the processes that run it.

    Raises ConfigError for a command that cannot be run in worlds.
    """

    def __init__(self, config: CapturedConfig, scratch: Path, cores: int) -> None:
        self.options, self.scratch = config.program, scratch.resolve()
        self._config, self._rounds = config, RoundNumbers(config)
        self._numbers = itertools.count()
        refuse_missing_script(self.options)
        launched = torchrun(self.options) if self.options.ranks else self.options.command[1:]
        self._runs: Servers | Anew = Anew(self.options)
        if launched is not None:
            self._runs = Servers(self.options, launched, cores)

    @contextmanager
    def running(self) -> Iterator["Program"]:
        """All processes end with the block."""
        shutil.rmtree(self.scratch, ignore_errors=True)  # of an audit that was killed
        try:
            with self._runs.running():
                yield self
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def each(
        self,
        worlds: Sequence[World],
        use: Callable[[ProgramRun], Found],
        on_done: Callable[[], None] = lambda: None,
    ) -> list[Found]:
        """What ``use`` makes of each world's run, in their order; what a run leaves is removed.

        ``World.out`` is chosen here. Raises RunError for the first run that fails.
        """

        def one(world: World) -> Found:
            found = self._one(world, use)
            on_done()
            return found

        with ThreadPoolExecutor(self._runs.workers) as pool:
            futures = [pool.submit(one, world) for world in worlds]
            try:
                return [future.result() for future in futures]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _one(self, world: World, use: Callable[[ProgramRun], Found]) -> Found:
        for tried in range(PORTS):
            out = self.scratch / str(next(self._numbers))
            (out / RAW).mkdir(parents=True)
            world = world.model_copy(update={"out": out, "sites": self._config.noise.sites})
            (out / WORLD_FILE).write_text(world.model_dump_json())
            status = self._runs.run(out / WORLD_FILE, world)
            if not status or tried == PORTS - 1 or "EADDRINUSE" not in _said(out):
                break
        try:
            self._refuse_failure(status, out, processes_in(out / RAW))
            return use(self.read(out, first=world.tape is None))
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def read(self, out: Path, first: bool) -> ProgramRun:
        """The run that has left a folder; ``first``: the rounds of all runs are found in it."""
        return ProgramRun(out, self._config.messages, self._rounds, first)

    def _refuse_failure(self, status: int | None, out: Path, processes: Sequence[Process]) -> None:
        """Raises RunError for a run that failed, or cannot be compared with others."""
        code, why = "DPA058", ""
        refused = [note["text"] for process in processes for note in process.of_kind("refused")]
        if status is None:
            why = "the process that runs it has ended"
        elif status == TIMED_OUT:
            why = f"not done after {self.options.seconds:g} s (program.seconds)"
        elif (out / ERROR).exists() or refused:
            why = (out / ERROR).read_text() if (out / ERROR).exists() else refused[0]
        elif status != 0 and not all_over(processes):
            said, first = _said(out), first_failure(processes)
            last = "\n".join(["; it said last:", *said.strip().splitlines()[-LAST_LINES:]])
            why = f"ended with status {status}{port_hint(said)}"
            why += last if first is None else f": {first}"
        elif any(process.of_kind("full") for process in processes):
            raise too_large(MOST_BYTES)
        elif any(process.of_kind("addressed") for process in processes):
            code, why = (
                "DPA060",
                (
                    "the program sends by ZeroMQ sockets too, which an audit does not see; dpaudit "
                    "capture records them"
                ),
            )
        elif not any(process.of_kind("sent") for process in processes):
            tapped = "tap.send(source, destinations, name, value) for each"
            expected = "a program that sends by torch.distributed" if self.options.ranks else tapped
            code, why = "DPA059", f"no message seen; expected {expected}"
        if why:
            raise RunError(code, f"{' '.join(self.options.command)}: {why}")


def _said(out: Path) -> str:
    """What a run printed; of one that failed, its error, and not that of those who missed it."""
    path = out / FAILED if (out / FAILED).exists() else out / SAID
    return path.read_text(errors="replace")


class Servers:
    """Processes that have imported the libraries, and fork the program for each world.

    Args:
        script: with its arguments.
        cores: by which it is bounded how many work side by side.
    """

    def __init__(self, options: ProgramOptions, script: Sequence[str], cores: int) -> None:
        self._options, ranks = options, options.ranks or 0
        self.workers = max(1, 2 * cores // ranks) if ranks else cores
        module = ["-P", "-m", "dpaudit.capture.server", str(options.seconds), str(ranks)]
        self._command = [sys.executable, *module, *script]
        self._free: Queue[subprocess.Popen[str]] = Queue()

    @contextmanager
    def running(self) -> Iterator[None]:
        servers = [
            subprocess.Popen(
                self._command,
                cwd=self._options.folder,
                env=_environment(self._options) if self._options.ranks else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(self.workers)
        ]
        for server in servers:
            self._free.put(server)
        try:
            yield
        finally:
            for server in servers:
                assert server.stdin is not None
                server.stdin.close()  # its end, where a signal comes just before it reads
                server.terminate()
            for server in servers:
                server.wait()

    def run(self, path: Path, world: World) -> int | None:
        """The exit status of the world's run; None if the server has ended."""
        server = self._free.get()
        try:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(f"{path}\n")
            server.stdin.flush()
            answer = server.stdout.readline()
        finally:
            self._free.put(server)
        return int(answer) if answer else None


class Anew:
    """The command itself, with the hooks in all processes that it starts.

    One at a time: programs that start their ranks themselves may name the port they meet at.
    """

    workers = 1

    def __init__(self, options: ProgramOptions) -> None:
        self._options = options

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def run(self, path: Path, world: World) -> int:
        """The exit status of the world's run."""
        environment = with_hooks({**_environment(self._options, world.out), WORLD: str(path)})
        command = self._options.command
        recorder.note_unseen(command, environment)
        with guarded(f"{OPTIONS}={environment[OPTIONS]}") as guard:
            try:
                with open(world.out / SAID, "wb") as output:
                    started = subprocess.Popen(
                        command,
                        cwd=self._options.folder,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
            except OSError as error:
                raise RunError(
                    "DPA057", f"{command[0]}: cannot be started: {reason(error)}"
                ) from None
            guard(started)
            deadline = time.monotonic() + self._options.seconds
            while time.monotonic() < deadline:
                if world.is_over:
                    return 0
                if (status := started.poll()) is not None:
                    return status
                time.sleep(POLL)
            return TIMED_OUT


def _environment(options: ProgramOptions, out: Path | None = None) -> dict[str, str]:
    """The environment of a world, with what its hooks need to know."""
    given = {
        "inside": None if out is None else str(INSIDE),  # a server starts them itself
        "folder": None if out is None else str(out / RAW),
        "origin": str(options.folder),
        "most_bytes": MOST_BYTES,
        "cpu": options.cpu,
        "transport": None,
        "world": True,
    }
    return {**os.environ, OPTIONS: json.dumps(given), RANKS: "1"}


LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
PROCESSES = ("--nproc-per-node", "--nproc_per_node")
WITH_VALUE = (*PROCESSES, "--master-port", "--master_port", "--nnodes")


def refuse_missing_script(options: ProgramOptions) -> None:
    """Raises ConfigError for a command that names no program, or a file that is not there."""
    program, *rest = options.command
    start = f"program.command: {' '.join(options.command)}"
    if not options.ranks and not (_is_python(program) and rest and rest[0].endswith(".py")):
        raise ConfigError(
            "DPA057",
            f"{start}: expected python SCRIPT.py ... for a simulation in one process; a "
            "torch.distributed program needs program.ranks",
        )
    named = next((part for part in options.command if part.endswith(".py")), None)
    if named is None and not {"-m", "--module"} & {*rest}:
        raise ConfigError(
            "DPA057", f"{start}: names no program; expected SCRIPT.py or -m MODULE in it"
        )
    if named is not None and not (script := options.folder / named).is_file():
        raise ConfigError("DPA057", f"program.command: {script}: no such file")


def torchrun(options: ProgramOptions) -> list[str] | None:
    """The script and its arguments where a command is torchrun with options that are known.

    None: it is another command, which starts its ranks by itself. Raises ConfigError where it
    starts other ranks than those of the file.
    """
    program, *rest = options.command
    if _is_python(program) and rest[:1] == ["-m"] and rest[1:2] and rest[1] in LAUNCHERS:
        rest = rest[2:]
    elif Path(program).name != "torchrun":
        return None
    ranks = "1"
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--standalone":
            continue
        if option not in WITH_VALUE or not (equals or rest):
            return None
        value = value if equals else rest.pop(0)
        if option in PROCESSES:
            ranks = value
        elif option == "--nnodes" and value != "1":
            return None
    if not rest or not rest[0].endswith(".py"):
        return None
    if ranks != str(options.ranks):
        raise ConfigError("DPA057", f"program.ranks: {options.ranks}; the command starts {ranks}")
    return rest


def _is_python(program: str) -> bool:
    return Path(program).name.startswith("python")
