"""Checks in a folder of their own whose audits are stubs that leave a finished audit.json."""

import os
import subprocess
import sys
from pathlib import Path

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


def check(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = start(folder, *arguments, **environment)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, without_help(error)


def runs(folder: Path) -> int:
    log = folder / "runs.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def change(folder: Path, number: int) -> None:
    (folder / "code" / "mine.py").write_text(f"x = {number}\n")
