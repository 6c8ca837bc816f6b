"""Checks that are killed, out of time, or two at once; their audits are stubs."""

import json
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dpaudit.check.baseline import Baseline
from dpaudit.files.result import AuditResult
from tests.check.stub_audits import CLAIMS, SECOND, STUB, change, check, runs, start
from tests.said import without_help, without_times


def start_slow(folder: Path) -> subprocess.Popen[str]:
    """A check whose audit hangs, unless it is resumed."""
    slow = STUB.read_text().replace("time.sleep(0.01)", "time.sleep(0.01 if resume else 60)")
    (folder / "slow.py").write_text(slow)
    command = [sys.executable, "slow.py", "check", "claims.toml"]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


def wait_for_an_audit(folder: Path, process: subprocess.Popen[str]) -> None:
    while not list(folder.glob(".dpaudit-cache/*.partial/run.json")):
        assert process.poll() is None
        time.sleep(0.01)


def assert_whole(folder: Path, finished: set[str]) -> None:
    """Everything in cache and baseline can be read, and what was there still is."""
    cache = folder / ".dpaudit-cache"
    entries = {p.name for p in cache.glob("*") if p.is_dir() and p.suffix != ".partial"}
    assert finished <= entries
    finished |= entries
    for name in entries:
        AuditResult.read(cache / name / "audit.json")
    for ledger in cache.glob("ledger-*.json"):
        assert {"contents", "seal"} == set(json.loads(ledger.read_text()))
    Baseline.read(folder / "baseline.json")


def assert_nobody_is_left(folder: Path) -> None:
    """Audits end with the check that started them."""

    def left() -> list[Path]:
        found = []
        for cwd in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                found += [cwd] if cwd.readlink() == folder else []
        return found

    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left() == []


def test_an_audit_ends_when_its_check_is_killed(folder) -> None:
    process = start_slow(folder)
    wait_for_an_audit(folder, process)
    process.kill()
    process.communicate(timeout=30)
    assert_nobody_is_left(folder)


def test_an_interrupted_check_exits_130_and_goes_on(folder) -> None:
    process = start(folder)
    wait_for_an_audit(folder, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert "To finish: dpaudit check claims.toml" in error
    assert_nobody_is_left(folder)
    check(folder)
    assert (folder / "runs.log").read_text() == "begun\nresumed\n"


@pytest.mark.slow
def test_an_audit_that_takes_too_long_goes_on_next_time(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS.replace("seed = 1 }", "seed = 1 }\nseconds = 5"))
    process = start_slow(folder)
    error = without_times(process.communicate(timeout=60)[1])
    assert process.returncode == 2
    assert error.startswith(
        'error[DPA070]: claims.toml:6: check[1].seconds: "first": not finished after 5 s, so there '
        "is no verdict"
    )
    assert error.count("\n") == 2
    assert_nobody_is_left(folder)
    assert check(folder)[0] == 1
    assert (folder / "runs.log").read_text() == "begun\nresumed\n"


@pytest.mark.slow
def test_a_shared_audit_has_the_longest_budget_of_its_checks(folder) -> None:
    first, other = (CLAIMS.replace("seed = 1 }", f"seed = 1 }}\nseconds = {s}") for s in (5, 6))
    other = other.partition("\n\n")[2].replace('"first"', '"other"')
    (folder / "claims.toml").write_text(f"{first}\n{other}")
    error = without_help(start_slow(folder).communicate(timeout=60)[1])
    problems = error.splitlines()
    assert len(problems) == 2
    assert 'check[1]: "first": its audit is that of "other", which has no result' in problems[0]
    assert '"other": not finished after 6 s' in problems[1]


def kill_at_random_moments(folder: Path, times: int) -> None:
    """Every check has content of its own, so that it runs an audit and writes a baseline."""
    began = time.monotonic()
    check(folder, "--update-baseline")
    whole, rng, finished = time.monotonic() - began, random.Random(20240611), set()
    for i in range(times):
        change(folder, i + 1)
        process = start(folder, "--update-baseline")
        time.sleep(rng.uniform(0.1, 1.1) * whole)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)  # ends when no audit holds the pipes any more
        assert_whole(folder, finished)
        if i == 0:
            assert_nobody_is_left(folder)
    assert check(folder, "--update-baseline")[0] == 1
    assert_whole(folder, finished)
    assert_nobody_is_left(folder)
    assert len(finished) > 1
    left = [p for p in folder.iterdir() if p.name.startswith(".baseline.json")]
    assert left == []


@pytest.mark.slow
def test_a_killed_check_leaves_whole_cache_and_baseline(folder) -> None:
    kill_at_random_moments(folder, 3)


@pytest.mark.slow
def test_fifty_killed_checks_leave_whole_files(folder) -> None:
    kill_at_random_moments(folder, 50)


@pytest.mark.slow
def test_two_checks_at_once_share_one_audit_and_corrupt_nothing(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS + SECOND)
    both = [start(folder, "--update-baseline") for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [1, 1], said
    assert said[0][0] == said[1][0]
    assert runs(folder) == 2  # one of each check
    assert_whole(folder, set())
    assert not list((folder / ".dpaudit-cache").glob("*.partial"))


def test_checks_of_one_audit_share_its_process_and_its_time(folder) -> None:
    more = CLAIMS.partition("\n\n")[2]
    same = [more.replace('"first"', f'"{i}"') for i in range(3)]
    (folder / "claims.toml").write_text("\n".join([CLAIMS, *same, SECOND]))
    code, _, error = check(folder, "--junit", "junit.xml")
    assert code == 1, error
    assert runs(folder) == 2
    times = [
        suite.get("time") for suite in ElementTree.parse(folder / "junit.xml").iter("testsuite")
    ]
    assert len(times) == 5
    assert len(set(times[:4])) == 1
    assert "0.000" not in times
