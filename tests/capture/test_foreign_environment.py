"""Programs of another environment than dpaudit's: a Python that holds NumPy and nothing else."""

import importlib.util
import json
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

from dpaudit.capture.audit import run_captured
from dpaudit.capture.draft import draft
from dpaudit.capture.run import Options, capture
from dpaudit.capture.world_files import write_world
from dpaudit.commands.cli import app
from dpaudit.errors import ConfigError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.interpreter import interpreter
from dpaudit.files.recorded import DRAFT
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.files.world import World
from dpaudit.recorder import player, ranks
from dpaudit.recorder.log import Log
from dpaudit.recorder.start import AfterImport

pytestmark = pytest.mark.usefixtures("started_servers")
EXAMPLE = Path(__file__).parents[2] / "examples" / "numpy-gossip"
OF_THE_BATCH = """\
    total = x.T @ (1 / (1 + np.exp(-x @ w)) - y)
    norm = np.linalg.norm(total)
    return total * min(1.0, len(x) * CLIP / norm)
"""
OF_EACH_RECORD = """\
    each = (1 / (1 + np.exp(-x @ w)) - y)[:, None] * x
    norms = np.linalg.norm(each, axis=1, keepdims=True)
    return (each * np.minimum(1.0, CLIP / norms)).sum(axis=0)
"""


def test_the_environment_has_numpy_and_no_torch(numpy_alone: Path, tmp_path: Path) -> None:
    code = "import numpy, importlib.util as u; print(*map(u.find_spec, ('torch', 'dpaudit')))"
    done = subprocess.run(
        [numpy_alone, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None None\n"


def audited(tmp_path: Path, numpy_alone: Path, text: str) -> AuditResult:
    (tmp_path / "tapped.py").write_text(text)
    (tmp_path / "captured.toml").write_text(
        (EXAMPLE / "captured.toml")
        .read_text()
        .replace('# python = "env/bin/python"', f'python = "{numpy_alone}"')
        .replace("runs = 100", "runs = 0")
    )
    config = CapturedConfig.from_toml(tmp_path / "captured.toml")
    return run_captured(config, tmp_path / "out", cores=1)


def largest_mu(result: AuditResult) -> float | None:
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    return measured.value(Name.LARGEST_MU_OF_A_ROUND)


def test_a_planted_fault_is_found_where_there_is_no_torch(
    tmp_path: Path, numpy_alone: Path
) -> None:
    """The largest of what a record moves in the first round, whatever it becomes, in closed form."""
    result = audited(tmp_path, numpy_alone, (EXAMPLE / "tapped.py").read_text())
    assert result.verdict is Verdict.UNSUPPORTED
    example = runpy.run_path(str(EXAMPLE / "gossip.py"))
    x, y = example["records_of"](np.random.default_rng(1))
    w = np.zeros(x.shape[1])
    moved = []
    for factor, flip in ((1, False), (10, False), (-10, False), (1, True)):
        there, labels = x.copy(), y.copy()
        there[0] *= factor
        labels[0] = 1 - y[0] if flip else y[0]
        with_it, without = (example["gradient"](w, there[i:], labels[i:]) for i in (0, 1))
        moved.append(np.linalg.norm(with_it - without))
    mu = largest_mu(result)
    assert mu is not None
    assert mu >= max(moved) * (1 - 1e-6) > 1


@pytest.mark.slow
def test_a_right_program_is_measured_at_its_claim(tmp_path: Path, numpy_alone: Path) -> None:
    right = (EXAMPLE / "tapped.py").read_text().replace(OF_THE_BATCH, OF_EACH_RECORD)
    assert OF_EACH_RECORD in right
    result = audited(tmp_path, numpy_alone, right)
    assert largest_mu(result) == pytest.approx(1.0, abs=1e-6)
    assert result.verdict is not Verdict.UNSUPPORTED
    assert "does not contradict it" in result.claims[0].reason


DRAWS = """
import random
import numpy as np
from dpaudit_recorder import tap
rng, old = np.random.default_rng(3), np.random.RandomState(4)
np.random.seed(5)
random.seed(6)
drawn = [rng.normal(1.0, 2.0, 3), rng.laplace(scale=4.0, size=2), old.standard_normal(2)]
drawn += [np.random.normal(size=2), np.random.randint(9), rng.permutation(4)]
drawn += [random.gauss(1.0, 3.0), random.random(), random.sample(range(9), 3)]
print(drawn, isinstance(rng, np.random.Generator), isinstance(old, np.random.RandomState))
tap.send(0, 1, "x", [np.ones(2, np.float16), 1.5, {"b": np.arange(3)}])
"""


def test_draws_are_recorded_and_changed_in_no_bit(
    tmp_path: Path, numpy_alone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = capture(["python", "-c", DRAWS], tmp_path / "out", Options(python=numpy_alone))
    recorded = capfd.readouterr().out
    alone = DRAWS.replace("from dpaudit_recorder import tap", "").partition("tap.send")[0]
    assert (
        subprocess.run([numpy_alone, "-c", alone], capture_output=True, text=True).stdout
        == recorded
    )
    assert recorded.endswith("] True True\n")
    found = [(draw.operator, draw.shape, draw.parameters) for draw in recording.draws]
    assert found == [
        ("numpy.normal", (3,), (1.0, 2.0)),
        ("numpy.laplace", (2,), (0.0, 4.0)),
        ("numpy.normal", (2,), (0.0, 1.0)),
        ("numpy.normal", (2,), (0.0, 1.0)),
        ("numpy.integers", (), (9.0, None)),
        ("numpy.permutation", (4,), ()),
        ("random.normal", (), (1.0, 3.0)),
        ("random.uniform", (), ()),
        ("random.choice", (), ()),
    ]
    [event] = recording.events
    sent = [(one.name, one.dtype, recording.content(one).tolist()) for one in event.tensors]
    assert sent == [
        ("0", "float16", [1, 1]),
        ("1", "float64", 1.5),
        ("2.b", "int64", [0, 1, 2]),
    ]
    assert recording.unseen == ()


def test_a_draft_names_the_interpreter(
    tmp_path: Path, numpy_alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE)
    out = str(tmp_path / "out")
    command = ["capture", "--python", str(numpy_alone), "--out", out, "--", "python", "tapped.py"]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    assert CapturedConfig.from_toml(tmp_path / "out" / DRAFT).program.python == numpy_alone


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho 3 7\n", "Python 3.7; expected 3.8 or newer"),
        ("#!/bin/sh\nexit 3\n", "it is no Python, or does not start"),
        ("#!/bin/sh\necho hello\n", "it is no Python"),
        ("#!/no/such/program\n", "No such file or directory"),
        (None, "no such program; expected a Python"),
    ],
)
def test_an_interpreter_that_does_not_start_is_one_line(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "python"
    if text is not None:
        path.write_text(text)
        path.chmod(0o755)
    with pytest.raises(ConfigError) as error:
        interpreter(path, "--python")
    assert said in str(error.value)
    assert str(error.value).startswith(f"--python: {path}: ")
    assert "\n" not in str(error.value)


RING = Path(__file__).parent / "programs" / "ring.py"


def ring(tmp_path: Path, python: Path, draw: str, *more: str) -> AuditResult:
    """The audit of two processes, whose noise is drawn at a line."""
    lines = RING.read_text().splitlines()
    [number] = [i for i, line in enumerate(lines, 1) if line.startswith(f'    "{draw}": lambda')]
    [sends] = [i for i, line in enumerate(lines, 1) if "link.send(message)" in line]
    config = CapturedConfig.model_validate(
        {
            "program": {
                "command": ("python", "ring.py", draw, *more),
                "folder": RING.parent,
                "python": python,
                "ranks": 2,
            },
            "messages": {"round_starts_at": f"ring.py:{sends}" if more else "w"},
            "noise": {"sites": (f"ring.py:{number}",)},
            "record": {"victims": (0,), "rounds": (1, 2), "candidates": ("present",)},
            "certify": {"runs": 0},
            "claim": ({"text": "a round", "mu": 1.0, "scope": "round"},),
        }
    )
    return run_captured(config, tmp_path / "out", cores=1)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [("normal",), ("gauss",), ("normal", "untapped")], ids="-".join)
def test_noise_at_a_line_of_numpy_or_random_is_replayed(
    tmp_path: Path, numpy_alone: Path, draw: tuple[str, ...]
) -> None:
    """A record of norm at most 1 moves the message by itself, over noise of standard deviation 1.

    Messages are shown by the tap, or seen on a pipe.
    """
    result = ring(tmp_path, numpy_alone, *draw)
    record = np.random.default_rng(50).normal(size=(4, 3))[0]
    assert largest_mu(result) == pytest.approx(min(1.0, float(np.linalg.norm(record))), rel=1e-9)
    assert result.verdict is not Verdict.UNSUPPORTED


@pytest.mark.slow
def test_laplace_noise_at_a_line_of_numpy_is_replayed(tmp_path: Path, numpy_alone: Path) -> None:
    """Its epsilon is the L1 norm of the clipped record: in the first round all else is fixed."""
    result = ring(tmp_path, numpy_alone, "laplace")
    record = np.random.default_rng(50).normal(size=(4, 3))[0]
    record /= max(1.0, np.linalg.norm(record))
    assert f"epsilon {np.abs(record).sum():.3g}" in str(result.claims[0])


@pytest.mark.slow
def test_noise_of_a_state_that_forks_share_hides_nothing(tmp_path: Path, numpy_alone: Path) -> None:
    assert ring(tmp_path, numpy_alone, "forked").verdict is Verdict.UNSUPPORTED


@pytest.mark.parametrize(
    ("rank", "same"), [(None, True), ("0", True), ("1", False)], ids=["alone", "first", "second"]
)
def test_a_rank_has_a_seed_of_its_own_for_what_numpy_draws(
    rank: str | None, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would have if nothing seeded it; torch begins with one in all processes."""
    for name in ranks.RANKS:
        monkeypatch.delenv(name, raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert (player._seed_here(7) == 7) is same
    assert player._seed_here(7) == player._seed_here(7) != player._seed_here(8)


DROPS = """
import subprocess, sys
from dpaudit_recorder import tap
subprocess.run([sys.executable, "-c", "pass"], env={})
subprocess.run([sys.executable, "-c", "pass"])
tap.send(0, 1, "x", 1.0)
"""


def test_what_is_started_with_another_environment_is_named(
    tmp_path: Path, numpy_alone: Path
) -> None:
    recording = capture(["python", "-c", DROPS], tmp_path / "out", Options(python=numpy_alone))
    [said] = recording.unseen
    assert said == "python is started with another environment, and is not recorded"


HANDS_ON = """
import os, subprocess, sys
from dpaudit_recorder import tap
child = "from dpaudit_recorder import tap; tap.send(1, 0, 'x', 1.0)"
environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
subprocess.run([sys.executable, "-c", child], env=environment, check=True)
tap.send(0, 1, "x", 1.0)
"""


def test_a_child_on_the_module_path_of_its_parent_is_recorded(
    tmp_path: Path, numpy_alone: Path
) -> None:
    """As NVFlare starts its clients; that path has lost the folder that starts the recorder."""
    recording = capture(["python", "-c", HANDS_ON], tmp_path / "out", Options(python=numpy_alone))
    assert sorted(event.source for event in recording.events) == [0, 1]


def test_noise_at_a_line_is_of_the_agent_whose_thread_draws_it(tmp_path: Path) -> None:
    """Each agent counts its own draws, in whatever order the threads of several come to the line."""
    world = World(out=tmp_path, sites=("a.py:1",), seed=0)
    log = Log(str(tmp_path), 1000)
    played = player.Player(log, player.World(str(write_world(world))))

    def agent(number: int, draws: int) -> None:
        played.batch(number, np.zeros((2, 1)))
        for _ in range(draws):
            about = log.begun("drawn", "numpy.normal", "a.py:1", "line")
            played.at_line(about, np.ones(1), 1.0, "gaussian")

    for number, draws in ((1, 1), (0, 2), (1, 1)):
        thread = threading.Thread(target=agent, args=(number, draws))
        thread.start()
        thread.join()
    [path] = tmp_path.glob("*.log")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    noise = [(one["rank"], one["occurrence"]) for one in lines if one["kind"] == "noise"]
    assert noise == [(1, 0), (0, 0), (0, 1), (1, 1)]


WORKER = """
import subprocess, sys
from dpaudit_recorder import tap
child = "from dpaudit_recorder import tap; [tap.send(i % 2, 2, 'x', 1.0) for i in range(8)]"
subprocess.run([sys.executable, "-c", child], check=True)
"""
AS_RAY = "import sys; from dpaudit_recorder import ranks; ranks.be(0); ranks.forget_place()"
NAMED = "sys.argv[0] = 'default_worker.py'"


@pytest.mark.parametrize("first", ["", f"{AS_RAY}; {NAMED}; "])
def test_agents_that_a_worker_plays_are_no_simulation(
    tmp_path: Path, numpy_alone: Path, first: str
) -> None:
    """As in workers of Ray that Flower starts: an audit of them needs ``program.ranks``."""
    options = Options(python=numpy_alone)
    program = WORKER.replace('child = "', f'child = "{first}')
    recording = capture(["python", "-c", program], tmp_path / "out", options)
    assert "\nranks = 3\n" in draft(["python", "a.py"], recording, options)


def test_a_library_that_is_looked_for_first_is_hooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Flower looks for Ray by ``importlib.util.find_spec``, more than once."""
    (tmp_path / "sought.py").write_text("here = True")
    monkeypatch.syspath_prepend(tmp_path)
    hooked: list[ModuleType] = []
    monkeypatch.setattr(sys, "meta_path", [AfterImport({"sought": hooked.append}), *sys.meta_path])
    for _ in range(2):
        assert importlib.util.find_spec("sought") is not None
    assert hooked == []
    module = importlib.import_module("sought")
    monkeypatch.delitem(sys.modules, "sought")
    assert module.here
    assert hooked == [module]
