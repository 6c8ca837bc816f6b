"""What a captured program reads decides whether its audit may go on."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dpaudit.capture.audit import run_captured
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.inputs.inputs import Inputs

pytestmark = pytest.mark.usefixtures("started_servers")  # whose reads are all recorded

PROGRAM = Path(__file__).parent / "programs" / "gossip.py"
READS = """
import mmap, multiprocessing, pathlib, subprocess, sys
import numpy, torch
import helper
open("opened.txt").read()
numpy.load("array.npy")
numpy.load("mapped.npy", mmap_mode="r")
torch.load("weights.pt")
torch.load("large.pt", mmap=True)
with open("mapped.bin", "rb") as file:
    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
subprocess.run([sys.executable, "child.py"], check=True)
"""
FILES = ("opened.txt", "array.npy", "mapped.npy", "weights.pt", "large.pt", "mapped.bin")
OTHERS = ("helper.py", "child.py", "child.txt", "gossip.py")


def planted(folder: Path, code: str) -> CapturedConfig:
    """A program that reads files before it gossips."""
    (folder / "gossip.py").write_text(code + PROGRAM.read_text())
    (folder / "helper.py").touch()
    (folder / "child.py").write_text("open('child.txt').read()")
    for name in ("opened.txt", "child.txt", "mapped.bin"):
        (folder / name).write_text("1")
    for name in ("array.npy", "mapped.npy"):
        np.save(folder / name, np.zeros(3))
    for name in ("weights.pt", "large.pt"):
        torch.save({"w": torch.zeros(3)}, folder / name)
    return CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "gossip.py", "none"), "folder": folder},
            "record": {"victims": (0,), "candidates": ("present", "negated")},
            "certify": {"runs": 0},
        }
    )


@pytest.mark.slow
def test_every_file_that_a_program_reads_is_an_input(tmp_path: Path) -> None:
    config, out = planted(tmp_path, READS), tmp_path / "run"
    run_captured(config, out, cores=1)
    assert Inputs.of_log(out).doubt() is None
    for name in (*FILES, *OTHERS):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(before + b" ")
        assert Inputs.of_log(out).doubt() == f"{tmp_path / name} changed"
        (tmp_path / name).write_bytes(before)
    (tmp_path / "opened.txt").write_text("2")
    with pytest.raises(RunError, match=r"cannot resume: .*opened\.txt changed"):
        run_captured(config, out, cores=1, resume=True)


@pytest.mark.slow
def test_a_program_that_starts_others_is_not_resumed(tmp_path: Path) -> None:
    config, out = planted(tmp_path, "import os\nos.system('true')\n"), tmp_path / "run"
    run_captured(config, out, cores=1)
    with pytest.raises(RunError, match="cannot resume: it starts true, and what that reads"):
        run_captured(config, out, cores=1, resume=True)
