"""What is running and how long is left: on a terminal, in a notebook, in a log."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpaudit.progress import OnProgress, unreported
from dpaudit.text import duration, one_line

from .terminal import complain, stderr

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dpaudit.pipeline.processes import Waiting

EVERY = 4.0  # seconds between lines: with the start of Python, nobody waits 5 for a word
POLL = 0.1  # seconds, until it is looked again whether a line is due
_shown = [0, 0]  # displays of progress: how many there are, and how many there were
_said = [0.0]  # when a line of time that passes was written, by whichever of them
EVERY_IN_A_NOTEBOOK = 0.5
START = "start of its audit"


def progress_bars(quiet: bool) -> AbstractContextManager[OnProgress]:
    """Bars with the time left on a terminal; elsewhere a line every few seconds."""
    if quiet:
        return nullcontext(unreported)
    moves = sys.stderr.isatty() and not stderr.is_dumb_terminal
    return _alone(_bars()) if moves else progress_lines()


def progress_lines() -> AbstractContextManager[OnProgress]:
    """Lines alone, beside a program that writes to the same terminal."""
    return _alone(_lines(EVERY))


@contextmanager
def waiting_lines() -> Iterator[None]:
    """Lines while a command imports, reads or writes, before and after all displays of progress."""
    over, began = threading.Event(), time.monotonic()
    _said[0] = began  # a display that begins soon waits no longer than this

    def line() -> str:
        now, before = _shown
        after = duration(time.monotonic() - began)
        return "" if now else f"after {after}: {'finishing' if before else 'loading'}"

    threading.Thread(target=_say_in_silence, args=(over, EVERY, line), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _say_in_silence(over: threading.Event, every: float, line: Callable[[], str]) -> None:
    """Write a line whenever none was written for so long, by this or by another that began before.

    Args:
        line: what is written; "" while it is for another to write.
    """
    began = time.monotonic()
    if began - _said[0] < 2 * every:
        began = _said[0]
    while True:
        left = max(_said[0], began) + every - time.monotonic()
        if over.wait(left if left > 0 else POLL):
            return
        if time.monotonic() >= max(_said[0], began) + every and (said := line()):
            complain(said)
            _said[0] = time.monotonic()


@contextmanager
def _alone(display: AbstractContextManager[OnProgress]) -> Iterator[OnProgress]:
    """A display of progress beside which no other line says that time passes."""
    _shown[0] += 1
    try:
        with display as on_progress:
            yield on_progress
    finally:
        _shown[:] = [_shown[0] - 1, _shown[1] + 1]


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
    from rich.spinner import Spinner
    from rich.table import Column
    from rich.text import Text

    tally, spinner = Tally(), Spinner("dots")

    class _Progress(Progress):
        def get_renderables(self) -> "Iterable[RenderableType]":
            """What is done now and what comes next, also while no bar is shown."""
            spinner.update(text=Text(one_line(tally.ahead()), no_wrap=True, overflow="ellipsis"))
            yield spinner
            yield self.make_tasks_table(self.tasks)

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
    with _Progress(
        *columns,
        console=stderr,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # a pipe stays a pipe
        expand=True,
    ) as progress:
        bars: dict[str, TaskID] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            tally(what, done, total)
            if not total:
                return
            if what not in bars:
                bars[what] = progress.add_task(one_line(what), total=total)
            progress.update(bars[what], completed=done, total=total, visible=done < total)

        yield on_progress


class _Counted(NamedTuple):
    """What has been reported of something that is running."""

    began: float
    then: int  # steps that were done when it began
    done: int
    total: int
    moved: float  # when the latest step was done

    def left(self, now: float) -> str:
        """How long is left at the pace of its steps; one that takes longer than they did counts."""
        n, ahead = self.done - self.then, self.total - self.done
        if n <= 0:
            return "an unknown time"
        pace, current = (self.moved - self.began) / n, now - self.moved
        if current <= pace:
            return duration(pace * ahead - current)
        if ahead == 1:
            return "an unknown time"
        return duration((now - self.began) / (n + 1) * (ahead - 1))


class Tally:
    """How far everything that has begun is, by the clock that it is given."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._jobs: dict[str, _Counted] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        known, now = self._jobs.get(what), self._clock()
        if known is None or not known.total:
            known = _Counted(now, done, done, total, now)
        moved = known.moved if done == known.done else now
        self._jobs[what] = known._replace(done=done, total=total, moved=moved)

    def line(self) -> str:
        """What is not done yet, how long it takes at its pace so far, and what comes next."""
        jobs, following = list(self._jobs.items()), self._following()
        running = [self._of(what) for what, job in jobs if job.done < job.total]
        running += filter(None, [self._so_far()])
        if running and following:
            running.append(f"then {following}")
        return f"{self._after()}: {'; '.join(running) or self._prepared(following)}"

    def ahead(self) -> str:
        """What comes next, beside a list of what is running."""
        following, so_far = self._following(), self._so_far()
        if so_far or any(job.done < job.total for job in list(self._jobs.values())):
            now = f": {so_far}" if so_far else ""
            return f"{self._after()}{now}{following and f', then {following}'}"
        return f"{self._after()}: {self._prepared(following)}"

    def _after(self) -> str:
        return f"after {duration(self._clock() - self._began)}"

    def _following(self) -> str:
        """What is ahead of all that has begun; "" if that is not known."""
        jobs = list(self._jobs.items())
        begun = self._begun(jobs)
        names = [what for what, _ in jobs[begun + 1 :]]
        more = f" and {len(names) - 1} more" if names[1:] else ""
        return f"{names[0]}{more}" if names else ""

    def _so_far(self) -> str:
        """What has begun last, if nobody knows how many steps it has."""
        jobs = list(self._jobs.items())
        what, job = jobs[self._begun(jobs)] if jobs else ("", None)
        return f"{what}, {job.done} so far" if job is not None and job.done > job.total else ""

    @staticmethod
    def _begun(jobs: Sequence[tuple[str, _Counted]]) -> int:
        """The place of the last one that has begun; -1: none has."""
        return max((i for i, (_, job) in enumerate(jobs) if job.total or job.done), default=-1)

    @staticmethod
    def _prepared(following: str) -> str:
        return f"preparing {following or 'what comes next'}"

    def _of(self, what: str) -> str:
        job, now = self._jobs[what], self._clock()
        if job.total == 1:  # it has no steps
            return f"{what}, for {duration(now - job.began)}"
        return f"{what}, {job.done} of {job.total}, {job.left(now)} left"


@contextmanager
def _lines(every: float) -> Iterator[OnProgress]:
    tally, over = Tally(), threading.Event()

    reporter = threading.Thread(target=_say_in_silence, args=(over, every, tally.line), daemon=True)
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
    known: dict[str, dict[str, Sequence[int]]] = {}  # running audit -> what it has reported

    def waiting(running: Mapping[str, Path]) -> None:
        for name in [name for name in known if name not in running]:  # whether it ended well or not
            for what, (_, total) in known.pop(name).items():
                on_progress(f"{name}: {what}", max(total, 1), max(total, 1))
        for name, file in running.items():
            with suppress(OSError, ValueError):  # there is none yet, or none any more
                known[name] = {START: (1, 1), **json.loads(file.read_text("utf-8"))}
            for what, (done, total) in known.setdefault(name, {START: (0, 1)}).items():
                on_progress(f"{name}: {what}", done, total)

    return waiting
