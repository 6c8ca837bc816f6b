"""dpaudit check as a command: exit codes, the cache, time budgets, kills and checks at once.

The audits are stubs that leave a finished audit.json; test_example_project.py runs real ones.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from dpaudit.check.baseline import Baseline
from dpaudit.commands.cli import app
from dpaudit.files.result import AuditResult

STUB = Path(__file__).parents[1] / "material" / "stub_check.py"
CLAIMS = """\
import_from = "code"

[[check]]
name = "first"
audit = { defense = { name = "mine:Mine" }, seed = 1 }

[[check.threshold]]
metric = "ssim"
at_most = 0.9
"""
SECOND = """
[[check]]
name = "second"
audit = { defense = { name = "mine:Mine" }, seed = 2, claim = [{ text = "Theorem 1" }] }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("x = 0\n")
    (tmp_path / "claims.toml").write_text(CLAIMS)
    return tmp_path


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(STUB), "check", "claims.toml", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GITHUB_ACTIONS": "", **environment},
    )


def check(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = start(folder, *arguments, **environment)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


def runs(folder: Path) -> int:
    log = folder / "runs.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def change(folder: Path, number: int) -> None:
    (folder / "code" / "mine.py").write_text(f"x = {number}\n")


def test_an_audit_runs_again_only_when_its_content_changed_or_that_is_asked(folder) -> None:
    assert check(folder)[0] == 1  # the golden audit's claim is refuted
    assert runs(folder) == 1
    check(folder)
    assert runs(folder) == 1
    check(folder, "--fresh")
    assert runs(folder) == 2
    change(folder, 1)
    check(folder)
    assert runs(folder) == 3
    change(folder, 0)
    check(folder)
    assert runs(folder) == 3
    (folder / "claims.toml").write_text(CLAIMS.replace("at_most = 0.9", "at_most = 0.1"))
    out = check(folder)[1]
    assert runs(folder) == 3  # limits are no part of an audit
    assert "ssim of attack[1] on cross_gradient in round 3" in out
    assert "is broken" in out


def test_a_damaged_entry_is_made_anew(folder) -> None:
    check(folder)
    [entry] = (folder / ".dpaudit-cache").glob("*/audit.json")
    entry.write_text("{")
    assert check(folder)[0] == 1
    assert runs(folder) == 2
    AuditResult.read(entry)


def test_outputs_go_where_asked_and_github_gets_annotations(folder) -> None:
    outputs = ["--junit", "o/j.xml", "--sarif", "o/s.sarif", "--markdown", "o/m.md"]
    code, out, error = check(folder, *outputs, GITHUB_ACTIONS="true")
    assert (code, error) == (1, "")
    assert sorted(p.name for p in (folder / "o").iterdir()) == ["j.xml", "m.md", "s.sarif"]
    assert "::error file=claims.toml,line=3,title=first%3A unsupported::" in out
    assert "::error file=claims.toml,line=3,title=first%3A refuted::" in out
    assert "::" not in check(folder)[1]
    assert "\x1b" not in out
    quiet = check(folder, "--quiet")[1]
    assert 0 < len(quiet.splitlines()) < len(check(folder)[1].splitlines())
    assert "HOLDS" not in quiet


def test_names_that_no_xml_can_hold_are_shown_escaped_everywhere(folder) -> None:
    name = r'"a <b> & | \u0001 \n::error::x"'
    (folder / "claims.toml").write_text(CLAIMS.replace('"first"', name))
    outputs = ["--junit", "j.xml", "--sarif", "s.sarif", "--markdown", "m.md", "--update-baseline"]
    code, out, error = check(folder, *outputs, GITHUB_ACTIONS="true")
    assert (code, error) == (1, "")
    assert all(line.isprintable() for line in out.splitlines())
    assert not any(line.startswith("::error::x") for line in out.splitlines())
    suite = ElementTree.parse(folder / "j.xml").getroot()[0]
    assert suite.get("name") == "a <b> & | \\x01 \n::error::x"
    assert "a &lt;b&gt; &amp; \\|" in (folder / "m.md").read_text()
    assert json.loads((folder / "s.sarif").read_text())["runs"][0]["results"]
    assert "nothing beyond" in check(folder)[1]


def test_an_audit_ends_when_its_check_is_killed(folder) -> None:
    process = start_slow(folder)
    wait_for_an_audit(folder, process)
    process.kill()
    process.communicate(timeout=30)
    assert_nobody_is_left(folder)


def wait_for_an_audit(folder: Path, process: subprocess.Popen[str]) -> None:
    while not list(folder.glob(".dpaudit-cache/*.partial/run.json")):
        assert process.poll() is None
        time.sleep(0.01)


def test_an_interrupted_check_exits_130_and_the_next_one_goes_on(folder) -> None:
    process = start(folder)
    wait_for_an_audit(folder, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert "To finish: dpaudit check claims.toml" in error
    assert_nobody_is_left(folder)
    check(folder)
    assert (folder / "runs.log").read_text() == "begun\nresumed\n"


def test_a_baseline_is_written_compared_and_refused_for_another_config(folder) -> None:
    code, out, _ = check(folder, "--update-baseline")
    assert "baseline written: baseline.json" in out
    assert "nothing beyond its error" in check(folder)[1]
    (folder / "claims.toml").write_text(CLAIMS.replace("mine:Mine", "mine:Other"))
    code, _, error = check(folder)
    assert code == 2
    assert error == (
        'error: baseline.json: check "first" was made from another config; if that change is meant, '
        "write it anew with --update-baseline\n"
    )
    (folder / "claims.toml").write_text(CLAIMS.replace("seed = 1", "seed = 5"))
    assert check(folder)[0] == 1  # another seed is the same experiment
    (folder / "claims.toml").write_text(CLAIMS + SECOND)
    assert check(folder)[2] == (
        'error: baseline.json: no check "second" in it; write it anew with --update-baseline\n'
    )
    (folder / "baseline.json").write_text('{"schema_version": 7}')
    assert "schema_version 7" in check(folder)[2]
    assert check(folder, "--update-baseline")[0] == 1
    assert set(Baseline.read(folder / "baseline.json").checks) == {"first", "second"}
    code, _, error = check(folder, "--baseline", "absent.json")
    assert (code, error) == (2, "error: absent.json: No such file or directory\n")


def test_the_ledger_counts_contents_and_update_takes_it_into_the_baseline(folder) -> None:
    check(folder, "--update-baseline")
    levels = []
    for number in (1, 1, 2):
        change(folder, number)
        levels.append(check(folder)[1].rsplit("level ", 1)[1].strip())
    assert levels == ["0.00076", "0.00076", "0.00034"]
    assert len(Baseline.read(folder / "baseline.json").ledger.contents) == 1
    check(folder, "--update-baseline")
    assert len(Baseline.read(folder / "baseline.json").ledger.contents) == 3


def start_slow(folder: Path) -> subprocess.Popen[str]:
    """A check whose audit hangs, unless it is resumed."""
    slow = STUB.read_text().replace("time.sleep(0.01)", "time.sleep(0.01 if resume else 60)")
    (folder / "slow.py").write_text(slow)
    command = [sys.executable, "slow.py", "check", "claims.toml"]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


def test_an_audit_that_takes_too_long_is_stopped_and_goes_on_next_time(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS.replace("seed = 1 }", "seed = 1 }\nseconds = 5"))
    process = start_slow(folder)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error.startswith(
        'error: claims.toml:6: check[1].seconds: "first": not finished after 5 s, so there is no '
        "verdict"
    )
    assert error.count("\n") == 1
    assert_nobody_is_left(folder)
    assert check(folder)[0] == 1
    assert (folder / "runs.log").read_text() == "begun\nresumed\n"


def test_problems_of_the_claims_file_and_of_its_limits_are_exit_code_2(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS.replace('"ssim"', '"ssmi"'))
    code, out, error = check(folder, "--junit", "j.xml")
    assert (code, out) == (2, "")
    [problem] = ElementTree.parse(folder / "j.xml").getroot().findall("*/*/error")
    assert f"error: {problem.get('message')}\n" == error
    assert error.startswith(
        'error: claims.toml:8: check[1].threshold[1].metric: no finding has a metric "ssmi" (did '
        'you mean "ssim"?); there are '
    )
    (folder / "claims.toml").write_text(CLAIMS + SECOND.split(", claim")[0] + " }\n")
    assert check(folder)[2] == (
        "error: claims.toml:11: check[2]: nothing to check: no claim in the audit, no threshold, and "
        "no baseline\n"
    )
    (folder / "claims.toml").write_text(CLAIMS + SECOND.replace('"second"', '"first"'))
    assert check(folder)[2] == (
        'error: claims.toml:12: check[2].name: another check is called "first"\n'
    )


def audit_of(folder: Path, name: str) -> str:
    """What the real command says of a claims file whose defense is of this name."""
    audit = f'''
data = {{ name = "digits" }}
graph = {{ name = "ring" }}
model = {{ name = "logistic" }}
defense = {{ name = "{name}" }}
'''
    (folder / "audit.toml").write_text(audit)
    (folder / "claims.toml").write_text(
        'import_from = "code"\n[[check]]\nname = "a"\naudit = "audit.toml"\n'
        '[[check.threshold]]\nmetric = "psnr"\nat_most = 9.0\n'
    )
    result = CliRunner().invoke(app, ["check", str(folder / "claims.toml")])
    assert result.exit_code == 2, result.output
    return result.stderr.replace(f"{folder}/", "")


def test_own_code_that_cannot_be_used_is_one_line(folder) -> None:
    where = "error: audit.toml:5: defense.name: defense "
    (folder / "code" / "broken_one.py").write_text("def (:\n")
    (folder / "code" / "good_one.py").write_text("class Plain: pass\n")
    said = audit_of(folder, "broken_one:Mine")
    assert said.startswith(f'{where}"broken_one:Mine" cannot be imported: SyntaxError')
    assert "has no attribute 'Mine'" in audit_of(folder, "good_one:Mine")
    assert audit_of(folder, "good_one:Plain") == (
        f'{where}"good_one:Plain": expected a class derived from dpaudit.defense.contract.Defense, '
        "found a class derived from none\n"
    )
    assert "ModuleNotFoundError: No module named 'absent_one'" in audit_of(
        folder, "absent_one:Mine"
    )
    assert said.count("\n") == 1


def assert_whole(folder: Path, finished: set[str]) -> None:
    """Everything in cache and baseline can be read, and what was there still is."""
    cache = folder / ".dpaudit-cache"
    entries = {p.name for p in cache.glob("*") if p.is_dir() and p.suffix != ".partial"}
    assert finished <= entries
    finished |= entries
    for name in entries:
        AuditResult.read(cache / name / "audit.json")
    for ledger in cache.glob("ledger-*.json"):
        assert all(isinstance(content, str) for content in json.loads(ledger.read_text()))
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


def test_a_killed_check_leaves_a_whole_cache_and_a_whole_baseline(folder) -> None:
    kill_at_random_moments(folder, 8)


@pytest.mark.slow
def test_fifty_killed_checks_leave_a_whole_cache_and_a_whole_baseline(folder) -> None:
    kill_at_random_moments(folder, 50)


def test_two_checks_at_once_share_one_audit_and_corrupt_nothing(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS + SECOND)
    both = [start(folder, "--update-baseline") for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [1, 1], said
    assert said[0][0] == said[1][0]
    assert runs(folder) == 2  # one of each check
    assert_whole(folder, set())
    assert not list((folder / ".dpaudit-cache").glob("*.partial"))
