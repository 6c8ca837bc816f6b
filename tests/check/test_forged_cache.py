"""What a stranger left in the cache is not taken; the audits are stubs."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.check.stub_audits import change, check, runs
from tests.some_fast import fast_if

NOT_TAKEN = 'note: "first": its entry in the cache was not made with the key of this machine'


def the_entry(folder: Path) -> Path:
    [audit] = (folder / ".dpaudit-cache").glob("*/audit.json")
    return audit.parent


def forge(audit: Path, **changes: object) -> None:
    audit.write_text(json.dumps({**json.loads(audit.read_text()), **changes}))


def test_a_forged_entry_is_run_again_and_said_once(folder) -> None:
    assert check(folder)[0] == 1
    forge(the_entry(folder) / "audit.json", claims=[], verdict=None)
    code, out, _ = check(folder)
    assert (code, runs(folder)) == (1, 2)
    assert out.count(NOT_TAKEN) == 1
    code, out, _ = check(folder)
    assert (code, runs(folder)) == (1, 2)
    assert NOT_TAKEN not in out


@pytest.mark.parametrize("file", fast_if("seal".__eq__, ["artifacts/1.png", "report.html", "seal"]))
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


@pytest.mark.slow
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


def test_without_a_place_for_a_key_nothing_is_taken(folder) -> None:
    (folder / "file").touch()
    nowhere = str(folder / "file")
    assert check(folder, XDG_STATE_HOME=nowhere)[0] == 1
    assert NOT_TAKEN in check(folder, XDG_STATE_HOME=nowhere)[1]
