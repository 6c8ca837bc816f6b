"""What happens to an audit's folder and processes: shared, moved, killed, full. Nothing is lost."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.errors import RunError
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, attack_again, run_audit
from dpaudit.training.run_directory import RunDirectory
from tests.said import without_help
from tests.small_audits import images_audit, write_images
from tests.some_fast import fast_if

pytestmark = pytest.mark.usefixtures("no_report")

CONFIG = (
    images_audit("logistic", "dp-dpsgd", 6)
    + """\
[[claim]]
text = "Theorem 1"
epsilon = 5.0
delta = 1e-5
[[threat_model]]
name = "eavesdropper"
"""
)
ATTACKS = {
    "gradient-inversion": 'message = "noisy-gradient"\nrounds = [6]\ntargets = 1\niterations = 30\n',
    "likelihood-ratio": "trials = 60\n",
    "sensitivity": "points = 6\nrestarts = 2\nsteps = 2\n",
    "mutual-information": 'message = "x"\ntrials = 40\nn_permutations = 5\nn_splits = 2\n',
    "canaries": "canaries = 40\n",
}


def config_with(*attacks: str) -> str:
    return CONFIG + "".join(f'[[attack]]\nname = "{name}"\n{ATTACKS[name]}' for name in attacks)


def of_two_rounds(text: str) -> str:
    return text.replace("rounds = 6", "rounds = 2").replace("rounds = [6]", "rounds = [2]")


ALL = config_with(*ATTACKS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with audit.toml and the 60 + 20 images it names; of two rounds."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path)
    (tmp_path / "audit.toml").write_text(of_two_rounds(config_with()))
    return tmp_path


@pytest.fixture
def audited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with a run of it, of no claim; its report is not drawn."""
    (folder / "audit.toml").write_text(of_two_rounds(CONFIG[: CONFIG.index("[[claim]]")]))
    monkeypatch.setattr("dpaudit.reports.html.render", lambda *_: "")
    assert audit()[0] == 0
    return folder


def said(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command in this process."""
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, without_help(result.stderr)


def audit(*options: str) -> tuple[int, str]:
    return said("audit", "audit.toml", "--out", "run", "--workers", "1", *options)


def started(*arguments: str, limit: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dpaudit.commands.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=limit,
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


class Stopped(Exception):
    """Raised in the middle of a run, where a kill would end it."""


def run(folder: Path, out: str, resume: bool = False, stop: str = "", at: int = 0) -> list[int]:
    """One audit, ended at a report of a job if asked for; what that job reported."""
    seen: list[int] = []

    def report(what: str, done: int, total: int) -> None:
        if total and stop and stop in what:
            seen.append(done)
            if len(seen) == at:
                raise Stopped

    config = AuditConfig.from_toml(folder / "audit.toml")
    with pytest.raises(Stopped) if at else nullcontext():
        run_audit(config, folder / out, Runtime(cores=1), "", resume, report)
    return seen


@pytest.fixture
def often(monkeypatch) -> None:
    """Every step is kept."""
    monkeypatch.setattr("dpaudit.training.checkpoints.SECONDS", 0.0)
    monkeypatch.setattr("dpaudit.training.checkpoints.SHARE", 0.0)


LONG = {  # the report at which it is ended, and how many need not be made again
    "likelihood-ratio": (9, 6),  # in the second of three stages of one block each
    "sensitivity": (5, 4),  # it says first how far it was
    "mutual-information": (8, 8),
    "canaries": (5, 5),
    "gradient-inversion": (2, 2),
}


IN_ATTACKS = {*LONG} - {"gradient-inversion"}  # fast in tests/attacks/test_resume.py


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack, at, kept",
    [
        pytest.param(name, *steps, marks=[pytest.mark.slow] * (name in IN_ATTACKS))
        for name, steps in LONG.items()
    ],
)
def test_an_attack_goes_on_where_it_was_killed(folder, often, attack, at, kept) -> None:
    text = config_with(attack)
    (folder / "audit.toml").write_text(text if attack in IN_ATTACKS else of_two_rounds(text))
    whole = run(folder, "whole", stop=attack)
    run(folder, "run", stop=attack, at=at)
    assert list((folder / "run" / "checkpoints").glob(f"*{attack}*/*.safetensors"))
    again = run(folder, "run", resume=True, stop=attack)
    assert len(again) <= len(whole) - kept
    assert numbers(folder / "run") == numbers(folder / "whole")


def test_every_command_that_writes_refuses_a_folder_in_use(audited) -> None:
    before = (audited / "run" / "audit.json").read_bytes()
    with RunDirectory(audited / "run").held():
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
    assert (audited / "run" / "audit.json").read_bytes() == before
    assert said("report", "run")[0] == 0


def endless(folder: Path) -> None:
    """An audit.toml whose training does not end before it is killed."""
    text = config_with().replace("n_rounds = 6", "n_rounds = 1_000_000")
    (folder / "audit.toml").write_text(text)


@pytest.mark.slow
def test_the_second_audit_into_a_folder_leaves_the_first(folder) -> None:
    endless(folder)
    first = started("audit", "audit.toml", "--out", "run", "--workers", "1")
    try:
        wait_until((folder / "run" / "run.json").exists, first)
        begun = (folder / "run" / "run.json").read_bytes()
        code, error = audit("--seed", "6")
        assert (code, error.count("\n")) == (2, 1), error
        [command] = children(first.pid)  # whose exit code the first process gives
        assert f"run: in use by another dpaudit (process {command})" in error
        assert (folder / "run" / "run.json").read_bytes() == begun
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_audit_whose_folder_moves_away_writes_no_more(folder, workers) -> None:
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


@pytest.mark.slow
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


def workers_of(pid: int) -> list[int]:
    """Worker processes of an audit: what its server of forks has forked."""
    those = [p for p in children(pid) if b"forkserver" in Path(f"/proc/{p}/cmdline").read_bytes()]
    return those[1:]


@pytest.mark.slow
def test_a_killed_worker_is_one_line_and_the_rest_goes_on(folder) -> None:
    (folder / "audit.toml").write_text(config_with().replace("n_rounds = 6", "n_rounds = 1_000"))
    process = started("audit", "audit.toml", "--out", "run", "--workers", "2")
    wait_until((folder / "run" / "progress.json").exists, process)
    wait_until(lambda: len(workers_of(process.pid)) == 2, process)
    workers = workers_of(process.pid)
    os.kill(workers[-1], signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    lines = without_help(error).splitlines()
    told = [
        line for line in lines if not line.startswith(("about ", "at least about "))
    ]  # its time
    assert (process.returncode, len(told)) == (2, 1), error
    assert "a worker process was killed, perhaps for lack of memory" in told[0]
    assert not [pid for pid in workers if alive(pid)]
    assert audit("--resume")[0] in (0, 1)


def whole_files_only(path: Path) -> None:
    assert not list(path.rglob(".*.partial"))
    assert all(json.loads(file.read_text()) is not None for file in path.rglob("*.json"))
    assert all(load_file(file) for file in path.rglob("*.safetensors"))


@pytest.mark.parametrize("writes", fast_if((7).__eq__, [0, 1, 2, 4, 7, 10]))
def test_a_full_disk_is_one_line_and_nothing_is_lost(folder, often, monkeypatch, writes) -> None:
    left = writes

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (folder / "audit.toml").write_text(config_with())
    run(folder, "whole")
    monkeypatch.setattr(os, "fsync", full)
    code, error = audit()
    assert (code, error.count("\n")) == (2, 1), error
    assert "cannot write: No space left on device" in error
    whole_files_only(folder / "run")
    left = 10**6
    assert audit(*(["--resume"] if (folder / "run" / "run.json").exists() else []))[0] in (0, 1)
    assert numbers(folder / "run") == numbers(folder / "whole")


@pytest.mark.slow
def test_files_that_may_not_grow_are_one_line(folder) -> None:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    process = started("audit", "audit.toml", "--out", "run", "--workers", "1", limit=small)
    _, error = process.communicate(timeout=120)
    line, advice = error.splitlines()
    assert process.returncode == 2
    assert line == "error[DPA016]: run/run.json: cannot write: File too large"
    assert advice.startswith("help: ")
    whole_files_only(folder / "run")


def test_a_folder_that_cannot_be_written_is_one_line(audited, monkeypatch) -> None:
    def read_only(path: object, flags: int, mode: int = 0o777, **where: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("dpaudit.training.locked_folder.os.open", read_only)
    for command in (
        ("audit", "audit.toml", "--out", "run"),
        ("audit", "audit.toml", "--out", "run", "--resume"),
        ("attack", "run"),
        ("report", "run"),
    ):
        code, error = said(*command)
        assert (code, error) == (2, "error: run: cannot write: Read-only file system\n")


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing(folder, often, monkeypatch) -> None:
    run(folder, "whole")
    rng = np.random.default_rng(0)
    monkeypatch.setattr(time, "time", lambda: float(rng.uniform(0, 4e9)))
    run(folder, "run", stop="training, no-defense", at=2)
    for path in [folder / "run", *(folder / "run").rglob("*"), folder / "images.npz"]:
        os.utime(path, (0, 4e9))
    run(folder, "run", resume=True)
    assert numbers(folder / "run") == numbers(folder / "whole")


@pytest.mark.slow
def test_a_result_that_was_edited_between_is_made_again(folder, often) -> None:
    (folder / "audit.toml").write_text(config_with("canaries", "sensitivity"))
    run(folder, "whole")
    run(folder, "run", stop="sensitivity", at=2)
    (found,) = (folder / "run" / "findings").glob("*canaries*.json")
    found.write_text(edited := found.read_text().replace('"value": 5.0', '"value": 500.0'))
    assert '"value": 500.0' in edited
    assert run(folder, "run", resume=True, stop="canaries")
    assert numbers(folder / "run") == numbers(folder / "whole")


@pytest.mark.slow
def test_findings_of_other_options_are_not_taken(folder) -> None:
    text = config_with("canaries")
    (folder / "audit.toml").write_text(text)
    config = AuditConfig.from_toml(folder / "audit.toml")
    first = run_audit(config, folder / "run", Runtime(cores=1), text)
    edited = text.replace("canaries = 40", "canaries = 50")
    (folder / "run" / "config.toml").write_text(edited)
    assert attack_again(folder / "run", Runtime(cores=1)).findings != first.findings
    again = run_audit(config, folder / "run", Runtime(cores=1), text, resume=True)
    assert again.findings == first.findings


def test_another_code_is_not_gone_on_with(folder, monkeypatch) -> None:
    run(folder, "run", stop="training, no-defense", at=2)
    monkeypatch.setattr("dpaudit.pipeline.provenance.own_source", lambda: ())
    code, error = audit("--resume")
    assert (code, error.count("\n")) == (2, 1), error
    assert "cannot resume: not as in the run that is in it: the code of dpaudit\n" in f"{error}\n"
    _, text = (folder / "audit.toml").read_text().split("\n", 1)
    (folder / "audit.toml").write_text(f"seed = 77\n{text}")
    assert "is in it: config.seed, the code of dpaudit" in audit("--resume")[1]


EACH, SECONDS = 5, 12.0  # kills of one audit before it is let finish, each within this time


def killed_at_random(seed: int, *command: str) -> None:
    """A command, ``EACH`` times begun and killed, and then let finish."""
    rng = random.Random(seed)
    for kill in range(EACH + 1):
        options = ["--workers", str(rng.choice([1, 2]))] if command[0] == "audit" else []
        begun = Path("run/run.json").exists() and command[0] == "audit"
        process = started(*command, *options, *(["--resume"] if begun else []))
        if kill < EACH:
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, SECONDS))
            process.kill()
        _, error = process.communicate(timeout=600)
        assert process.returncode in (0, 1, -signal.SIGKILL), error


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_audits_that_are_killed_at_random_moments_lose_nothing(folder, seed) -> None:
    (folder / "audit.toml").write_text(ALL.replace("n_rounds = 6", "n_rounds = 300"))
    run(folder, "whole")
    killed_at_random(seed, "audit", "audit.toml", "--out", "run")
    assert numbers(folder / "run") == numbers(folder / "whole")
    whole_files_only(folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_checks_that_are_killed_at_random_moments_lose_nothing(folder, seed) -> None:
    (folder / "audit.toml").write_text(config_with("canaries", "sensitivity"))
    (folder / "claims.toml").write_text('[[check]]\nname = "one"\naudit = "audit.toml"\n')
    run(folder, "whole")
    killed_at_random(seed, "check", "claims.toml")
    (entry,) = (folder / ".dpaudit-cache").glob("*/audit.json")
    found, whole = (json.loads(p.read_text()) for p in (entry, folder / "whole/audit.json"))
    for key in ("claims", "findings", "utility", "verdict"):
        assert found[key] == whole[key]
