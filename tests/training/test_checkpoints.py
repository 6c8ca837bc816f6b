"""StoredCheckpoint are believed only as they were written, by the job that wrote them, in their place."""

import shutil
from pathlib import Path

import pytest
import torch

from dpaudit.checkpoint import Progress
from dpaudit.training import checkpoints
from dpaudit.training.checkpoints import StoredCheckpoint
from dpaudit.training.locked_folder import Folder
from dpaudit.training.run_directory import RunDirectory

CPU = torch.device("cpu")
FILE = "checkpoints/job/a.safetensors"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE", 0.0)


def of(folder: Path, binding: str = "config, seed and code", job: str = "job") -> StoredCheckpoint:
    return StoredCheckpoint.of(Folder(folder), job, binding, CPU)


def values() -> Progress:
    tensors = {
        "x": torch.randn(3, 2, dtype=torch.float64),
        "b": torch.tensor([True, False]),
        "i": torch.tensor(7),
        "e": torch.empty(0, 4),
        "s": torch.randn(1, 4)[:, 0],
        "h": torch.randn(2).bfloat16(),
    }
    return Progress({**tensors, "same": tensors["x"]}, {"a": [0.1, float("inf"), None]})


def test_what_was_kept_comes_back_to_the_last_bit(often, tmp_path) -> None:
    kept = values()
    of(tmp_path).stage("a").keep(lambda: kept)
    last = of(tmp_path).stage("a").last()
    assert last is not None
    assert last.note == kept.note
    assert last.tensors.keys() == kept.tensors.keys()
    for name, tensor in kept.tensors.items():
        assert last.tensors[name].dtype == tensor.dtype
        assert torch.equal(last.tensors[name], tensor)
    assert of(tmp_path).stage("b").last() is None


def test_another_config_job_or_stage_does_not_believe_it(often, tmp_path) -> None:
    of(tmp_path).stage("a").keep(values)
    assert of(tmp_path, binding="another seed").stage("a").last() is None
    shutil.copytree(tmp_path / "checkpoints/job", tmp_path / "checkpoints/other")
    assert of(tmp_path, job="other").stage("a").last() is None
    (tmp_path / FILE).rename(tmp_path / "checkpoints/job/b.safetensors")
    assert of(tmp_path).stage("b").last() is None


def test_any_other_byte_is_not_believed(often, tmp_path) -> None:
    of(tmp_path).stage("a").keep(values)
    content = (tmp_path / FILE).read_bytes()
    for i in range(len(content)):
        changed = content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :]
        (tmp_path / FILE).write_bytes(changed)
        found = of(tmp_path).stage("a").last()
        assert found is None, (i, content[i - 20 : i + 20])
    for cut in (0, 7, len(content) // 2, len(content) - 1):
        (tmp_path / FILE).write_bytes(content[:cut])
        assert of(tmp_path).stage("a").last() is None


def test_a_finished_stage_is_written_with_the_first_that_is_due(tmp_path, monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now)
    job = of(tmp_path)
    for name in ("a", "b"):
        job.stage(name).keep(values)
        job.stage(name).done(values())
    assert not (tmp_path / "checkpoints").exists()
    now = checkpoints.SECONDS
    job.stage("c").keep(values)
    assert {p.stem for p in (tmp_path / "checkpoints/job").iterdir()} == {"a", "b", "c"}


def test_a_result_is_believed_only_as_it_was_written(tmp_path) -> None:
    run = RunDirectory(tmp_path)
    run.write_result("findings/a.json", [{"p": 0.01}], "this run")
    assert run.read_result("findings/a.json", "this run") == [{"p": 0.01}]
    assert run.read_result("findings/a.json", "another run") is None
    assert run.read_result("findings/b.json", "this run") is None
    path = tmp_path / "findings" / "a.json"
    path.write_text(path.read_text().replace("0.01", "0.91"))
    assert run.read_result("findings/a.json", "this run") is None
    path.write_bytes(b"\xff")
    assert run.read_result("findings/a.json", "this run") is None
