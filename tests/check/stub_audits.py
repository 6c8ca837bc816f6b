"""Checks in a folder of their own whose audits are stubs that leave a finished audit.json."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.check.run import Auditor
from dpaudit.commands.cli import app
from tests.material.forks import fork_orders
from tests.said import without_help

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


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(STUB), "check", "claims.toml", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GITHUB_ACTIONS": "", **environment},
    )


class Config(dict):
    """In the place of AuditConfig, whose plug-ins import torch."""

    def model_dump(self, mode: str) -> dict:
        return dict(self)

    @classmethod
    def from_table(cls, content: dict, *_: object) -> "Config":
        return cls(content)

    from_dict = from_table


def check(
    folder: Path, *arguments: str, forks: bool = True, **environment: str
) -> tuple[int, str, str]:
    """The command in this process, which starts one for its audits alone: exit code and outputs."""
    auditor = Auditor((sys.executable, str(STUB), "audit"), source=())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("dpaudit.files.kinds.AuditConfig", Config)
        patch.setattr("dpaudit.pipeline.processes._POLL_SECONDS", 0.002)
        if forks:
            fork_orders(patch)
        for name, value in {"GITHUB_ACTIONS": "", "STUB_QUICK": "1", **environment}.items():
            patch.setenv(name, value)
        done = CliRunner().invoke(app, ["check", "claims.toml", *arguments], obj=auditor)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, without_help(done.stderr)


def runs(folder: Path) -> int:
    log = folder / "runs.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def change(folder: Path, number: int) -> None:
    (folder / "code" / "mine.py").write_text(f"x = {number}\n")
