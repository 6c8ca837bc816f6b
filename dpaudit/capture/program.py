"""Somebody's program, run in one world after the other, and what each run leaves."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.world import ERROR, FAILED, SAID, World
from dpaudit.tap.run import TIMED_OUT

from .commands import refuse_missing_script, torchrun
from .gathered import all_over, first_failure, processes_in
from .kept_runs import WORLD
from .merged import Merging, noted
from .observed import Observed
from .recording import EVENTS
from .run import RAW, port_hint
from .servers import Anew, Servers

Found = TypeVar("Found")
LAST_LINES = 5  # of what a program printed before it failed
PORTS = 3  # runs that are tried while the port that was free is not any more


class Program:
    """A program and the processes that run it.

    Raises ConfigError for a command that cannot be run in worlds.
    """

    def __init__(self, config: CapturedConfig, scratch: Path, cores: int) -> None:
        self.options, self.scratch = config.program, scratch.resolve()
        self._config = config
        self._merging = Merging(config.messages) if self.options.ranks else None
        self._numbers = itertools.count()
        refuse_missing_script(self.options)
        launched = torchrun(self.options) if self.options.ranks else self.options.command[1:]
        if launched is None:
            self._runs: Servers | Anew = Anew(self.options)
        else:
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

        with ThreadPoolExecutor(self._runs.workers) as pool:
            futures = [pool.submit(one, world) for world in worlds]
            try:
                return [future.result() for future in futures]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _one(self, world: World, use: Callable[[Observed], Found]) -> Found:
        for tried in range(PORTS):
            out = self.scratch / str(next(self._numbers))
            out.mkdir(parents=True)
            path = out / WORLD
            world = world.model_copy(update={"out": out, "sites": self._config.noise.sites})
            path.write_text(world.model_dump_json())
            status = self._runs.run(path, world)
            if status == 0 or tried == PORTS - 1 or "EADDRINUSE" not in _said(out):
                break
        self._refuse_failure(status, out)
        try:
            if self._merging is not None:
                self._merging.merge(out, plain=world.tape is None)
            self._refuse_silence(out)
            return use(self.observed(out))
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def observed(self, out: Path) -> Observed:
        """The run that has left a folder."""
        return Observed(out, self._config.messages)

    def learn(self, plain: Observed) -> None:
        """The rounds of other runs are those of this one, which was played before."""
        if self._merging is not None:
            self._merging.learn(plain.path)

    @property
    def name(self) -> str:
        return " ".join(self.options.command)

    def _refuse_failure(self, status: int | None, out: Path) -> None:
        if status is None:
            raise RunError("DPA058", f"{self.name}: the process that runs it has ended")
        if status == TIMED_OUT:
            raise RunError(
                "DPA058",
                f"{self.name}: not done after {self.options.seconds:g} s (program.seconds)",
            )
        if (out / ERROR).exists():
            raise RunError("DPA058", f"{self.name}: {(out / ERROR).read_text()}")
        if refused := noted(out):
            raise RunError("DPA058", f"{self.name}: {refused}")
        if status != 0 and not ((out / RAW).exists() and all_over(processes_in(out / RAW))):
            said = _said(out)
            ended = f"{self.name}: ended with status {status}{port_hint(said)}"
            if (out / RAW).exists() and (first := first_failure(processes_in(out / RAW))):
                raise RunError("DPA058", f"{ended}: {first}")
            last = said.strip().splitlines()[-LAST_LINES:]
            raise RunError("DPA058", "\n".join([f"{ended}; it said last:", *last]))

    def _refuse_silence(self, out: Path) -> None:
        events = out / EVENTS
        if events.exists() and events.stat().st_size:
            return
        expected = (
            "a program that sends by torch.distributed"
            if self.options.ranks
            else "tap.send(source, destinations, name, value) for each"
        )
        raise RunError("DPA059", f"{self.name}: no message seen; expected {expected}")


def _said(out: Path) -> str:
    """What a run printed; of one that failed, its error, and not that of those who missed it."""
    path = out / FAILED if (out / FAILED).exists() else out / SAID
    return path.read_text(errors="replace")
