"""Plug-ins from packages of their own: installed, tested and audited as their tutorials say."""

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

HERE, DOCS = Path(__file__).parent, Path(__file__).parents[1] / "docs"
EXAMPLE, TUTORIAL = HERE / "example_package", DOCS / "package-a-defense.md"
FILES = ("pyproject.toml", "quiet_gossip.py", "test_quiet_gossip.py", "audit.toml")
ATTACKS, ATTACK_TUTORIAL = HERE / "example_attacks", DOCS / "write-an-attack.md"
ATTACK_FILES = ("pyproject.toml", "plain_attacks.py", "test_plain_attacks.py", "audit.toml")
SHOWN = [(EXAMPLE, TUTORIAL, name) for name in FILES]
SHOWN += [(ATTACKS, ATTACK_TUTORIAL, name) for name in ATTACK_FILES]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_from(EXAMPLE, FILES, tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def installed_attacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_from(ATTACKS, ATTACK_FILES, tmp_path_factory.mktemp("attacks"))


def installed_from(example: Path, files: tuple[str, ...], folder: Path) -> Path:
    """A copy of the package, and beside it a folder it is installed in, without the network."""
    source = folder / "source"
    source.mkdir()
    for name in files:
        shutil.copy(example / name, source)
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


@pytest.mark.slow
def test_the_package_is_audited_and_its_claim_does_not_hold(installed) -> None:
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
    attacked = [f for f in result.findings if f.role == "reconstruction" and f.world == "defense"]
    assert attacked
    assert all(f.message == "noisy-gradient" for f in attacked)
    measured = next(f.metrics for f in result.findings if f.kind == "sensitivity" and f.metrics)
    assert measured["measured over stated"].value == pytest.approx(1.0, abs=1e-6)
    verdict = "\n".join(done.stdout.splitlines()[:2])
    assert f"```text\n{verdict}\n```" in TUTORIAL.read_text()


def test_the_package_is_listed_with_its_name(installed, monkeypatch) -> None:
    monkeypatch.syspath_prepend(installed / "site")
    listed = {entry["name"]: entry for entry in catalogue("defenses").entries}
    assert listed["quiet-gossip"]["package"] == "quiet-gossip"
    assert listed["dpdl"]["package"] == "dpaudit"


def test_the_package_passes_its_own_tests(installed, monkeypatch) -> None:
    monkeypatch.syspath_prepend(installed / "site")
    monkeypatch.syspath_prepend(installed / "source")
    own = import_module("test_quiet_gossip")
    for promise in PROMISES:
        own.test_quiet_gossip_keeps(promise)


@pytest.mark.slow
def test_the_attacks_are_audited_by_the_command(
    installed_attacks,
) -> None:
    done = dpaudit(installed_attacks, "audit", "audit.toml", "--out", "../run", "--workers", "1")
    assert done.returncode == 0, done.stderr
    result = AuditResult.read(installed_attacks / "run" / "audit.json")
    ssim = {
        f.world: f.metrics["ssim"].value
        for f in result.findings
        if f.attack == "first-layer"
        and f.batch_size == 1
        and f.world != "blind"
        and f.role == "reconstruction"
    }
    assert ssim["no-defense"] > 0.999
    assert ssim["defense"] < 0.2
    (noise,) = [f for f in result.findings if f.attack == "noise-level"]
    expected = 0.05 * result.calibrated["noise_multiplier"] * 2.0 / 8
    assert noise.metrics["least noise"].value == pytest.approx(expected, rel=0.05)
    said = f"SSIM of {ssim['no-defense']:.2f} without noise, and of {ssim['defense']:.2f} under it"
    assert said in " ".join(ATTACK_TUTORIAL.read_text().split())
    assert "noise of x, measured" in (installed_attacks / "run" / "report.html").read_text()


@pytest.mark.slow
def test_the_attacks_pass_their_own_tests(installed_attacks) -> None:
    """In a process of their own, which finds the installed entry points."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=installed_attacks / "source",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(installed_attacks / "site"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("example, tutorial, name", SHOWN)
def test_the_tutorial_shows_each_file_whole_and_in_order(example, tutorial, name) -> None:
    blocks = re.findall(
        rf"^```\w+ title=\"{re.escape(name)}\"\n(.*?)^```$", tutorial.read_text(), re.M | re.S
    )
    shown = [line for block in blocks for line in block.splitlines() if line]
    assert shown == [line for line in (example / name).read_text().splitlines() if line]


def test_the_tutorial_lists_every_promise() -> None:
    text = TUTORIAL.read_text()
    for name, check in PROMISES.items():
        assert f"| {name} | {' '.join((check.__doc__ or '').split())} |" in text
