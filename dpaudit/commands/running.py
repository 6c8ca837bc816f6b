"""What is running and how long is left: on a terminal, in a notebook, in a log."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit.progress import OnProgress, unreported
from dpaudit.text import duration, one_line

from .terminal import complain, stderr

if TYPE_CHECKING:
    from dpaudit.pipeline.processes import Waiting

EVERY = 30.0  # seconds between lines where there is no terminal
EVERY_IN_A_NOTEBOOK = 0.5


def progress_bars(quiet: bool) -> AbstractContextManager[OnProgress]:
    """Bars with the time left on a terminal; elsewhere a line every half a minute."""
    if quiet:
        return nullcontext(unreported)
    return _bars() if sys.stderr.isatty() else _lines(EVERY)


@contextmanager
def _bars() -> Iterator[OnProgress]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    columns = (
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True, expand=True) as progress:
        bars: dict[str, TaskID] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(one_line(what), total=total)
            progress.update(bars[what], completed=done, visible=done < total)

        yield on_progress


class Tally:
    """How far everything that has begun is, by the clock that it is given."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._jobs: dict[str, tuple[float, int, int, int]] = {}  # first report, then; done; in all

    def __call__(self, what: str, done: int, total: int) -> None:
        first = self._jobs.get(what, (self._clock(), done, 0, 0))
        self._jobs[what] = (first[0], first[1], done, total)

    def line(self) -> str:
        """What is not done yet, and how long it takes at its pace so far."""
        running = [self._of(what) for what, job in list(self._jobs.items()) if job[2] < job[3]]
        what = "; ".join(running) or "preparing what comes next"
        return f"after {duration(self._clock() - self._began)}: {what}"

    def _of(self, what: str) -> str:
        first, then, done, total = self._jobs[what]
        took = self._clock() - first
        left = duration(took * (total - done) / (done - then)) if done > then else "an unknown time"
        return f"{what}, {done} of {total}, {left} left"


@contextmanager
def _lines(every: float) -> Iterator[OnProgress]:
    tally, over = Tally(), threading.Event()

    def report() -> None:
        while not over.wait(every):
            complain(tally.line())

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield tally
    finally:
        over.set()
        reporter.join()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return bool(stderr.is_jupyter)


@contextmanager
def notebook_progress(clock: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """What is running and how long is left, below the cell; at the end, how long it took."""
    from IPython.display import display

    tally = Tally(clock)
    place = display(_line("beginning"), raw=True, display_id=True)
    said = clock()

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal said
        tally(what, done, total)
        if clock() - said >= EVERY_IN_A_NOTEBOOK:
            said = clock()
            place.update(_line(tally.line()), raw=True)

    yield on_progress
    place.update(_line(f"{tally.line().partition(':')[0]}: done"), raw=True)


def _line(text: str) -> dict[str, str]:
    """A line in both forms that a notebook may show."""
    shown = one_line(text)
    return {"text/plain": shown, "text/html": f"<code>{escape(shown)}</code>"}


def passing_on(on_progress: OnProgress) -> "Waiting":
    """What audits in processes of their own leave in progress.json, reported here."""

    def waiting(running: Mapping[str, Path]) -> None:
        for name, file in running.items():
            try:
                progress = json.loads(file.read_text("utf-8"))
            except (OSError, ValueError):
                continue  # not begun
            for what, (done, total) in progress.items():
                on_progress(f"{name}: {what}", done, total)

    return waiting
