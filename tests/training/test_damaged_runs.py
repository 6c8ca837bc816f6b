"""A run directory that was edited or damaged: one line, and never a run that goes on from it."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dpaudit.data.datasets import Dataset
from dpaudit.data.partition import split
from dpaudit.defense.contract import Setting
from dpaudit.defense.transcript import Message
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.errors import RunError
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import NOTHING_RECORDED, train

CPU = torch.device("cpu")
SENT = {
    "payload": torch.zeros(2, 3),
    "senders": torch.tensor([0, 1]),
    "receivers": torch.tensor([1, 0]),
    "rows": torch.tensor([0, 1]),
}
CAPTURE = "transcript/defense/round-000001.safetensors"


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "huge header":
        path.write_bytes(struct.pack("<Q", 2**40) + content[8:])
    elif how == "terabyte":
        header = json.dumps({"x": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}})
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 100)
    else:
        path.write_bytes({"empty": b"", "text": b"<html>"}[how])


@pytest.mark.parametrize("how", ["cut", "huge header", "terabyte", "empty", "text"])
def test_a_damaged_capture_is_one_line(tmp_path: Path, how: str) -> None:
    run = RunDirectory(tmp_path)
    run.write_messages("defense", 1, None, {"x": Message(**SENT)})
    damaged(tmp_path / CAPTURE, how)
    with pytest.raises(RunError, match="missing or damaged"):
        run.read_messages("defense", 1, None, CPU)
    with pytest.raises(RunError, match="missing or damaged"):
        run.has_messages("defense", 1, None, frozenset({"x"}))


@pytest.mark.parametrize(
    "field, value",
    [
        ("payload", None),
        ("rows", None),
        ("rows", torch.tensor([0, 2])),
        ("rows", torch.tensor([0, -1])),
        ("senders", torch.tensor([0.0, 1.0])),
        ("receivers", torch.tensor([1, 0, 2])),
        ("payload", torch.zeros(2)),
        ("payload", torch.zeros(2, 3, dtype=torch.int64)),
    ],
)
def test_tensors_that_do_not_fit_are_no_message(tmp_path: Path, field: str, value) -> None:
    run = RunDirectory(tmp_path)
    run.write_messages("defense", 1, None, {"x": Message(**SENT)})
    changed = {f"x/{name}": tensor for name, tensor in {**SENT, field: value}.items()}
    save_file({k: v for k, v in changed.items() if v is not None}, tmp_path / CAPTURE)
    with pytest.raises(RunError, match="missing or damaged: it is not what the run wrote"):
        run.read_messages("defense", 1, None, CPU)


def test_a_file_beside_the_transcript_is_no_round(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_messages("defense", 1, None, {"x": Message(**SENT)})
    for name in ("round-1x", "round-0", "round-000002-batch-1"):
        (tmp_path / f"transcript/defense/{name}.safetensors").write_bytes(b"")
    assert list(run.transcript("defense", CPU).rounds) == [1]


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.popitem(),
        lambda tensors: tensors.update(more=torch.zeros(1)),
        lambda tensors: tensors.update({next(iter(tensors)): torch.zeros(1)}),
        "",
        "[1]",
        '["1", []]x',
        "[99, []]",
        "[-1, []]",
        "[2, [[1, [0.5], null]]]",
        "[2, [[2, [0.5], null, 0.1], [1, [0.5], null, 0.1]]]",
        "[" * 5000,
    ],
    ids=range(11),
)
def test_a_checkpoint_of_something_else_is_not_gone_on_from(
    tmp_path: Path,
    dataset: Dataset,
    streams: Streams,
    change: Callable | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpaudit.training.checkpoints.SECONDS", 0.0)
    monkeypatch.setattr("dpaudit.training.checkpoints.SHARE", 0.0)
    single = replace(dataset, x=dataset.x.float(), x_test=dataset.x_test.float())
    parts = split(dataset.y.numpy(), 4, "even", np.random.default_rng(5))
    problem = Classification(single, parts, "logistic", CPU)
    setting = Setting(build_graph("ring", 4), tuple(parts.sizes.tolist()), problem.gradients.d)
    defense = DPDPSGD(noise_multiplier=1.0, n_rounds=3, batch_size=4)
    run, played = RunDirectory(tmp_path), list[int]()

    def trained():
        played.clear()
        nothing = (NOTHING_RECORDED, run, "defense", lambda done, total: played.append(done))
        return train(defense, problem, setting, streams, *nothing)

    whole = trained()
    assert trained() == whole
    assert played == []  # the checkpoint was gone on from
    path = tmp_path / "checkpoints/defense/all.safetensors"
    with safe_open(path, "pt") as file:
        about, tensors = dict(file.metadata()), load_file(path)
    if isinstance(change, str):
        about["note"] = change
    else:
        change(tensors)
    save_file(tensors, path, about)
    assert trained() == whole
    assert played == [1, 2, 3]


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    for name in ("n" * 300, "a\0b"):
        for resume in (False, True):
            begun = RunDirectory(tmp_path / name).begun("", {}, resume)
            with pytest.raises(RunError, match="cannot write"), begun:
                pass
