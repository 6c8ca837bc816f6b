"""A run directory has one writer, and is the very folder that it was when the run began."""

import json
import os
import pickle
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Process, get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from dpaudit.errors import RunError
from dpaudit.training.locked_folder import LOCK
from dpaudit.training.run_directory import RunDirectory


def hold(path: Path, held: Event) -> None:
    with RunDirectory(path).held():
        held.set()
        time.sleep(600)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Process]:
    """Another process that holds the folder "run": a fork, which has torch already."""
    forks = get_context("fork")
    held = forks.Event()
    process = forks.Process(target=hold, args=(tmp_path / "run", held))
    process.start()
    assert held.wait(60)
    yield process
    process.kill()
    process.join()


def begin(path: Path, resume: bool = False) -> None:
    with RunDirectory(path).begun("", {"seed": 1}, resume):
        pass


@pytest.mark.parametrize(
    "run_json, said",
    [
        ('{"config": {"seed": 1, "claim": [{"epsilon": 2.0}]}}', []),
        ('{"config": {"seed": 1, "claim": [{"epsilon": 1.0}]}}', ["claim[1].epsilon"]),
        ('{"config": {"a": 0, "b": 0, "c": 0, "d": 0}}', ["a, b, c, d, seed and 1 more"]),
        ("{", ["damaged"]),
        ("[]", ["damaged"]),
    ],
)
@pytest.mark.parametrize("what", ["audit", "unfinished audit"])
def test_what_is_replaced_is_said_if_it_differs(tmp_path, run_json, said, what) -> None:
    (tmp_path / "run.json").write_text(run_json)
    if what == "audit":
        (tmp_path / "audit.json").write_text("{}")
    lines: list[str] = []
    fingerprint = {"config": {"seed": 1, "claim": ({"epsilon": 2.0},)}}
    with RunDirectory(tmp_path).begun("", fingerprint, False, lines.append) as run:
        assert not run.has("audit.json")
    start = f"{tmp_path}: replaces the {what} in it, "
    other = (
        "whose run.json is damaged" if "damaged" in said else f"of another config: {''.join(said)}"
    )
    assert lines == [start + other] * len(said)


def test_a_resumed_run_replaces_nothing(tmp_path) -> None:
    lines: list[str] = []
    for resume in (False, True):
        with RunDirectory(tmp_path).begun("", {"config": 1}, resume, lines.append):
            pass
    assert lines == []


def test_a_folder_in_use_is_refused_with_its_process(holder, tmp_path) -> None:
    with pytest.raises(RunError) as refused:
        begin(tmp_path / "run")
    assert str(refused.value) == (
        f"{tmp_path / 'run'}: in use by another dpaudit (process {holder.pid})"
    )
    assert refused.value.problems[0].help == "wait for its end, or give another folder"


def test_a_link_to_a_folder_in_use_is_refused_too(holder, tmp_path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(RunError, match="link: in use by another dpaudit"):
        begin(tmp_path / "link")


def test_a_killed_holder_lets_go(holder, tmp_path) -> None:
    holder.kill()
    holder.join()
    begin(tmp_path / "run")
    begin(tmp_path / "run", resume=True)


def test_one_process_does_not_hold_a_folder_twice(tmp_path) -> None:
    with RunDirectory(tmp_path).held(), pytest.raises(RunError, match=f"process {os.getpid()}"):
        begin(tmp_path)


def moved(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


def replaced(run: Path) -> None:
    moved(run)
    shutil.copytree(run.with_name("elsewhere"), run)


def emptied(run: Path) -> None:
    for path in run.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def removed(run: Path) -> None:
    shutil.rmtree(run)


def files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


@pytest.mark.parametrize("change", [moved, replaced, emptied, removed])
@pytest.mark.parametrize("travels", [False, True])
def test_a_folder_that_is_another_now_is_left_alone(change, travels, tmp_path) -> None:
    with RunDirectory(tmp_path / "run").begun("", {"seed": 1}, False) as run:
        run.write_text("findings/one.json", "{}")
        change(tmp_path / "run")
        after = files(tmp_path)
        own = pickle.loads(pickle.dumps(run)) if travels else run  # as a worker process has it
        for use in (
            lambda: own.write_text("audit.json", "{}"),
            lambda: own.write_text("findings/two.json", "{}"),
            lambda: own.read_json("run.json"),
            lambda: own.has("findings/one.json"),
            lambda: own.forget("findings/*"),
        ):
            with pytest.raises(RunError, match="run: moved, replaced or emptied while the run"):
                use()
        assert files(tmp_path) == after


def test_what_a_killed_run_left_is_swept(tmp_path) -> None:
    begin(tmp_path / "run")
    half, mine = tmp_path / "run" / "findings" / ".a.json.12.partial", tmp_path / "run" / ".mine"
    half.parent.mkdir()
    half.write_text("{")
    mine.write_text("precious")
    begin(tmp_path / "run", resume=True)
    assert not half.exists()
    assert mine.read_text() == "precious"


def test_nothing_is_left_in_a_folder_that_is_no_run(tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    for resume in (False, True):
        with pytest.raises(RunError):
            begin(tmp_path, resume)
    assert files(tmp_path) == {Path("thesis.txt")}


def test_a_run_killed_while_clearing_leaves_nothing_to_resume(tmp_path) -> None:
    begin(tmp_path)
    (tmp_path / "run.json").unlink()
    assert files(tmp_path) == {Path(LOCK), Path("config.toml")}
    with pytest.raises(RunError, match="nothing to resume"):
        begin(tmp_path, resume=True)
    begin(tmp_path)


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="run: cannot write"):
        begin(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "precious"


def test_progress_is_kept_of_reports_of_many_threads(tmp_path) -> None:
    """As of short runs that are played side by side: one file at a time has its name."""
    passed = list[tuple[str, int, int]]()
    note = RunDirectory(tmp_path).noted(lambda *report: passed.append(report))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: note(f"job {i % 4}", 1, 1), range(400)))
    assert len(passed) == 400
    kept = json.loads((tmp_path / "progress.json").read_text())
    assert kept == {f"job {i}": [1, 1] for i in range(4)}
