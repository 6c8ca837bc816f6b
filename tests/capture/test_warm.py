"""Worlds that are forked where a simulation first calls the tap: the evidence of fresh starts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.program import Program
from dpaudit.capture.runs import ProgramRun
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.world import Change, World
from dpaudit.recorder import warm
from dpaudit.recorder.player import RAW

pytestmark = pytest.mark.usefixtures("forked_servers")

PROGRAM = """
import random, sys
import numpy as np
import torch
from dpaudit import tap

open(__file__ + ".starts", "a").write("1")
{before}
np.random.seed(np.random.randint(9) + random.randrange(9))  # of this world's seed
rng, weight = np.random.default_rng(3), torch.randn(3)
x = torch.from_numpy(rng.normal(size=(2, 4, 3))).float()
for k in range(3):
    for agent in range(2):
        batch = tap.batch(agent, x[agent])
        noise = tap.noise(agent, "z", torch.randn(3) + float(np.random.normal()), 1.0)
        more = random.gauss(0, 1) + rng.normal() {after}
        tap.send(agent, 1 - agent, "x", (batch @ weight).sum() + weight + noise + more)
"""
FAMILY = {f"{agent}/0/z": "gaussian" for agent in range(2)}


def played(folder: Path, text: str) -> tuple[list[Any], int]:
    """What four worlds leave, without times and process ids, and how often the program started."""
    folder.mkdir()
    (folder / "program.py").write_text(text)
    config = CapturedConfig.model_validate(
        {"program": {"command": ("python", "program.py"), "folder": folder}}
    )
    tape, change = folder / "tape", Change(agent=0, batch=2, how="negated")

    def raw(run: ProgramRun) -> list[Any]:
        left = []
        for log in sorted((run.world.out / RAW).glob("*.log")):
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            for line in lines:
                line.pop("time", None)
            del lines[0]["pid"]
            left.append((lines, log.with_suffix(".bin").read_bytes()))
        return left

    def plain(run: ProgramRun) -> list[Any]:
        run.write_tape(tape)
        return raw(run)

    with Program(config, folder / "scratch", cores=1).running() as program:
        found: list[Any] = program.each([World(out=tape, seed=5)], plain)
        replay = World(out=tape, seed=5, tape=tape / "tape.safetensors")
        worlds: Sequence[World] = (
            replay,
            replay.model_copy(update={"changes": (change,), "keeps_records": True}),
            replay.model_copy(update={"fresh": FAMILY, "last": {0: 2, 1: 1}}),
        )
        found += program.each(worlds, raw)
    return found, len((folder / "program.py.starts").read_text())


def assert_equal_to_fresh_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: int, before: str, after: str = ""
) -> None:
    text = PROGRAM.format(before=before, after=after)
    found, n = played(tmp_path / "forked", text)
    monkeypatch.setattr(warm, "_SELF", Path("/nowhere"))
    anew, n_anew = played(tmp_path / "anew", text)
    assert all(len(left) == 1 for left in anew)
    assert len({str(left) for left in anew}) == 4
    assert found == anew
    assert (n, n_anew) == (starts, 4)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        pytest.param(
            "torch.ones(2, requires_grad=True).sum().backward()", "", marks=pytest.mark.slow
        ),
        pytest.param(
            "file = open(__file__); file.read(10)", "+ ord(file.read(1))", marks=pytest.mark.slow
        ),
    ],
    ids=["plain", "autograd", "file"],
)
def test_forked_worlds_are_those_of_fresh_starts_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    assert_equal_to_fresh_starts(tmp_path, monkeypatch, 2, before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
            "",
            marks=pytest.mark.slow,
        ),
        ("file = open(__file__ + '.out', 'w+')", "+ file.write('1') + file.tell()"),
        pytest.param(
            "import mmap; shared = mmap.mmap(-1, 1)",
            "+ shared[0]; shared[0] += 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import subprocess; child = subprocess.Popen(['true'])",
            "+ child.wait()",
            marks=pytest.mark.slow,
        ),
        pytest.param("import socket; pair = socket.socketpair()", "", marks=pytest.mark.slow),
    ],
    ids=["thread", "file", "memory", "child", "socket"],
)
def test_a_program_of_which_a_fork_is_not_all_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    assert_equal_to_fresh_starts(tmp_path, monkeypatch, 5, before, after)
