"""Of what a run or a check finds again, nothing is believed but what it wrote, whatever was changed.

Every input is a whole file changed by a generator named by kind, seed and number. What is read of
it is what was written, to the last bit, or nothing, or an error of a few lines.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.check.cache import KEPT, AuditCache, Seal
from dpaudit.checkpoint import Progress
from dpaudit.defense.transcript import Message, tensors_of
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.training.checkpoints import StoredCheckpoint
from dpaudit.training.locked_folder import Folder
from dpaudit.training.run_directory import RunDirectory
from tests.small_audits import write_images

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"
SEAL, KEY = Seal("a key of the tests alone, and no other"), "0" * 32


class Kind(NamedTuple):
    """What is written into a folder, and what is read from it again."""

    write: Callable[[Path], object]
    read: Callable[[Path], Any]  # plain values, or None where nothing is believed
    files: str  # that are changed, one at a time
    mutation: str = "of_bytes"  # beside that of bytes


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {key: (str(tensor.dtype), tensor.tolist()) for key, tensor in tensors.items()}


def write_checkpoint(folder: Path) -> None:
    tensors = {"x": torch.ones(3, 2, dtype=torch.float64), "b": torch.tensor([True, False])}
    of_the_job(folder).keep(lambda: Progress(tensors, {"k": 3, "p": [0.5, None]}))


def read_checkpoint(folder: Path) -> Any:
    last = of_the_job(folder).last()
    return None if last is None else (plain(last.tensors), last.note)


def of_the_job(folder: Path) -> StoredCheckpoint:
    return StoredCheckpoint.of(Folder(folder), "job", "config and seed", CPU).stage("a")


def write_messages(folder: Path) -> None:
    edges = torch.tensor([0, 1, 2])
    sent = {"x": Message(torch.ones(3, 4), edges, edges.flip(0), edges)}
    RunDirectory(folder).write_messages("defense", 1, None, sent)


def read_messages(folder: Path) -> Any:
    run = RunDirectory(folder)
    run.has_messages("defense", 1, None, frozenset({"x"}))
    return plain(tensors_of(run.transcript("defense", CPU).rounds[1]))


def write_found(name: str, folder: Path) -> None:
    golden = AuditResult.read(GOLDEN)
    found = {
        "findings": [finding.model_dump(mode="json") for finding in golden.findings[:3]],
        "utility": golden.utility["defense"].model_dump(mode="json"),
    }
    RunDirectory(folder).write_result("findings/job.json", found[name], "config and seed")


def read_found(folder: Path) -> Any:
    return RunDirectory(folder).read_result("findings/job.json", "config and seed")


def write_entry(folder: Path) -> None:
    cache = AuditCache(folder, SEAL)
    partial = cache.partial(KEY)
    (partial / "artifacts").mkdir(parents=True)
    for name in KEPT[:3]:
        (partial / name).write_bytes(GOLDEN.read_bytes())
    (partial / "artifacts" / "a.png").write_bytes(bytes(range(64)))
    cache.keep(KEY)


def read_entry(folder: Path) -> Any:
    found = AuditCache(folder, SEAL).find(KEY)
    return None if found is None else (found.to_json(), files_of(folder / KEY))


def files_of(folder: Path) -> dict[str, bytes]:
    there = (path for path in folder.rglob("*") if path.is_file() and path.name != "seal")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in there}


def write_ledger(folder: Path) -> None:
    AuditCache(folder, SEAL).note("ledger.json", ("a" * 64, "b" * 64))


def read_ledger(folder: Path) -> Any:
    return AuditCache(folder, SEAL).noted("ledger.json")


KINDS = {
    "capture": Kind(write_messages, read_messages, "transcript/*/*"),
    "checkpoint": Kind(write_checkpoint, read_checkpoint, "checkpoints/*/*"),
    "finding": Kind(partial(write_found, "findings"), read_found, "findings/*", "of_json"),
    "curve": Kind(partial(write_found, "utility"), read_found, "findings/*", "of_json"),
    "entry": Kind(write_entry, read_entry, f"{KEY}/**/*"),
    "ledger": Kind(write_ledger, read_ledger, "ledger.json", "of_json"),
}


@pytest.fixture
def fuzz(tmp_path: Path, mutations, inputs, wrong, monkeypatch) -> Callable[[str, int], None]:
    """Reads a kind with a changed file, as often as it has inputs, from a seed."""
    monkeypatch.setattr("dpaudit.training.checkpoints.SECONDS", 0.0)

    def each(name: str, seed: int) -> None:
        kind = KINDS[name]
        kind.write(tmp_path)
        written = kind.read(tmp_path)
        assert written is not None
        files = {p: p.read_bytes() for p in sorted(tmp_path.glob(kind.files)) if p.is_file()}
        found = {}
        for i in range(inputs[name]):
            rng = Random(f"{name} {seed} {i}")
            path = rng.choice([*files])
            how = kind.mutation if rng.random() < 0.5 else "of_bytes"
            path.write_bytes(mutations[how](files[path], rng))
            read: list[Any] = []
            fault = wrong(lambda: read.append(kind.read(tmp_path)))  # noqa: B023 (called at once)
            if fault or read not in ([], [None], [written]):
                found[i] = fault or "is believed"
            path.write_bytes(files[path])
        assert found == {}, (name, seed)
        assert kind.read(tmp_path) == written

    return each


@pytest.mark.parametrize("name", KINDS)
def test_of_changed_files_only_what_was_written_is_believed(name: str, fuzz) -> None:
    fuzz(name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 12))
@pytest.mark.parametrize("name", KINDS)
def test_of_many_changed_files_only_the_written_is_believed(name: str, seed: int, fuzz) -> None:
    fuzz(name, seed)


CONFIG = """\
seed = 5
data = { path = "images.npz", n_agents = 4 }
graph = { name = "ring" }
model = { name = "logistic" }
defense = { name = "dp-dpsgd", n_rounds = 6, batch_size = 4, noise_multiplier = 1.0 }
attack = [{ name = "canaries", canaries = 40 }]
"""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[[bool], dict], Path]:
    """An audit that makes its run or resumes it, and the folder of the run."""
    write_images(tmp_path)
    (tmp_path / "audit.toml").write_text(CONFIG)
    monkeypatch.setattr("dpaudit.training.checkpoints.SECONDS", 0.0)
    monkeypatch.setattr("dpaudit.training.checkpoints.SHARE", 0.0)
    config = AuditConfig.from_toml(tmp_path / "audit.toml")

    def audit(resume: bool) -> dict:
        result = run_audit(config, tmp_path / "run", Runtime(cores=1), "", resume)
        return {**json.loads(result.to_json()), "timing": None}

    return audit, tmp_path / "run"


@pytest.mark.slow
def test_a_run_with_a_flipped_byte_is_made_again_there(begun) -> None:
    audit, run = begun
    whole = audit(False)
    for i, path in enumerate(sorted(run.glob("findings/*"))):
        content = bytearray(path.read_bytes())
        content[Random(i).randrange(len(content))] ^= 1
        path.write_bytes(content)
        assert audit(True) == whole, path
