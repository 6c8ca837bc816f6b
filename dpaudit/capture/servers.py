"""The processes that run a program: servers that fork it, or the command itself, started anew."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

from dpaudit.errors import RunError
from dpaudit.files.captured_file import ProgramOptions
from dpaudit.files.documents import reason
from dpaudit.files.world import RANKS, SAID, WORLD, World
from dpaudit.inputs import recorder
from dpaudit.tap.run import TIMED_OUT, all_sent

from .ended import guarded
from .inside.start import OPTIONS
from .run import INSIDE, MOST_BYTES, RAW

POLL = 5e-3  # seconds


class Servers:
    """Processes that have imported the libraries, and fork the program for each world.

    Args:
        script: with its arguments.
        cores: by which it is bounded how many work side by side.
    """

    def __init__(self, options: ProgramOptions, script: Sequence[str], cores: int) -> None:
        self._options, ranks = options, options.ranks
        self.workers = max(1, 2 * cores // ranks) if ranks else cores
        module = "dpaudit.capture.warm" if ranks else "dpaudit.tap.run"
        seconds = str(options.seconds)
        self._command = [sys.executable, "-P", "-m", module, seconds]
        self._command += [*([str(ranks)] if ranks else []), *script]
        self._free: Queue[subprocess.Popen[str]] = Queue()

    @contextmanager
    def running(self) -> Iterator[None]:
        servers = [self._server() for _ in range(self.workers)]
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

    def _server(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command,
            cwd=self._options.folder,
            env=_environment(self._options) if self._options.ranks else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


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
        environment = {**_environment(self._options, world.out), WORLD: str(path)}
        before = os.environ.get("PYTHONPATH")
        hooks = [str(INSIDE.resolve()), *([before] if before else [])]
        environment["PYTHONPATH"] = os.pathsep.join(hooks)
        (world.out / RAW).mkdir()
        with guarded(f"{OPTIONS}={environment[OPTIONS]}") as guard:
            started = self._started(environment, world.out / SAID)
            guard.has(started)
            return self._status(started, world)

    def _started(self, environment: Mapping[str, str], said: Path) -> "subprocess.Popen[bytes]":
        """The command in a session of its own, with its output in a file."""
        recorder.note_unseen(self._options.command, environment)
        with open(said, "wb") as output:
            try:
                return subprocess.Popen(
                    self._options.command,
                    cwd=self._options.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                name = self._options.command[0]
                raise RunError("DPA057", f"{name}: cannot be started: {reason(error)}") from None

    def _status(self, started: "subprocess.Popen[bytes]", world: World) -> int:
        deadline = time.monotonic() + self._options.seconds
        while time.monotonic() < deadline:
            if all_sent(world):
                return 0
            if (status := started.poll()) is not None:
                return status
            time.sleep(POLL)
        return TIMED_OUT


def _environment(options: ProgramOptions, out: Path | None = None) -> dict[str, str]:
    """What the hooks of a world are told, beside what is there."""
    told = {
        "folder": None if out is None else str(out / RAW),
        "origin": str(options.folder),
        "most_bytes": MOST_BYTES,
        "cpu": options.cpu,
        "transport": None,
        "world": True,
    }
    return {**os.environ, OPTIONS: json.dumps(told), RANKS: "1"}
