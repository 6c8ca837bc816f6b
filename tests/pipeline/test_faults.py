"""What happens to an audit's folder and processes: shared, moved, killed, full. Nothing is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.errors import RunError
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.training.run_directory import RunDirectory

CONFIG = """\
seed = 5
[data]
path = "images.npz"
n_agents = 4
[graph]
name = "ring"
[model]
name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 6
batch_size = 4
noise_multiplier = 1.0
[[claim]]
text = "Theorem 1"
epsilon = 5.0
delta = 1e-5
[[threat_model]]
name = "eavesdropper"
"""
ATTACKS = {
    "gradient-inversion": 'message = "gradient"\nrounds = [3, 6]\ntargets = 2\niterations = 12\n',
    "likelihood-ratio": "trials = 300\n",
    "sensitivity": "points = 6\nrestarts = 2\nsteps = 2\n",
    "mutual-information": 'message = "x"\ntrials = 40\nn_permutations = 5\nn_splits = 2\n',
    "canaries": "canaries = 40\n",
}


def config_with(*attacks: str) -> str:
    return CONFIG + "".join(f'[[attack]]\nname = "{name}"\n{ATTACKS[name]}' for name in attacks)


ALL = config_with(*ATTACKS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with audit.toml and the 60 + 20 images it names."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (80, 8, 8), dtype=np.uint8), np.arange(80) % 4
    np.savez(tmp_path / "images.npz", x=x[:60], y=y[:60], x_test=x[60:], y_test=y[60:])
    (tmp_path / "audit.toml").write_text(config_with())
    return tmp_path


def said(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command in this process."""
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stderr


def audit(*options: str) -> tuple[int, str]:
    return said("audit", "audit.toml", "--out", "run", "--workers", "1", *options)


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dpaudit.commands.cli", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def numbers(path: Path) -> dict:
    """audit.json without what differs between two runs."""
    content = json.loads((path / "audit.json").read_text())
    del content["timing"]
    return content


def test_every_command_that_writes_refuses_a_folder_in_use(folder) -> None:
    assert audit()[0] in (0, 1)
    before = (folder / "run" / "audit.json").read_bytes()
    with RunDirectory(folder / "run").held():
        for command in (
            ("audit", "audit.toml", "--out", "run"),
            ("audit", "audit.toml", "--out", "run", "--resume"),
            ("attack", "run"),
            ("report", "run"),
        ):
            code, error = said(*command)
            assert (code, error.count("\n")) == (2, 1), error
            assert f"run: in use by another dpaudit (process {os.getpid()})" in error
        assert said("report", "run", "--out", "elsewhere.html")[0] == 0
    assert (folder / "run" / "audit.json").read_bytes() == before
    assert said("report", "run")[0] == 0


def endless(folder: Path) -> None:
    """An audit.toml whose training does not end before it is killed."""
    text = config_with().replace("n_rounds = 6", "n_rounds = 1_000_000")
    (folder / "audit.toml").write_text(text)


def test_the_second_of_two_audits_into_one_folder_does_not_touch_the_first(folder) -> None:
    endless(folder)
    first = started("audit", "audit.toml", "--out", "run", "--workers", "1")
    wait_until((folder / "run" / "run.json").exists, first)
    begun = (folder / "run" / "run.json").read_bytes()
    code, error = audit("--seed", "6")
    assert (code, error.count("\n")) == (2, 1), error
    assert f"run: in use by another dpaudit (process {first.pid})" in error
    assert (folder / "run" / "run.json").read_bytes() == begun
    first.kill()
    first.communicate()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_audit_whose_folder_moves_away_says_so_and_writes_nothing_more(folder, workers) -> None:
    def move(what: str, done: int, total: int) -> None:
        if (folder / "run").exists() and done > 2:
            (folder / "run").rename(folder / "moved")
            shutil.rmtree(folder / "moved" / "transcript", ignore_errors=True)

    (folder / "audit.toml").write_text(config_with("likelihood-ratio"))
    config = AuditConfig.from_toml(folder / "audit.toml")
    with pytest.raises(RunError, match="run: moved, replaced or emptied while the run was under"):
        run_audit(config, folder / "run", Runtime(cores=workers), on_progress=move)
    assert not (folder / "run").exists()
    assert not (folder / "moved" / "audit.json").exists()


def children(pid: int) -> list[int]:
    """Of a process, and theirs."""
    try:
        own = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return own + [grandchild for child in own for grandchild in children(child)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_outlives_a_killed_audit(folder) -> None:
    endless(folder)
    process = started("audit", "audit.toml", "--out", "run", "--workers", "2")
    wait_until((folder / "run" / "progress.json").exists, process)
    those = children(process.pid)
    assert len(those) >= 2
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 1
    while any(map(alive, those)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in those if alive(pid)]
