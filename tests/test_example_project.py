"""A repository with a defense, a claims file and a baseline: it holds, and breaks when it should."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from tests.said import without_help

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "tests" / "example_project"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, and beside it one of dpaudit, whose code is part of the content."""
    folder, ignore = tmp_path_factory.mktemp("copies"), shutil.ignore_patterns(".*")
    shutil.copytree(PROJECT, folder / "project", ignore=ignore)
    shutil.copytree(ROOT / "dpaudit", folder / "dpaudit", ignore=ignore)
    for family in ("attacks", "defenses", "recorder", "reports"):
        shutil.copytree(ROOT / family, folder / "dpaudit" / family, ignore=ignore)
    return folder / "project"


def check(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "dpaudit.commands.cli",
            "check",
            "claims.toml",
            "--workers",
            "1",
            *arguments,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(folder.parent),
            **environment,
        },
        timeout=120,
    )


@pytest.mark.slow
def test_the_example_holds_and_runs_once_while_unchanged(project: Path) -> None:
    cold = check(project)
    assert cold.returncode == 0, cold.stdout + cold.stderr
    assert "no key metric got worse by more than its error: 5 were compared" in cold.stdout
    assert "supported" in cold.stdout
    assert without_help(cold.stderr) == ""
    [audit] = (project / ".dpaudit-cache").glob("*/audit.json")
    schema = json.loads((ROOT / "docs" / "audit.schema.json").read_text())
    jsonschema.validate(json.loads(audit.read_text()), schema)
    seconds = []
    for _ in range(2):  # the first reads what the cold one left
        began = time.monotonic()
        again = check(project)
        seconds.append(time.monotonic() - began)
        assert again.stdout == cold.stdout
    assert min(seconds) < 2.0


@pytest.mark.slow
def test_halved_noise_fails_and_names_the_claim(project: Path) -> None:
    code = project / "noisy_gossip.py"
    assert "NOISE = 4.0" in code.read_text()
    code.write_text(code.read_text().replace("NOISE = 4.0", "NOISE = 2.0"))
    broken = check(project)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    [claim] = [line for line in broken.stdout.splitlines() if " is unsupported: " in line]
    assert claim.startswith("FAILS ")
    assert "Our README: (3, 1e-05)-DP for the whole run" in claim
    assert 'adversary "eavesdropper"' in claim
    assert "Claimed epsilon 3; the noise that is declared gives epsilon 7.1 at delta 1e-05" in claim
    assert "eavesdropper got worse: it is 7.102 and was 2.909" in broken.stdout
    code.write_text(code.read_text().replace("NOISE = 2.0", "NOISE = 4.0"))


@pytest.mark.slow
def test_noise_halved_behind_accounting_fails_too(project: Path) -> None:
    """The defense declares what it should draw, and draws half of it."""
    code = project / "noisy_gossip.py"
    right = code.read_text()
    wrong = right.replace('"gradient", self._noise', '"gradient", 0.5 * self._noise')
    assert wrong != right
    code.write_text(wrong)
    broken = check(project)
    code.write_text(right)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    said = "Claimed epsilon 3; the noise that is really added gives epsilon 7.1 at delta 1e-05"
    assert said in broken.stdout
    assert "eavesdropper got worse: it has no upper end and was 2.909" in broken.stdout  # void


TWO_CLAIMS = """
[[check]]
name = "two claims of one text"

[check.audit]
seed = 3
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"
defense.name = "dp-dpsgd"
defense.n_rounds = 1
defense.batch_size = 300
defense.sampling = "poisson"
defense.noise_multiplier = 1.0
attack = [{ name = "likelihood-ratio", trials = 40_000 }]
claim = [
    { text = "Theorem 1", epsilon = 0.1, delta = 1e-5 },
    { text = "Theorem 1", epsilon = 8.0, delta = 1e-5 },
]
"""


@pytest.mark.slow
def test_two_claims_of_one_text_are_told_apart(project: Path) -> None:
    (project / "two").mkdir()
    (project / "two" / "claims.toml").write_text(TWO_CLAIMS)
    done = check(project / "two", "--junit", "junit.xml", PYTHONPATH=str(project.parent))
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if '"Theorem 1: (' in line]
    broken, kept = lines
    assert broken.startswith("FAILS ")
    assert '"Theorem 1: (0.1, 1e-05)-DP' in broken
    assert kept.startswith("HOLDS ")
    assert '"Theorem 1: (8, 1e-05)-DP' in kept
    junit = (project / "two" / "junit.xml").read_text()
    assert junit.count('name="Theorem 1: (0.1, 1e-05)-DP') == 1
    assert junit.count('name="Theorem 1: (8, 1e-05)-DP') == 1
