"""A defense from a package of its own: installed, checked and audited as its tutorial says."""

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dpaudit.commands.catalogue import catalogue
from dpaudit.conformance.promises import PROMISES
from dpaudit.files.result import AuditResult

EXAMPLE = Path(__file__).parent / "example_package"
TUTORIAL = Path(__file__).parents[1] / "docs" / "write-a-defense.md"
FILES = ("pyproject.toml", "quiet_gossip.py", "test_quiet_gossip.py", "audit.toml")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, and beside it a folder it is installed in, without the network."""
    folder = tmp_path_factory.mktemp("example")
    source = folder / "source"
    source.mkdir()
    for name in FILES:
        shutil.copy(EXAMPLE / name, source)
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *offline]
    done = subprocess.run(
        [*command, "--target", str(folder / "site"), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def dpaudit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dpaudit.commands.cli", *arguments],
        cwd=folder / "source",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"},
    )


def test_the_package_is_audited_by_the_command_and_its_claim_does_not_hold(installed) -> None:
    done = dpaudit(installed, "audit", "audit.toml", "--out", "../run", "--workers", "1")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    result = AuditResult.read(installed / "run" / "audit.json")
    assert result.verdict == "unsupported"
    assert result.config["defense"]["name"] == "quiet-gossip"
    assert result.calibrated["noise_multiplier"] == pytest.approx(1.9, abs=0.1)
    report = (installed / "run" / "report.html").read_text()
    assert report.startswith("<!DOCTYPE html>")
    assert "quiet gossip" in report
    attacked = [f for f in result.findings if f.kind == "reconstruction" and f.world == "defense"]
    assert attacked
    assert all(f.message == "noisy-gradient" for f in attacked)
    measured = next(f.metrics for f in result.findings if f.kind == "sensitivity" and f.metrics)
    assert measured["measured over stated"].value == pytest.approx(1.0, abs=1e-6)
    verdict = "\n".join(done.stdout.splitlines()[:2])
    assert f"```text\n{verdict}\n```" in TUTORIAL.read_text()


def test_the_package_is_listed_with_its_name(installed, monkeypatch) -> None:
    monkeypatch.syspath_prepend(installed / "site")
    listed = {entry["name"]: entry for entry in catalogue("defenses")}
    assert listed["quiet-gossip"]["package"] == "quiet-gossip"
    assert listed["dpdl"]["package"] == "dpaudit"


def test_the_package_passes_its_own_tests(installed, monkeypatch) -> None:
    monkeypatch.syspath_prepend(installed / "site")
    monkeypatch.syspath_prepend(installed / "source")
    own = import_module("test_quiet_gossip")
    for promise in PROMISES:
        own.test_quiet_gossip_keeps(promise)


@pytest.mark.parametrize("name", FILES)
def test_the_tutorial_shows_each_file_whole_and_in_order(name) -> None:
    blocks = re.findall(
        rf"^```\w+ {re.escape(name)}\n(.*?)^```$", TUTORIAL.read_text(), re.M | re.S
    )
    shown = [line for block in blocks for line in block.splitlines() if line]
    assert shown == [line for line in (EXAMPLE / name).read_text().splitlines() if line]


def test_the_tutorial_lists_every_promise() -> None:
    text = TUTORIAL.read_text()
    for name, check in PROMISES.items():
        assert f"| {name} | {' '.join((check.__doc__ or '').split())} |" in text
