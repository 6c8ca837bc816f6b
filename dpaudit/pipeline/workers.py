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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from traceback import format_exception_only
from types import ModuleType
from typing import Any, TypeVar

import torch

from dpaudit.errors import RunError
from dpaudit.lifeline import end_with
from dpaudit.progress import OnProgress

Job = TypeVar("Job")
Work = Callable[[Job, OnProgress], None]

_POLL_SECONDS = 0.1

_work: Any = None
_progress: Any = None
_failure: BaseException | None = None


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
    if min(workers, len(jobs)) <= 1:
        with one_thread():
            work = prepare(*arguments)
            for job in jobs:
                work(job, on_progress)
    else:
        _in_processes(prepare, arguments, jobs, min(workers, len(jobs)), on_progress)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread meanwhile; the process is the caller's, and so is its number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _in_processes(
    prepare: Callable[..., Work[Job]],
    arguments: tuple[Any, ...],
    jobs: Sequence[Job],
    workers: int,
    on_progress: OnProgress,
) -> None:
    context = multiprocessing.get_context("spawn")
    with importing_only_what_is_sent():
        reports = context.Queue()
        start = (os.getpid(), prepare, arguments, reports)
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
            "a worker process was killed, perhaps for lack of memory, or was left by os._exit in a "
            "plug-in; what was done is kept: go on with --resume, and with --workers 1 if memory "
            "is short"
        ) from None
    finally:
        _stop(pool)


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
    parent: int, prepare: Callable[..., Any], arguments: tuple[Any, ...], reports: Any
) -> None:
    global _work, _progress, _failure
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the pool
    torch.set_num_threads(1)

    def report(what: str, done: int, total: int) -> None:
        reports.put((what, done, total))

    try:
        _work, _progress = prepare(*arguments), report
    except BaseException as failure:  # told with the first job: a pool hides what its start raises
        _failure = failure


def _do(job: Any) -> None:
    try:
        if _failure is not None:
            raise _failure
        _work(job, _progress)
    except BaseException as error:
        if not _travels(error):
            said = " ".join(format_exception_only(error)).strip()
            raise RuntimeError(said).with_traceback(error.__traceback__) from None
        raise


def _travels(error: BaseException) -> bool:
    """Whether the caller's process can be told this error; else the pool would break for it."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        return False
