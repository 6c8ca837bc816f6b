"""The pinned packages have no known vulnerability, where a database of advisories can be asked."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNREACHABLE = ("ConnectionError", "resolve", "timed out", "Max retries")


@pytest.mark.slow
def test_no_advisory_is_known_for_what_constraints_pin() -> None:
    program = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which(
        "pip-audit"
    )
    if program is None:
        pytest.skip("pip-audit is not installed")
    command = [
        program,
        "-r",
        "constraints.txt",
        "--no-deps",
        "--disable-pip",
        "--progress-spinner=off",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    found = "known vulnerabilit" in done.stderr
    if done.returncode and not found and any(word in done.stderr for word in UNREACHABLE):
        pytest.skip(f"no database of advisories: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
