"""Independent jobs in processes of one thread each, with progress, in an order that never matters.

One thread a job makes results independent of how busy the machine is, and small operators run
faster so; the cores are used by running jobs side by side.
"""

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait as wait_for
from multiprocessing.reduction import ForkingPickler
from traceback import format_exception_only
from types import ModuleType, TracebackType
from typing import Any, TypeVar

import torch

from dpaudit.errors import RunError
from dpaudit.inputs import recorder
from dpaudit.progress import OnProgress
from dpaudit.text import one_line

Job = TypeVar("Job")
Work = Callable[[Job, OnProgress], None]

FORKS = "forkserver" in multiprocessing.get_all_start_methods()
SOCKET = 107  # bytes of the path of a socket at most; that of a server of forks is in the folder
LISTENER = "/pymp-abcdefgh/listener-abcdefgh"  # for temporary files, under a name like this

SEEN = 0.5  # seconds of reports that are believed
_POLL_SECONDS = 0.1
_USED_BY_ALL = ["dpaudit.pipeline.run"]  # imported once for all worker processes

_work: Any = None
_progress: Any = None
_failure: BaseException | None = None
_origin: TracebackType | None = None  # of the failure, which a pool takes from it with its report


def run_jobs(
    prepare: Callable[..., Work[Job]],
    arguments: tuple[Any, ...],
    jobs: Sequence[Job],
    workers: int,
    on_progress: OnProgress,
    alone: float = 0.0,
) -> None:
    """Call ``prepare(*arguments)`` once in each process, and what it returns for each job.

    Args:
        prepare: importable, so that a new process can call it; returns the function that does a
            job. With one worker everything happens in this process.
        arguments: picklable.
        jobs: picklable; each leaves its result on disk.
        workers: processes at most.
        on_progress: called in this process.
        alone: seconds that no process is worth. Jobs are begun in this one, and what is not done
            is handed over as soon as all of it is seen to take longer.
    """
    workers = min(workers, len(jobs))
    if workers <= 1 or alone:
        watched = _Watch(on_progress, alone) if workers > 1 else on_progress
        with one_thread(), suppress(Enough):
            work = prepare(*arguments)
            for job in jobs:
                work(job, watched)
            return
    begin()
    context = multiprocessing.get_context("forkserver" if _can_fork() else "spawn")
    with importing_only_what_is_sent():
        reports = context.Queue()
        start = (dict(os.environ), _Sent((prepare, arguments)), reports)
        pool = ProcessPoolExecutor(workers, context, _start, start)
    try:
        with importing_only_what_is_sent():
            pending = {pool.submit(_do, job) for job in jobs}  # which starts the processes
        while pending:
            done, pending = wait(pending, timeout=0, return_when=FIRST_EXCEPTION)
            for finished in done:
                finished.result()
            _drain(reports, on_progress)
    except BrokenProcessPool:
        raise RunError(
            "DPA026",
            "a worker process was killed, perhaps for lack of memory, or was left by os._exit in a "
            "plug-in; what was done is kept: go on with --resume, and with --workers 1 if memory "
            "is short",
        ) from None
    finally:
        _stop(pool)


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


def begin() -> None:
    """Start the process whose forks are the workers: it imports what they use, beside the caller.

    Imports take seconds in each process, and an audit has two pools of them.
    """
    if _can_fork():
        multiprocessing.get_context("forkserver").set_forkserver_preload(_USED_BY_ALL)
        with importing_only_what_is_sent():
            forkserver.ensure_running()


def _can_fork() -> bool:
    """Whether a server of forks can be had: its socket's path may be too long."""
    return FORKS and len(os.fsencode(tempfile.gettempdir() + LISTENER)) <= SOCKET


@contextmanager
def importing_only_what_is_sent() -> Iterator[None]:
    """What starts meanwhile has neither the caller's script nor modules of the working folder.

    A new process would run a script again that has no guard, and that would start processes; and it
    would look for the modules of its own start in the working folder first.
    """
    main, safe = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH")
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if safe is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = safe


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
    os.environ.clear()  # what is forked has that of when its server began
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
    wait_for([caller.sentinel])  # which is ready when the caller has ended, in whatever way
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
