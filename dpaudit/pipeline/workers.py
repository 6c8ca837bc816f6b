"""Independent jobs in processes of one thread each, with progress, in an order that never matters.

One thread a job makes results independent of how busy the machine is, and small operators run
faster so; the cores are used by running jobs side by side.
"""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait as wait_for
from multiprocessing.reduction import ForkingPickler
from traceback import format_exception_only
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch

from dpaudit.errors import RunError
from dpaudit.inputs import recorder
from dpaudit.progress import OnProgress
from dpaudit.text import one_line

from .fork_server import begin, can_fork, importing_only_what_is_sent

Job = TypeVar("Job")
Work = Callable[[Job, OnProgress], None]

SEEN = 0.5  # seconds of reports that are believed
_POLL_SECONDS = 0.1

_work: Any = None
_progress: Any = None
_failure: BaseException | None = None
_origin: TracebackType | None = None  # traceback of the failure; a pool removes it from the report


def run_jobs(
    prepare: Callable[..., Work[Job]],
    arguments: tuple[Any, ...],
    jobs: Sequence[Job],
    workers: int,
    on_progress: OnProgress,
) -> None:
    """Call ``prepare(*arguments)`` once in each process, and what it returns for each job.

    Args:
        prepare: importable, so that a new process can call it; returns the function that does a
            job. With one worker everything happens in this process.
        arguments: picklable.
        jobs: picklable; each leaves its result on disk.
        workers: processes at most.
        on_progress: called in this process.
    """
    with Workers(prepare, arguments, workers) as those:
        those.run(jobs, workers, on_progress)


class Workers(Generic[Job]):
    """Processes of ``run_jobs`` that do some jobs and then others; they end with the block."""

    def __init__(
        self, prepare: Callable[..., Work[Job]], arguments: tuple[Any, ...], most: int
    ) -> None:
        self._prepare, self._arguments, self._most = prepare, arguments, most
        self._pool: ProcessPoolExecutor | None = None
        self._reports: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            _stop(self._pool)

    def run(
        self, jobs: Sequence[Job], workers: int, on_progress: OnProgress, alone: float = 0.0
    ) -> None:
        """Do these jobs, at most so many at a time.

        Args:
            alone: seconds that no process is worth. Jobs are begun in this one, and what is not
                done is handed over as soon as all of it is seen to take longer.
        """
        workers = min(workers, len(jobs))
        if workers <= 1 or alone:
            watched = _Watch(on_progress, alone) if workers > 1 else on_progress
            with one_thread(), suppress(Enough):
                work = self._prepare(*self._arguments)
                for job in jobs:
                    work(job, watched)
                return
        pool = self._begun()
        waiting, pending = list(jobs), set[Future[None]]()
        at_once = workers if workers < min(self._most, len(jobs)) else len(jobs)
        try:
            while waiting or pending:
                room = at_once - len(pending)
                with importing_only_what_is_sent():  # the first ones start the processes
                    pending |= {pool.submit(_do, job) for job in waiting[:room]}
                waiting = waiting[room:]
                done, pending = wait(pending, timeout=0, return_when=FIRST_EXCEPTION)
                for finished in done:
                    finished.result()
                _drain(self._reports, on_progress)
        except BrokenProcessPool:
            raise RunError(
                "DPA026",
                "a worker process was killed, perhaps for lack of memory, or was left by os._exit "
                "in a plug-in; what was done is kept: go on with --resume, and with --workers 1 if "
                "memory is short",
            ) from None

    def _begun(self) -> ProcessPoolExecutor:
        if self._pool is None:
            begin()
            context = multiprocessing.get_context("forkserver" if can_fork() else "spawn")
            with importing_only_what_is_sent():
                self._reports = context.Queue()
                start = (dict(os.environ), _Sent((self._prepare, self._arguments)), self._reports)
                self._pool = ProcessPoolExecutor(self._most, context, _start, start)
        return self._pool


class _Sent:
    """What a process is given to begin with; where that cannot be loaded, the reason.

    Such a process would end while it starts, before anything of it could say why.
    """

    def __init__(self, content: Any, failure: str | None = None) -> None:
        self._content, self._failure = content, failure

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (bytes(ForkingPickler.dumps(self._content)),)

    def open(self) -> Any:
        if self._failure is not None:
            raise RunError(
                "DPA026",
                f"a worker process cannot load what it is given: {self._failure}",
                "do all in one process: --workers 1, or cores=1 in Python",
            )
        return self._content


def _received(packed: bytes) -> _Sent:
    try:
        return _Sent(pickle.loads(packed))
    except Exception as error:
        return _Sent(None, one_line(f"{type(error).__name__}: {error}"))


class Enough(BaseException):
    """Raised from a report of progress: no error that anything within handles."""


class _Watch:
    """Reports progress until it shows that all will take more than so many seconds."""

    def __init__(self, on_progress: OnProgress, most: float) -> None:
        self._report, self._most, self._began = on_progress, most, time.perf_counter()
        self._first = ("", 0, 0.0)  # report of this job

    def __call__(self, what: str, done: int, total: int) -> None:
        self._report(what, done, total)
        name, start, began = self._first
        now, left = time.perf_counter(), 0.0
        if what != name:
            self._first = what, done, now
        elif done > start:
            left = (now - began) / (done - start) * (total - done)
        if now - self._began > SEEN and now - self._began + left > self._most:
            raise Enough


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread meanwhile; the process is the caller's, and so is its number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the processes now, whatever they are doing; at the end of all jobs they do nothing."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


def _drain(reports: Any, on_progress: OnProgress) -> None:
    try:
        report = reports.get(timeout=_POLL_SECONDS)
        while True:
            on_progress(*report)
            report = reports.get_nowait()
    except queue.Empty:
        return


def _start(
    environment: dict[str, str],
    sent: _Sent,
    reports: Any,
) -> None:
    global _work, _progress, _failure, _origin
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    os.environ.clear()  # a fork has the environment of when its server began
    os.environ.update(environment)
    recorder.follow()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the pool
    torch.set_num_threads(1)

    def report(what: str, done: int, total: int) -> None:
        reports.put((what, done, total))

    try:
        prepare, arguments = sent.open()
        _work, _progress = prepare(*arguments), report
    except (
        BaseException
    ) as failure:  # raised with the first job: a pool hides what its start raises
        _failure, _origin = failure, failure.__traceback__


def _end_with_the_caller() -> None:
    caller = multiprocessing.parent_process()
    assert caller is not None
    wait_for([caller.sentinel])  # ready when the caller has ended, however it did
    os._exit(1)


def _do(job: Any) -> None:
    try:
        if _failure is not None:
            raise _failure.with_traceback(_origin)
        _work(job, _progress)
    except BaseException as error:
        if not _travels(error):
            said = " ".join(format_exception_only(error)).strip()
            raise RuntimeError(said).with_traceback(error.__traceback__) from None
        raise


def _travels(error: BaseException) -> bool:
    """Whether the caller's process can receive this error; else the pool would break for it."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        return False
