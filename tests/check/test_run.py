"""dpaudit check as a command: exit codes, the cache, time budgets, kills and checks at once.

The audits are stubs that leave a finished audit.json; test_example_project.py runs real ones.
"""

import json
import os
import random
import shutil
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
from dpaudit.check.run import Auditor
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
    assert suite.get("name") == "a <b> & | \\x01 \\n::error::x"
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


def test_a_shared_audit_has_the_longest_budget_of_its_checks(folder) -> None:
    first, other = (CLAIMS.replace("seed = 1 }", f"seed = 1 }}\nseconds = {s}") for s in (5, 6))
    other = other.partition("\n\n")[2].replace('"first"', '"other"')
    (folder / "claims.toml").write_text(f"{first}\n{other}")
    _, error = start_slow(folder).communicate(timeout=60)
    assert [line for line in error.splitlines() if "not finished" in line] == error.splitlines()
    assert '"other": not finished after 6 s' in error
    assert '"first"' not in error


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


def test_checks_of_one_audit_share_its_process_and_its_time(folder) -> None:
    more = CLAIMS.partition("\n\n")[2]
    same = [more.replace('"first"', f'"{i}"') for i in range(3)]
    (folder / "claims.toml").write_text("\n".join([CLAIMS, *same, SECOND]))
    code, _, error = check(folder, "--junit", "junit.xml")
    assert code == 1, error
    assert len((folder / "starts.log").read_text().splitlines()) == runs(folder) == 2
    times = [
        suite.get("time") for suite in ElementTree.parse(folder / "junit.xml").iter("testsuite")
    ]
    assert len(times) == 5
    assert len(set(times[:4])) == 1
    assert "0.000" not in times


def the_entry(folder: Path) -> Path:
    [audit] = (folder / ".dpaudit-cache").glob("*/audit.json")
    return audit.parent


def forge(audit: Path, **changes: object) -> None:
    audit.write_text(json.dumps({**json.loads(audit.read_text()), **changes}))


NOT_TAKEN = 'note: "first": its entry in the cache was not made with the key of this machine'


def test_a_forged_entry_is_run_again_and_said_once(folder) -> None:
    assert check(folder)[0] == 1
    forge(the_entry(folder) / "audit.json", claims=[], verdict=None)
    code, out, _ = check(folder)
    assert (code, runs(folder)) == (1, 2)
    assert out.count(NOT_TAKEN) == 1
    code, out, _ = check(folder)
    assert (code, runs(folder)) == (1, 2)
    assert NOT_TAKEN not in out


@pytest.mark.parametrize("file", ["artifacts/1.png", "report.html", "seal"])
def test_every_file_of_an_entry_is_bound_to_it(folder, file: str) -> None:
    check(folder)
    changed = the_entry(folder) / file
    changed.parent.mkdir(exist_ok=True)
    changed.write_text("changed")
    assert NOT_TAKEN in check(folder)[1]
    assert runs(folder) == 2


def test_an_entry_is_bound_to_its_content(folder) -> None:
    check(folder)
    old = the_entry(folder)
    change(folder, 1)
    check(folder)
    [new] = [audit.parent for audit in old.parent.glob("*/audit.json") if audit.parent != old]
    shutil.rmtree(new)
    old.rename(new)
    assert NOT_TAKEN in check(folder)[1]
    assert runs(folder) == 3


def test_an_entry_of_another_machine_needs_the_same_secret(folder, tmp_path_factory) -> None:
    here, there = (str(tmp_path_factory.mktemp(name)) for name in ("here", "there"))
    secret = "0123456789abcdef" * 4
    check(folder, XDG_STATE_HOME=here)
    assert NOT_TAKEN in check(folder, XDG_STATE_HOME=there)[1]
    assert runs(folder) == 2
    check(folder, XDG_STATE_HOME=here, DPAUDIT_CACHE_KEY=secret)
    assert NOT_TAKEN not in check(folder, XDG_STATE_HOME=there, DPAUDIT_CACHE_KEY=secret)[1]
    assert runs(folder) == 3
    check(folder, DPAUDIT_CACHE_KEY="")  # as a build without the secret has it
    assert runs(folder) == 4


def test_an_unfinished_audit_of_a_stranger_is_not_gone_on_with(folder) -> None:
    check(folder)
    entry = the_entry(folder)
    entry.rename(entry.with_name(f"{entry.name}.partial"))
    (entry.with_name(f"{entry.name}.partial") / "run.json").write_text("{}")
    check(folder)
    assert (folder / "runs.log").read_text() == "begun\nbegun\n"


def test_no_link_of_a_stranger_is_followed(folder, tmp_path_factory) -> None:
    victim = tmp_path_factory.mktemp("victim") / "file"
    victim.write_text("precious")
    check(folder)
    entry = the_entry(folder)
    lock = entry.with_name(f"{entry.name}.lock")
    moved = entry.rename(victim.parent / "entry")
    entry.symlink_to(moved)
    assert NOT_TAKEN in check(folder)[1]
    assert not entry.is_symlink()
    (the_entry(folder) / "seal").unlink()
    os.mkfifo(the_entry(folder) / "seal")  # whose end nobody would see
    assert NOT_TAKEN in check(folder)[1]
    lock.unlink()
    lock.symlink_to(victim)
    shutil.rmtree(entry)
    code, _, error = check(folder)
    assert (code, error.count("\n")) == (2, 1)
    assert ".lock: cannot write" in error
    assert victim.read_text() == "precious"


def test_a_picture_never_comes_from_outside_of_its_entry(folder) -> None:
    (folder / "secret.txt").write_text("secret")
    check(folder)
    audit = the_entry(folder) / "audit.json"
    findings = json.loads(audit.read_text())["findings"]
    for finding in findings:
        if "images" in finding["artifacts"]:
            finding["artifacts"]["images"] = "../../secret.txt"
    forge(audit, findings=findings)
    check(folder, "--markdown", "o/m.md")
    assert [p.name for p in (folder / "o").iterdir()] == ["m.md"]


def test_a_ledger_of_a_stranger_does_not_blunt_the_comparison(folder) -> None:
    check(folder, "--update-baseline")
    change(folder, 1)
    ledger = folder / ".dpaudit-cache" / "ledger-claims.toml.json"
    many = [str(i) for i in range(1000)]
    ledger.write_text(json.dumps(many))
    assert check(folder)[1].rstrip().endswith("level 0.00076")
    for forged in (json.dumps({"contents": many, "seal": "0" * 64}), "[" * 100_000):
        ledger.write_text(forged)
        assert check(folder)[1].rstrip().endswith("level 0.00076")


def test_a_baseline_that_leaves_something_out_is_a_warning(folder) -> None:
    check(folder, "--update-baseline")
    path = folder / "baseline.json"
    whole = json.loads(path.read_text())
    whole["checks"]["first"]["metrics"] = {}
    path.write_text(json.dumps(whole))
    out = check(folder)[1]
    assert "WARNING first: " in out
    assert "key metrics are not compared" in out


def test_a_check_that_left_the_claims_file_alone_is_refused(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS + SECOND)
    check(folder, "--update-baseline")
    (folder / "claims.toml").write_text(CLAIMS)
    code, _, error = check(folder)
    assert (code, error) == (
        2,
        'error: baseline.json: check "second" is in it and not in claims.toml; if that is meant, '
        "write it anew with --update-baseline\n",
    )


def test_a_key_that_is_no_secret_is_refused(folder, tmp_path_factory) -> None:
    code, _, error = check(folder, DPAUDIT_CACHE_KEY="short")
    assert (code, error.count("\n")) == (2, 1)
    assert "DPAUDIT_CACHE_KEY: expected a secret of at least 32 characters, got 5" in error
    state = tmp_path_factory.mktemp("state")
    check(folder, XDG_STATE_HOME=str(state))
    key = state / "dpaudit" / "cache-key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    code, _, error = check(folder, XDG_STATE_HOME=str(state))
    assert (code, error.count("\n")) == (2, 1)
    assert "(0600), found permissions 0644" in error


def test_without_a_place_for_a_key_nothing_is_taken_and_all_else_works(folder) -> None:
    (folder / "file").touch()
    nowhere = str(folder / "file")
    assert check(folder, XDG_STATE_HOME=nowhere)[0] == 1
    assert NOT_TAKEN in check(folder, XDG_STATE_HOME=nowhere)[1]


def test_outputs_of_another_check_are_gone_where_this_one_cannot_run(folder) -> None:
    outputs = ["--junit", "j.xml", "--sarif", "s.sarif", "--markdown", "m.md"]
    for name in outputs[1::2]:
        (folder / name).write_text("all is well")
    (folder / "claims.toml").write_text("")
    assert check(folder, *outputs)[0] == 2
    assert not (folder / "s.sarif").exists()
    assert not (folder / "m.md").exists()
    assert "could not run" in (folder / "j.xml").read_text()


def test_the_process_of_an_audit_imports_nothing_from_where_it_is_started(tmp_path) -> None:
    for name in ("json", "torch", "pydantic"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')")
    done = subprocess.run(
        Auditor(source=()).command, cwd=tmp_path, input="{}", capture_output=True, text=True
    )
    assert "AuditJob" in done.stderr  # it came as far as its job
    assert not (tmp_path / "imported").exists()
