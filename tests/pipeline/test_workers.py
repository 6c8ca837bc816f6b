"""Jobs run in the caller's process or in others, and leave the caller's process as it was."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dpaudit.errors import RunError
from dpaudit.pipeline import workers
from dpaudit.pipeline.fork_server import importing_only_what_is_sent, imports
from dpaudit.pipeline.processes import _problems
from dpaudit.pipeline.workers import Workers, run_jobs
from tests.material.ended import ended_by

CALLERS = 3  # threads, as a caller may have chosen


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(CALLERS)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Of its own name: a package called tests that is installed would be another one to workers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "material"))
    return import_module("worker_jobs")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_has_one_thread_and_the_caller_its_own(threads, jobs, workers) -> None:
    seen = []
    prepare, two = jobs.reports_its_threads, ["a", "b"]
    run_jobs(prepare, (False,), two, workers, lambda *report: seen.append(report))
    assert sorted(seen) == [("a", 1, 0), ("b", 1, 0)]
    assert torch.get_num_threads() == CALLERS


def test_garbage_is_collected_again_after_imports() -> None:
    with imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), imports():
        import_module("no_module_of_this_name")
    assert gc.isenabled()


def test_jobs_that_are_soon_done_start_no_process(jobs, monkeypatch) -> None:
    monkeypatch.setattr(workers, "begin", lambda: pytest.fail("processes were begun"))
    seen, two = [], ["a", "b"]
    with Workers(jobs.reports_its_threads, (False,), 2) as those:
        those.run(two, 2, lambda *report: seen.append(report), alone=60.0)
    assert seen == [("a", 1, 0), ("b", 1, 0)]


def test_later_jobs_are_done_by_the_same_processes(jobs) -> None:
    seen: list[tuple[str, int, int]] = []
    with Workers(jobs.reports_its_process, (), 2) as those:
        those.run(["a", "b"], 2, lambda *report: seen.append(report))
        those.run(["c", "d", "e", "f"], 2, lambda *report: seen.append(report))
    assert sorted(name for name, _, _ in seen) == list("abcdef")
    processes = {process for _, process, _ in seen}
    assert len(processes) <= 2
    assert os.getpid() not in processes


def test_fewer_jobs_at_once_than_processes(jobs, tmp_path) -> None:
    """Memory may hold three jobs of one kind and two of another; here a third one would fail."""
    with Workers(jobs.takes_a_place_of_two, (str(tmp_path),), 3) as those:
        those.run(list("abcdef"), 2, print)
    assert sorted(path.name for path in tmp_path.iterdir()) == list("abcdef")


def test_what_is_seen_to_take_long_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 0.2 s: 12 of them are soon done, and of 100 more a few are waited for."""
    now = 0.0
    monkeypatch.setattr(workers.time, "perf_counter", lambda: now)
    reports: list[int] = []
    watch = workers._Watch(lambda what, done, total: reports.append(done), 5.0)

    def steps(what: str, total: int) -> None:
        nonlocal now
        for k in range(total):
            now += 0.2
            watch(what, k + 1, total)

    steps("short", 12)
    with pytest.raises(workers.Enough):
        steps("long", 100)
    assert reports == [*range(1, 13), 1, 2]


@pytest.mark.slow
def test_a_folder_for_temporary_files_may_have_a_long_name(jobs, tmp_path, monkeypatch) -> None:
    """No server of forks has a socket there: 107 bytes are the longest path of one."""
    long = tmp_path / ("x" * 60) / ("y" * 60)
    long.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    seen = []
    prepare, two = jobs.reports_its_threads, ["a", "b"]
    run_jobs(prepare, (False,), two, 2, lambda *report: seen.append(report))
    assert sorted(seen) == [("a", 1, 0), ("b", 1, 0)]


def test_a_job_that_fails_leaves_the_number_of_threads_too(threads, jobs) -> None:
    with pytest.raises(ZeroDivisionError):
        run_jobs(jobs.reports_its_threads, (True,), ["a"], 1, lambda *report: None)
    assert torch.get_num_threads() == CALLERS


def test_every_job_tells_where_the_start_failed(jobs, threads, monkeypatch) -> None:
    for name in ("_failure", "_origin"):
        monkeypatch.setattr(workers, name, None)
    monkeypatch.setattr(workers, "_end_with_the_caller", lambda: None)  # which is this process
    handler = signal.getsignal(signal.SIGINT)
    workers._start(dict(os.environ), workers._Sent((jobs.fails_at_its_start, ())), None)
    signal.signal(signal.SIGINT, handler)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as told:
            workers._do(None)
        assert "fails_at_its_start" in [frame.name for frame in told.traceback]
        told.value.__traceback__ = None  # as the pool does, once it has told a job's end


def test_what_a_worker_cannot_load_is_one_line(jobs, capfd) -> None:
    said = r"cannot load what it is given: ImportError: no such library.{1,4}for this process"
    with pytest.raises(RunError, match=said) as raised:
        run_jobs(jobs.reports_its_threads, (jobs.OfOneProcess(),), ["a", "b"], 2, print)
    assert "--workers 1" in raised.value.problems[0].help
    assert capfd.readouterr().err == ""


def test_the_caller_is_left_as_it_was(monkeypatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setenv("PYTHONSAFEPATH", "0")
    with importing_only_what_is_sent():
        assert sys.modules["__main__"] is not main
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert sys.modules["__main__"] is main
    assert os.environ["PYTHONSAFEPATH"] == "0"


@pytest.mark.slow
def test_the_folder_of_a_worker_is_not_searched_for_modules(tmp_path: Path) -> None:
    """A new process imports pickle before it is told where modules are."""
    (tmp_path / "pickle.py").write_text("import os\nos.mkdir('ran')\n")
    (tmp_path / "own_work.py").write_text(
        "def prepare():\n    return lambda job, on_progress: open(job, 'w').close()\n"
    )
    code = (
        "import sys; from dpaudit.pipeline.workers import run_jobs; sys.path.append('.'); "
        "import own_work; run_jobs(own_work.prepare, (), ['a', 'b'], 2, print)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"a", "b"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", ["first", "second"])
def test_workers_have_the_environment_that_the_caller_has_now(
    monkeypatch, jobs, value: str
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", value)
    seen: list[str] = []
    run_jobs(jobs.reports_a_variable, (), ["a", "b"], 2, lambda what, *_: seen.append(what))
    assert seen == [value, value]


@pytest.mark.slow
def test_workers_end_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "own_work.py").write_text(
        "import os, time\n"
        "def prepare():\n"
        "    def work(job, on_progress):\n"
        "        open(f'{job}.new', 'w').write(str(os.getpid()))\n"
        "        os.rename(f'{job}.new', job)\n"
        "        time.sleep(60)\n"
        "    return work\n"
    )
    code = (
        "import sys; from dpaudit.pipeline.workers import run_jobs; sys.path.append('.'); "
        "import own_work; run_jobs(own_work.prepare, (), ['a', 'b'], 2, print)"
    )
    caller = subprocess.Popen([sys.executable, "-P", "-c", code], cwd=tmp_path)
    try:
        until = time.monotonic() + 60
        while not all((tmp_path / job).exists() for job in "ab"):
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        caller.kill()  # and not waited for yet: it is a zombie
    for job in "ab":
        ended_by((tmp_path / job).read_text(), time.monotonic() + 10)
    caller.wait()


@pytest.mark.parametrize(
    "code, text, codes, said",
    [
        (0, "noise", [], ""),
        (-9, "noise", ["DPA026"], "killed, perhaps for lack of memory"),
        (1, "a\nb\nc\nd\n", ["DPA027"], "(exit code 1): b / c / d"),
        (2, "", ["DPA026"], "no reason was said"),
    ],
)
def test_how_a_process_ended_is_a_problem(code: int, text: str, codes: list, said: str) -> None:
    found = _problems(code, text)
    assert [problem.code for problem in found] == codes
    assert all(problem.text.endswith(said) for problem in found)
