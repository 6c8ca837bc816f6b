"""``dpaudit verify``: what it prints, and its exit codes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import run_audit
from tests.said import without_help
from tests.small_audits import digits_audit


def command(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    return done.exit_code, done.stdout, without_help(done.stderr)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verifying")
    (folder / "audit.toml").write_text(digits_audit(2.0, 4.0))
    run_audit(AuditConfig.from_toml(folder / "audit.toml"), folder / "run")
    return folder / "run"


@pytest.fixture
def run(audited: Path, tmp_path: Path) -> Path:
    for name in ("audit.json", "report.html"):
        shutil.copy(audited / name, tmp_path)
    shutil.copytree(audited / "artifacts", tmp_path / "artifacts")
    return tmp_path


def changed(run: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The audit.json of a run alone, with a change."""
    content = json.loads((run / "audit.json").read_text())
    change(content)
    (run / "report.html").unlink()
    (run / "audit.json").write_text(json.dumps(content))
    return run / "audit.json"


def test_a_run_is_confirmed(run: Path) -> None:
    code, shown, _ = command(run)
    assert code == 0
    assert shown.splitlines()[0] == 'CONFIRMED  "ours" against "eavesdropper": supported'
    assert shown.splitlines()[-1] == f"{run / 'audit.json'}: confirmed"


def test_a_changed_verdict_is_contradicted(run: Path) -> None:
    def stands(content: dict[str, Any]) -> None:
        content["claims"][0]["verdict"] = content["verdict"] = "not refuted"

    file = changed(run, stands)
    code, shown, _ = command(file)
    assert code == 1
    assert "CONTRADICTED" in shown
    assert "not refuted; the evidence gives supported" in shown
    assert json.loads(command(file, "--json")[1])["answer"] == "contradicted"


def test_evidence_that_is_missing_is_not_checkable(run: Path) -> None:
    def without_releases(content: dict[str, Any]) -> None:
        for finding in content["findings"]:
            if finding["role"] == "declared":
                finding["releases"] = {}

    code, shown, _ = command(changed(run, without_releases))
    assert code == 2
    assert "NOT CHECKABLE" in shown
    assert "not checkable: the releases behind the most epsilon" in shown


def test_a_report_of_another_audit_is_contradicted(run: Path) -> None:
    (run / "audit.json").write_text((run / "audit.json").read_text() + "\n")
    code, shown, _ = command(run)
    assert code == 1
    assert "report.html: does not follow: it was not made from this audit.json" in shown


@pytest.mark.parametrize(
    "content, said",
    [
        ("{", "audit.json: an audit.json that is cut off after 1 bytes"),
        ("{}", "expected an audit.json, a certificate or a ledger, found another JSON file"),
        ("[]", "expected an audit.json, a certificate or a ledger, found another JSON file"),
        ("", "audit.json: empty; expected an audit.json, a certificate or a ledger"),
        ("seed = 7", "expected an audit.json, a certificate or a ledger, found neither"),
        ('{"schema_version": 2}', "schema_version 2; dpaudit verify reads version 3"),
        ('{"schema_version": 3, claims}', "an audit.json that is damaged"),
        ('{"format": "dpaudit-declaration", "fo', "the certificate of a ledger that is cut off"),
        ('{"format": "dpaudit-ledger", "vers', "a ledger that is cut off after 34 bytes"),
        ('{"schema_version": 3, "claims": 7}', "not what an audit writes"),
    ],
)
def test_another_file_is_one_line(run: Path, content: str, said: str) -> None:
    (run / "audit.json").write_text(content)
    code, shown, error = command(run)
    assert (code, shown) == (2, "")
    assert said in error
    assert error.count("\n") == 1


def test_a_folder_without_a_result_is_one_line(tmp_path: Path) -> None:
    code, shown, error = command(tmp_path)
    assert (code, shown) == (2, "")
    assert "audit.json: No such file or directory" in error


def test_replay_needs_recorded_rounds(audited: Path) -> None:
    code, shown, _ = command(audited, "--replay", "1")
    assert code == 2
    assert "transcript: not checkable: no round was recorded" in shown


def test_replay_needs_the_run_directory(run: Path) -> None:
    code, shown, error = command(run / "audit.json", "--replay", "1")
    assert (code, shown) == (2, "")
    assert "--replay needs the run directory" in error
