"""Somebody's program, run in one world after the other, and what each run leaves."""

import itertools
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

import numpy as np
import torch

from dpaudit.errors import ConfigError, RunError
from dpaudit.files.captured_file import CapturedConfig, ProgramOptions
from dpaudit.files.interpreter import in_environment, interpreter, with_python
from dpaudit.files.world import World
from dpaudit.inputs import recorder
from dpaudit.recorder.forks import TIMED_OUT
from dpaudit.recorder.player import ERROR, FAILED, RANKS, RAW, SAID, WORLD
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import sealed, unsealed

from .channels import routed
from .process_logs import Process, all_over, first_failure, processes_in
from .run import LOST, MOST_BYTES, coded, hooked, port_hint, status_of, too_large
from .runs import ProgramRun, RoundNumbers
from .world_files import write_world

Found = TypeVar("Found")
LAST_LINES = 5  # lines of output to quote when a program fails
PORTS = 3  # runs that are tried while the port that was free is not any more
POLL = 5e-3  # seconds
MOST_SAID = 2**16  # bytes of a text of a run that are read
SERVE = "import sys; del sys.path[0]; from dpaudit_recorder.server import main; sys.exit(main())"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
ORDERED = {"PYTHONHASHSEED": "0"}  # sets of texts have one order in all runs
KEPT = "checkpoints/worlds"  # finished runs in a run directory, for ``--resume``


class Program:
    """A program and the processes that run it.

    Raises ConfigError for a command that cannot be run in worlds.
    """

    def __init__(self, config: CapturedConfig, scratch: Path, cores: int) -> None:
        self.options, self.scratch = config.program, scratch.resolve()
        self._config, self._rounds = config, RoundNumbers(config)
        self._numbers = itertools.count()
        refuse_missing_script(self.options)
        if self.options.python is not None:
            interpreter(self.options.python, "program.python")
        launched = torchrun(self.options) if self.options.ranks else self.options.command[1:]
        self._runs: Servers | Anew = Anew(self.options)
        if launched is not None:
            self._runs = Servers(self.options, launched, cores)

    @property
    def workers(self) -> int:
        """Runs that it plays side by side."""
        return self._runs.workers

    @contextmanager
    def running(self) -> Iterator["Program"]:
        """All processes end with the block."""
        shutil.rmtree(self.scratch, ignore_errors=True)  # left by an audit that was killed
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
            for tried in range(PORTS):
                out = self.scratch / str(next(self._numbers))
                (out / RAW).mkdir(parents=True)
                world = world.model_copy(update={"out": out, "sites": self._config.noise.sites})
                status = self._runs.run(write_world(world), world)
                if not status or tried == PORTS - 1 or "EADDRINUSE" not in _said(out):
                    break
            try:
                self._refuse_failure(status, routed(processes_in(out / RAW))[0], out)
                found = use(self.read(world))
            finally:
                shutil.rmtree(out, ignore_errors=True)
            on_done()
            return found

        with ThreadPoolExecutor(self._runs.workers) as pool:
            futures = [pool.submit(one, world) for world in worlds]
            try:
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                self._runs.stop()  # else the pool waits for runs, which may take minutes
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def read(self, world: World) -> ProgramRun:
        """The run of a world, which has left a folder; the plain one has the rounds of all.

        Raises RunError where an agent has changed its process, as tasks of a pool may in any run.
        """
        run = ProgramRun(world, self._config.messages, self._rounds)
        run.refuse_agents_of_several_processes()
        return run

    def _refuse_failure(self, status: int | None, processes: Sequence[Process], out: Path) -> None:
        """Raises RunError for a run that failed, or cannot be compared with others."""
        code, why = "DPA058", ""
        refused = [note["text"] for process in processes for note in process.of_kind("refused")]
        if status is None:
            why = "the process that runs it has ended"
        elif status == TIMED_OUT:
            why = f"not done after {self.options.seconds:g} s (program.seconds)"
        elif (out / ERROR).exists() or refused:
            why = _text_of(out / ERROR) if (out / ERROR).exists() else refused[0]
            code, why = coded(why, code)
        elif status != 0 and not all_over(processes):
            said, first = _said(out), first_failure(processes)
            last = "\n".join(["; it said last:", *said.strip().splitlines()[-LAST_LINES:]])
            why = f"ended with status {status}{port_hint(said)}"
            why += last if first is None else f": {first}"
        elif any(process.of_kind("full") for process in processes):
            raise too_large(MOST_BYTES)
        elif lost := sorted((out / RAW).glob("*.lost")):
            code, why = "DPA066", f"{_text_of(lost[0])}: {LOST}"
        elif not any(process.of_kind("sent") for process in processes):
            tapped = (
                "tap.send(source, destinations, name, value) for each, or, of a program of several "
                "processes, their number as program.ranks"
            )
            expected = (
                "a program that sends by a transport of the table in docs/own-script.md"
                if self.options.ranks
                else tapped
            )
            code, why = "DPA059", f"no message seen; expected {expected}"
        if why:
            raise RunError(code, f"{' '.join(self.options.command)}: {why}")


class KeptRuns:
    """Plays worlds, but for those that an audit which was ended has played.

    Equal worlds are kept in the order in which they ended.
    """

    def __init__(self, program: Program, run: RunDirectory, on_run: Callable[[], None]) -> None:
        self.program, self._run, self._on_run = program, run, on_run
        self._lock = threading.Lock()
        self._kept: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()

    def loaded(self, worlds: Sequence[World]) -> list[ProgramRun]:
        """Raises RunError for the first run that fails."""
        found = [self._kept_run(world) for world in worlds]
        missing = [w for w, run in zip(worlds, found, strict=True) if run is None]
        played = iter(self.program.each(missing, self._keep, self._on_run))
        return [next(played) if run is None else run for run in found]

    def _kept_run(self, world: World) -> ProgramRun | None:
        nth = self._asked[name := _name(world)]
        self._asked[name] += 1
        file = f"{KEPT}/{name}-{nth}.safetensors"
        if not self._run.has(file):
            return None
        found = unsealed(self._run.read(file), f"{self._run.binding} {file}")
        if found is None:
            return None
        self._kept[name] = max(self._kept[name], nth + 1)
        out = self.program.scratch / "kept" / f"{name}-{nth}"
        for path, content in found[0].items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(content.numpy().tobytes())
        self._on_run()
        return self.program.read(world.model_copy(update={"out": out})).loaded()

    def _keep(self, run: ProgramRun) -> ProgramRun:
        name, path = _name(run.world), run.world.out
        with self._lock:
            kept = f"{KEPT}/{name}-{self._kept[name]}.safetensors"
            self._kept[name] += 1
        content = {
            str(file.relative_to(path)): torch.from_numpy(np.fromfile(file, np.uint8))
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }
        self._run.write(kept, sealed(content, "", f"{self._run.binding} {kept}"))
        return run.loaded()


def _name(world: World) -> str:
    """By all that a world changes; where its files lie, and the tape of the first run, do not."""
    changes = world.model_dump_json(exclude={"out", "tape", "sites"}) + str(world.tape is None)
    return sha256(changes.encode()).hexdigest()[:32]


def _said(out: Path) -> str:
    """What a run printed; of one that failed, its error, and not that of those who missed it."""
    return _text_of(out / FAILED if (out / FAILED).exists() else out / SAID)


def _text_of(path: Path) -> str:
    """What a run has written, which may be much: its end; of one that never began, nothing."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_SAID))
        return file.read(MOST_SAID).decode("utf-8", "replace")


class Servers:
    """Processes that have imported the libraries, and fork the program for each world.

    Args:
        script: with its arguments.
        cores: by which it is bounded how many work side by side.
    """

    def __init__(self, options: ProgramOptions, script: Sequence[str], cores: int) -> None:
        self._options, ranks = options, options.ranks or 0
        self.workers = max(1, 2 * cores // ranks) if ranks else cores
        python = sys.executable if options.python is None else str(options.python)
        self._command = [python, "-c", SERVE, str(options.seconds), str(ranks), *script]
        self._free: Queue[subprocess.Popen[str]] = Queue()
        self._all: list[subprocess.Popen[str]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        options = self._options
        hooks = hooked(None, str(options.folder), options.cpu, MOST_BYTES, world=True)
        hooks = {**in_environment(options.python, hooks), **ONE_THREAD, **ORDERED}
        environment = {**hooks, **({RANKS: "1"} if options.ranks else {})}
        self._all = [
            subprocess.Popen(
                self._command,
                cwd=options.folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(self.workers)
        ]
        for server in self._all:
            self._free.put(server)
        try:
            yield
        finally:
            for server in self._all:
                assert server.stdin is not None
                server.stdin.close()  # its end, where a signal comes just before it reads
                server.terminate()
            for server in self._all:
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

    def stop(self) -> None:
        """End what runs now; no run can follow."""
        for server in self._all:
            server.terminate()


class Anew:
    """The command itself, with the hooks in all processes that it starts.

    One at a time: programs that start their ranks themselves may name the port they meet at.
    """

    workers = 1

    def __init__(self, options: ProgramOptions) -> None:
        self._options = options
        self._is_stopped = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """End what runs now; no run can follow."""
        self._is_stopped.set()

    def run(self, path: Path, world: World) -> int:
        """The exit status of the world's run."""
        options = self._options
        command = with_python(options.python, options.command)
        hooks = hooked(world.out / RAW, str(options.folder), options.cpu, MOST_BYTES, world=True)
        hooks = in_environment(options.python, hooks)
        environment = {**hooks, **ORDERED, RANKS: "1", WORLD: str(path)}
        recorder.note_unseen(command, environment)
        with open(world.out / SAID, "wb") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            how: dict[str, Any] = {"cwd": options.folder, **streams}
            status = status_of(
                command,
                environment,
                options.seconds,
                lambda: world.is_over or self._is_stopped.is_set(),
                POLL,
                **how,
            )
        return 0 if world.is_over else TIMED_OUT if status is None else status


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
