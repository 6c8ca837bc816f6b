"""A repository is checked without a line of it being run, but for what is to be imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit.check.run import Auditor
from tests.material.servers import answered
from tests.small_audits import digits_audit

NAMES = (
    "json",
    "multiprocessing",
    "numpy",
    "pickle",
    "pydantic",
    "sitecustomize",
    "torch",
    "typer",
)
PLANTED = "import os\nos.mkdir(os.environ['MARKS'] + '/' + __name__)\nraise SystemExit(0)\n"
CLAIMS = '[[check]]\nname = "ours"\naudit = "audits/audit.toml"\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that plants modules in its root, beside the config and in a source folder."""
    (tmp_path / "marks").mkdir()
    repository = tmp_path / "repository"
    for folder in (repository, repository / "audits", repository / "src"):
        folder.mkdir()
        for name in NAMES:
            (folder / f"{name}.py").write_text(PLANTED)
    (repository / "claims.toml").write_text(CLAIMS)
    (repository / "audits" / "audit.toml").write_text(digits_audit(9.0, 8.0))
    return repository


def run(repository: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in the repository, which leaves a mark for each module of it that is run."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
    started = repository / "src" / "json.py"  # what only a prompt would run
    return subprocess.run(
        [sys.executable, *command],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
        env={
            **environment,
            "MARKS": str(repository.parent / "marks"),
            "PYTHONSTARTUP": str(started),
            "OMP_NUM_THREADS": "1",
        },
    )


def marks(repository: Path) -> list[str]:
    return sorted(path.name for path in (repository.parent / "marks").iterdir())


def test_a_careless_process_would_run_the_planted_modules(
    repository: Path,
) -> None:
    run(repository, "-c", "import pydantic")
    assert marks(repository) == ["pydantic"]


@pytest.mark.slow
def test_the_process_of_audits_starts_without_them(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    started = {"PYTHONSTARTUP": str(repository / "src" / "json.py")}
    answer = answered(
        Auditor().command, "{}", {**started, "MARKS": str(repository.parent / "marks")}
    )
    assert answer[0] == 2
    assert "validation errors for AuditJob" in answer[1]
    assert marks(repository) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["check", "claims.toml"],
        pytest.param(["audit", "audits/audit.toml", "--workers", "2"], marks=pytest.mark.slow),
    ],
)
def test_a_command_runs_none_of_them_in_any_process(repository: Path, command: list[str]) -> None:
    done = run(repository, "-P", "-m", "dpaudit.commands.cli", *command)
    assert done.returncode in (0, 1), done.stderr
    assert "ours" in done.stdout
    assert marks(repository) == []


def test_git_runs_nothing_that_a_folder_configures(repository: Path) -> None:
    """A bare repository can be part of a clone, with its configuration."""
    hook = repository / "hook.sh"
    hook.write_text('#!/bin/sh\nmkdir "$MARKS/hook"\n')
    hook.chmod(0o755)
    for command in (
        "init --bare --quiet .",
        f"config core.fsmonitor {hook}",
        "config core.bare no",
    ):
        subprocess.run(["git", *command.split()], cwd=repository, check=True)
    subprocess.run(["git", "config", "core.worktree", "."], cwd=repository, check=True)
    code = "from dpaudit.pipeline.provenance import _is_dirty; print(_is_dirty())"
    done = run(repository, "-P", "-c", code)
    assert done.stdout == "None\n", done.stderr
    assert marks(repository) == []
