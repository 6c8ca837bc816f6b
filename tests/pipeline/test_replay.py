"""Recorded rounds that are played again, and run directories whose code is not run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dpaudit.errors import RunError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.pipeline.replay import NO_ROUND, replay
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import sealed
from dpaudit.verify.figures import Flaw
from tests.small_audits import images_audit, write_images

ONE_CORE = Runtime(cores=1)
AUDIT = images_audit("logistic", "dpdl", 3) + (
    '[[attack]]\nname = "gradient-inversion"\nmessage = "cross_gradient"\nrounds = [2, 3]\n'
    "targets = 1\nrestarts = 1\niterations = 1\nbatch_sizes = [1]\n"
)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    write_images(folder)
    (folder / "audit.toml").write_text(AUDIT)
    config = AuditConfig.from_toml(folder / "audit.toml")
    run_audit(config, folder / "run", ONE_CORE, report=False)
    return folder / "run"


@pytest.fixture
def run(audited: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(audited, tmp_path / "run"))


def replayed(run: Path, count: int = 2) -> list[Flaw]:
    return replay(run, AuditResult.read(run / "audit.json"), count, ONE_CORE)


def changed(run: Path, change: Callable[[torch.Tensor], None]) -> None:
    """A recorded message with another number, and a seal that fits."""
    directory, name = RunDirectory(run), "transcript/defense/round-000002.safetensors"
    directory.recorded()
    tensors = load_file(run / name)
    change(next(t for key, t in sorted(tensors.items()) if key.endswith("/payload")))
    (run / name).write_bytes(sealed(tensors, "", f"{directory.binding} {name}"))


def test_rounds_that_are_played_again_are_the_same_bit_for_bit(audited: Path) -> None:
    assert replayed(audited) == []


def test_one_changed_bit_is_found(run: Path) -> None:
    def next_float(payload: torch.Tensor) -> None:
        payload.view(-1)[3] = torch.nextafter(payload.view(-1)[3], torch.tensor(torch.inf))

    changed(run, next_float)
    (flaw,) = replayed(run)
    assert flaw.contradicted
    assert flaw.where == "transcript/defense, round 2"
    assert "bit for bit" in flaw.what


def test_other_versions_may_differ_by_rounding_alone(run: Path) -> None:
    def versions(content: dict[str, Any]) -> None:
        content["provenance"]["packages"]["torch"] = "1.0"

    edited(run / "audit.json", versions)
    changed(run, lambda payload: payload.mul_(1 + 1e-5))
    assert replayed(run) == []
    changed(run, lambda payload: payload.mul_(1.01))
    (flaw,) = replayed(run)
    assert "to 0.001" in flaw.what


def edited(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_a_file_that_is_not_what_the_run_wrote_is_found(run: Path) -> None:
    (run / "transcript/no-defense/round-000003.safetensors").write_bytes(b"")
    (flaw,) = replayed(run)
    assert flaw.contradicted
    assert flaw.where == "transcript/no-defense, round 3"


def test_a_run_without_recorded_rounds_cannot_be_compared(run: Path) -> None:
    shutil.rmtree(run / "transcript")
    assert replayed(run) == [Flaw("transcript", NO_ROUND, False)]


def test_the_config_of_another_run_is_found(run: Path) -> None:
    edited(run / "run.json", lambda content: content["config"].update(seed=6))
    (flaw,) = replayed(run)
    assert (flaw.where, flaw.contradicted) == ("run.json", True)


@pytest.mark.parametrize("family", ["defense", "attack"])
def test_a_class_that_a_run_names_is_not_imported(
    run: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that lies in the run directory, where it is found."""
    (run / "planted.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(run)

    def planted(content: dict[str, Any]) -> None:
        config = content["config"]
        (config[family] if family == "defense" else config[family][0])["name"] = "planted:Defense"

    edited(run / "run.json", planted)
    with pytest.raises(RunError, match="'planted:Defense' is not installed here") as raised:
        replayed(run)
    assert raised.value.code == "DPA080"


def test_a_package_inside_the_run_directory_is_not_imported(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "planted.py").write_text("raise SystemExit('imported')")
    about = run / "planted-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[dpaudit.defenses]\nplanted = planted:Defense\n")
    monkeypatch.syspath_prepend(run)
    edited(run / "run.json", lambda content: content["config"]["defense"].update(name="planted"))
    with pytest.raises(RunError, match="'planted' is not installed here"):
        replayed(run)


def test_a_captured_program_is_not_run(run: Path) -> None:
    edited(run / "run.json", lambda content: content.update(config={"program": {"command": "x"}}))
    with pytest.raises(RunError, match="of a captured program"):
        replayed(run)
