"""Cells on a Ray cluster: every part of an audit is a task, and what it leaves comes back as bytes.

No folder is shared. What a machine that is lost was doing is done again on another one; what was
finished is kept by whoever runs the benchmark.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Literal, NamedTuple

from dpaudit.errors import ConfigError, Problem, RunError
from dpaudit.files.atomic_files import PARTIAL
from dpaudit.pipeline.processes import EndedAudit, Waiting
from dpaudit.training.locked_folder import LOCK, Folder
from dpaudit.unexpected_errors import problems_of

from .local import CellJob

Files = dict[str, bytes]  # content by path within a run directory
Parts = tuple[tuple[str, ...], ...]  # names of jobs: all that train, then all that attack
Stage = Literal["begin", "part", "finish"]
Reference = Any  # of Ray: what a task will leave

LOST = 4  # machines that one task may lose before its cell fails
CONNECT_SECONDS = 10.0
JOINING = """import ray, sys
ray.init(sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
ray.shutdown()"""
JOIN_SECONDS = 60  # that a process may take to it: joining has no time limit of its own
PROGRESS = "progress.json"
OWN = (LOCK, PROGRESS, "content")  # files that stay in the folder that they are of
_POLL_SECONDS = 0.1


class TaskResult(NamedTuple):
    """What a task leaves."""

    files: Files  # new or changed
    parts: Parts = ()  # of the first task: what is to be done
    problems: tuple[Problem, ...] = ()  # why it failed


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to."""

    abreast: int  # cells at once; parts of each run side by side
    n_gpus: int = 0  # for each task

    def __call__(self, jobs: Mapping[str, CellJob], waiting: Waiting) -> Generator[EndedAudit]:
        """Each cell as it ends."""
        pool = ThreadPoolExecutor(self.abreast)
        pending = {pool.submit(self._cell, name, job) for name, job in jobs.items()}
        progress = {name: job.folder / PROGRESS for name, job in jobs.items()}
        try:
            while pending:
                over, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
                waiting(progress)
                for cell in over:
                    ended = cell.result()
                    del progress[ended.name]
                    yield ended
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _cell(self, name: str, job: CellJob) -> EndedAudit:
        from ray.exceptions import RayError

        began = monotonic()
        try:
            with Folder(job.folder).held() as folder:
                self._run(job, folder)
            problems: tuple[Problem, ...] = ()
        except RayError as error:
            lost = f"lost on the cluster: {str(error).strip().partition(chr(10))[0]}"
            problems = (Problem("DPA026", lost),)
        except Exception as error:
            problems = problems_of(error)
        return EndedAudit(name, monotonic() - began, problems)

    def _run(self, job: CellJob, folder: Folder) -> None:
        """All parts of a cell in turn: what is left of each is in its folder at once."""
        import ray

        begun = (job.folder / "run.json").exists()
        had = ray.put(TaskResult(_files(job.folder) if begun else {}))
        first = self._task(job, "begin", "", had)
        [left] = self._kept(folder, [first])
        given, total = [had, first], 1 + sum(map(len, left.parts))
        for names in left.parts:
            parts = [self._task(job, "part", name, *given) for name in names]
            self._kept(folder, parts, done=len(given) - 2, total=total)
            given += parts
        self._kept(folder, [self._task(job, "finish", "", *given)], total - 1, total)

    def _task(self, job: CellJob, stage: Stage, name: str, *given: Reference) -> Reference:
        import ray

        options = {"num_cpus": 1, "num_gpus": self.n_gpus, "max_retries": LOST}
        task = ray.remote(_done).options(**options)
        return task.remote(job.model_dump_json(), str(Path.cwd()), stage, name, *given)

    def _kept(
        self, folder: Folder, tasks: Sequence[Reference], done: int = 0, total: int = 0
    ) -> list[TaskResult]:
        """What tasks left, written as each of them ends. Raises RunError where one failed."""
        import ray

        found, waits = [], list(tasks)
        while waits:
            [over], waits = ray.wait(waits)
            left = ray.get(over)
            if left.problems:
                for task in waits:
                    ray.cancel(task)
                raise RunError.of(left.problems)
            for path, content in left.files.items():
                folder.write(path, content)
            found.append(left)
            if total:
                said = {"parts": [done + len(found), total]}
                folder.write(PROGRESS, json.dumps(said).encode())
        return found


@contextmanager
def connected(
    address: str | None, device: str = "cpu", workers: int | None = None
) -> Iterator[Cluster]:
    """The cluster at an address, or one of this machine alone that ends with the block.

    Args:
        workers: cells at once, and without an address the CPUs of the cluster.

    Raises:
        ConfigError: Ray is not installed, no cluster answers, or it has no such device.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "DPA023",
            "--backend ray: Ray is not installed; it comes with pip install 'dpaudit[ray]'",
        ) from None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    started: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        started |= {"num_cpus": workers or os.cpu_count(), "include_dashboard": False}
        started["_system_config"] = {"task_oom_retries": LOST}  # by default without end
    try:
        if address is not None:
            _refuse_unreachable(address)
        ray.init(address or "local", **started)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(
            "DPA025", f"--address {address}: no Ray cluster answers there: {said}"
        ) from None
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray leaves with a code of its own
        has = ray.cluster_resources()
        places = int(has.get("CPU" if device == "cpu" else "GPU", 0))
        if device != "cpu" and not places:
            raise ConfigError("DPA024", f"--device {device}: the Ray cluster has no GPU")
        yield Cluster(workers or max(1, places), int(device != "cpu"))
    finally:
        ray.shutdown()


def _refuse_unreachable(address: str) -> None:
    """Ray itself waits for minutes, or for ever where another server listens.

    Raises:
        ConnectionError: nobody answers as Ray does.
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConnectionError('expected "auto", HOST:PORT or ray://HOST:PORT')
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(error.strerror or str(error)) from None
    try:
        tried = subprocess.run(
            [sys.executable, "-c", JOINING, address],
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"nothing that Ray understands in {JOIN_SECONDS} s") from None
    if tried.returncode:
        raise ConnectionError(tried.stderr.strip().rpartition("\n")[2].partition(": ")[2])


def _done(order: str, cwd: str, stage: Stage, name: str, *given: TaskResult) -> TaskResult:
    """A task: a part of an audit, in a folder of its own that is laid out as it was left."""
    warnings.simplefilter("ignore")
    files = {path: content for left in given for path, content in left.files.items()}
    with (
        TemporaryDirectory(prefix="dpaudit-") as place,
        chdir(cwd) if Path(cwd).is_dir() else nullcontext(),  # whose state of git is recorded
    ):
        out = Path(place) / "run"
        try:
            for path, content in files.items():
                (out / path).parent.mkdir(parents=True, exist_ok=True)
                (out / path).write_bytes(content)
            parts = _do(CellJob.model_validate_json(order), out, stage, name)
        except (Exception, SystemExit) as error:
            return TaskResult({}, problems=problems_of(error))
        changed = {p: content for p, content in _files(out).items() if files.get(p) != content}
        return TaskResult(changed, parts)


def _do(job: CellJob, out: Path, stage: Stage, name: str) -> Parts:
    """Begin a run and say what is to be done, do a part of it, or do what is missing and judge.

    Parts leave what they find in files of the run directory: whoever has all of them has the audit.
    """
    from dpaudit.files.config import AuditConfig
    from dpaudit.pipeline import run as pipeline
    from dpaudit.pipeline.caller_objects import NOTHING
    from dpaudit.pipeline.costs import estimate_costs
    from dpaudit.pipeline.jobs import WORLDS, names_of_attacks
    from dpaudit.pipeline.requirements import torch_device
    from dpaudit.pipeline.workers import one_thread
    from dpaudit.training.run_directory import RunDirectory

    device = torch_device(job.device, f"--device {job.device}")
    runtime = pipeline.Runtime(device, job.data_root, cores=1, max_memory=job.max_memory)
    config = AuditConfig.from_dict(job.config)
    if stage == "begin":
        prepared = pipeline.prepare(config, runtime)
        estimate_costs(prepared, runtime.max_memory)
        fingerprint = pipeline.fingerprint_of(prepared, runtime)
        with RunDirectory(out).begun(job.text, fingerprint, (out / "run.json").exists()):
            return WORLDS, tuple(names_of_attacks(prepared))
    elif stage == "part":
        with RunDirectory(out).held() as run, one_thread():
            run.recorded()
            work = pipeline.worker(config, run, run.binding, runtime, NOTHING)
            work(name, lambda what, done, total: None)
    else:
        pipeline.run_audit(config, out, runtime, job.text, resume=True)
    return ()


def _files(folder: Path) -> Files:
    """All files of a run directory but those that stay in it."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    names = {path.relative_to(folder).as_posix(): path for path in found}
    kept = {name: p for name, p in names.items() if name not in OWN and p.suffix != PARTIAL}
    return {name: path.read_bytes() for name, path in sorted(kept.items())}
