"""Environments of several versions, made in a folder, and the recorder held against programs there.

    python tests/environments.py FOLDER [NAME ...] [--results FOLDER]

Each environment is made by the Python of its version, which is looked for on PATH and among those
of pyenv, and keeps what pip has installed for the next time. Every message of a guest must be on
its link, as its receiver wrote it down: of torch.distributed in order and bit for bit. Examples are
audited by the tap, and by each transport that is there: the fault must be found and measured, and
the right twin not be accused. A table is printed, and the exit code is 1 if anything differs. With
--results, what is found of an environment is written when it is known, in place of older rows of
it: names continue a run that was ended.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "capture"))

import numpy as np
from sheets import (
    GUESTS,
    assert_every_array_on_its_link,
    assert_every_message_on_its_channel,
    assert_every_message_on_its_link,
    assert_every_sum,
)
from test_audited_wires import assert_measured, config

from dpaudit.capture.audit import run_captured
from dpaudit.capture.recording import CaptureFolder
from dpaudit.capture.run import Options, capture
from dpaudit.errors import DpauditError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.files.published import ResultTable, ResultTables
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism.elsewhere import FunctionElsewhere, elsewhere
from dpaudit.mechanism.function import FunctionHere, load
from dpaudit.reports.published import write_tables

EXAMPLES = Path(__file__).parents[1] / "examples"
OF_THE_BATCH = "    return total * min(1.0, len(x) * CLIP / norm)\n"
OF_EACH_RECORD = """\
    each = (1 / (1 + np.exp(-x @ w)) - y)[:, None] * x
    norms = np.linalg.norm(each, axis=1, keepdims=True)
    return (each * np.minimum(1.0, CLIP / norms)).sum(axis=0)
"""
FUNCTION = """\
import numpy as np


def noised(x):
    return x + np.random.normal(0, 2.0, x.shape) + np.random.laplace(0, 1.0, x.shape)
"""


@dataclass(frozen=True)
class Environment:
    """What is installed, and what its gloo cannot do."""

    name: str
    python: str
    requirements: tuple[str, ...]
    lacks: tuple[str, ...] = ()  # ways of sending
    carries: tuple[str, ...] = ()  # transports that an audit is made by

    def has(self, package: str) -> bool:
        return any(one.startswith(package) for one in self.requirements)


ABOUT = (
    "Programs in environments of their own, recorded and audited. Messages are compared with what "
    "receivers wrote down. In an audit by a transport, mu is 1 without a fault, and 2 with half of "
    "the noise."
)
AGAIN = "python tests/environments.py FOLDER --results docs/results"
OLD_GLOO = ("functional_collectives", "gathers_into", "reduce_scatters", "exchanges")
MATRIX = (
    Environment("numpy-1.24", "3.8", ("numpy==1.24.4",), carries=("socket", "asyncio", "http")),
    Environment("numpy-1.26", "3.9", ("numpy==1.26.4",)),
    Environment("numpy-1.26-of-3.12", "3.12", ("numpy==1.26.4",)),
    Environment("numpy-2", "3.13", ("numpy>=2.2",), carries=("socket", "asyncio", "http")),
    Environment(
        "grpc-zeromq",
        "3.12",
        ("grpcio>=1.60", "pyzmq>=25", "numpy==1.26.4"),
        carries=("grpc", "zmq"),
    ),
    Environment(
        "http",
        "3.12",
        ("httpx>=0.28", "aiohttp>=3.10", "requests>=2.31", "websockets>=15", "numpy==1.26.4"),
        carries=("requests", "httpx", "aiohttp", "websockets"),
    ),
    Environment(
        "http-of-3.8",
        "3.8",
        ("httpx==0.28.1", "aiohttp==3.10.11", "numpy==1.24.4"),
        carries=("httpx", "aiohttp"),
    ),
    Environment("mpi", "3.12", ("mpi4py>=4", "mpich>=4", "numpy==1.26.4"), carries=("mpi",)),
    Environment("ray", "3.12", ("ray>=2.40", "numpy==1.26.4"), carries=("ray",)),
    Environment("torch-1.13", "3.8", ("torch==1.13.1", "numpy==1.24.4"), OLD_GLOO),
    Environment("torch-2.4", "3.8", ("torch==2.4.1", "numpy==1.24.4"), ("exchanges",)),
    Environment("torch-2.13", "3.11", ("torch==2.13.0", "numpy>=2.2")),
)


def interpreter_of(version: str) -> str | None:
    """A Python of a version; None: this machine has none."""
    places = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(place / "bin" / "python") for place in sorted(places.glob(f"{version}.*"))]
    return found[-1] if found else shutil.which(f"python{version}")


def made(environment: Environment, folder: Path) -> Path | None:
    """The interpreter of an environment, made if it is not there yet."""
    python, own = folder / environment.name / "bin" / "python", interpreter_of(environment.python)
    if own is None:
        return None
    if not (folder / environment.name / "done").exists():
        subprocess.run([own, "-m", "venv", "--clear", str(folder / environment.name)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *environment.requirements]
        subprocess.run(install, check=True)
        (folder / environment.name / "done").touch()
    return python


def recorded(python: Path, environment: Environment, scratch: Path) -> str:
    """Whether every message of the guest was recorded as it was received."""
    (scratch / "sheets").mkdir()
    os.environ["SHEETS"] = str(scratch / "sheets")
    os.chdir(GUESTS)
    command = ["python", "patterns.py", *environment.lacks]
    recording = capture(command, scratch / "out", Options(seconds=300, python=python))
    assert_every_message_on_its_link(recording, scratch / "sheets")
    assert_every_sum(recording, scratch / "sheets")
    return f"{len(recording.events)} messages bit for bit"


def routed(python: Path, environment: Environment, scratch: Path) -> str:
    """Whether every array was recorded on its channel, of all kinds of channels."""
    kinds = ["fork", "spawn", "socket", "http", *(["grpc"] if environment.has("grpc") else [])]
    for kind in kinds:
        command = ["python", "channels.py", kind]
        assert_every_message_on_its_channel(*printed(command, python, scratch / kind))
    return f"arrays by {', '.join(kinds)}"


def printed(command: list[str], python: Path, scratch: Path) -> tuple[CaptureFolder, str]:
    """The recording of a guest, and what it printed."""
    os.chdir(GUESTS)
    scratch.mkdir()
    own, said = os.dup(1), scratch / "said.txt"
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 1)
    try:
        options = Options(seconds=300, python=python)
        return capture(command, scratch / "out", options), said.read_text()
    finally:
        os.dup2(own, 1)


def of_mpi(python: Path, scratch: Path) -> str:
    command = ["mpiexec", "-n", "3", "python", "ranks_of_mpi.py"]
    recording, said = printed(command, python, scratch / "mpi")
    assert_every_array_on_its_link(recording, said)
    return f"{len(recording.events)} messages of mpi4py"


def of_ray(python: Path, scratch: Path) -> str:
    os.environ["SHEET"] = str(scratch / "sheet")
    recording, _ = printed(["python", "actors.py"], python, scratch / "ray")
    assert_every_array_on_its_link(recording, (scratch / "sheet").read_text())
    return f"{len(recording.events)} messages of Ray"


def carried(python: Path, how: str, scratch: Path) -> str:
    """Whether half of the noise is measured, and the right twin at its claim, by a transport."""
    for fault, mu in (((), 1.0), (("halved",), 2.0)):
        assert_measured(config(how, python, *fault), scratch / f"{how}{mu}", mu)
    return f"audited by {how}: mu 1 and 2"


def audited(python: Path, folder: str, script: str, right: tuple[str, str], scratch: Path) -> str:
    """Whether the fault of an example is found, and the same without the fault not accused."""
    example, verdicts = EXAMPLES / folder, []
    for twin in (("", ""), right):
        own = scratch / f"{folder}-{len(verdicts)}"
        shutil.copytree(example, own)
        text = (own / script).read_text()
        assert twin[0] in text
        (own / script).write_text(text.replace(*twin) if twin[0] else text)
        config = CapturedConfig.from_toml(own / "captured.toml")
        program = config.program.model_copy(update={"python": python})
        given = {"program": program, "certify": config.certify.model_copy(update={"runs": 0})}
        result = run_captured(config.model_copy(update=given), own / "run")
        verdicts.append(result.verdict)
    assert verdicts[0] is Verdict.UNSUPPORTED, verdicts
    assert verdicts[1] is not Verdict.UNSUPPORTED, verdicts
    return "fault found, twin not accused"


def called(python: Path, scratch: Path) -> str:
    """Whether a function returns there what it returns here, for the same seeds."""
    (scratch / "noise.py").write_text(FUNCTION)
    name = f"{scratch / 'noise.py'}:noised"
    options = MechanismOptions(function=name, shape=(2, 3))
    value, seeds = (np.ones((2, 3)),), [1, 2, 1]
    with elsewhere(str(python), name, 300.0) as process:
        there = FunctionElsewhere(process, options).in_turn([value], 3, seeds)
    here = FunctionHere(load(name), options).in_turn([value], 3, seeds)
    assert np.array_equal(there, here), (there, here)
    return "a function as here"


def checks(python: Path, environment: Environment, scratch: Path) -> Iterator[Callable[[], str]]:
    right = (OF_THE_BATCH, OF_EACH_RECORD)
    yield lambda: audited(python, "numpy-gossip", "tapped.py", right, scratch)
    yield lambda: routed(python, environment, scratch)
    yield lambda: called(python, scratch)
    if environment.has("torch"):
        yield lambda: recorded(python, environment, scratch)
    if environment.has("mpi4py"):
        yield lambda: of_mpi(python, scratch)
    if environment.has("ray"):
        yield lambda: of_ray(python, scratch)
    for how in environment.carries:
        yield lambda how=how: carried(python, how, scratch)


def of_environment(environment: Environment, folder: Path) -> list[str]:
    """What each check says; a failure begins with FAILED."""
    python, said = made(environment, folder), []
    if python is None:
        return [f"no Python {environment.python} here"]
    with tempfile.TemporaryDirectory() as scratch:
        for check in checks(python, environment, Path(scratch)):
            try:
                said.append(check())
            except (AssertionError, DpauditError) as error:
                said.append(f"FAILED: {error}")
    return said


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("names", nargs="*")
    asked.add_argument("--results", type=Path)
    given = asked.parse_args()
    folder, results = given.folder.resolve(), given.results and given.results.resolve()
    failed = False
    for environment in MATRIX:
        if given.names and environment.name not in given.names:
            continue
        said = of_environment(environment, folder)
        failed |= any(one.startswith("FAILED") for one in said)
        installed = ", ".join(environment.requirements)
        print(f"{environment.name:20} {environment.python:5} {installed}", flush=True)
        print("".join(f"    {one}\n" for one in said), end="", flush=True)
        if results is not None:
            put([(environment.name, environment.python, installed, one) for one in said], results)
    return int(failed)


def put(rows: list[tuple[str, ...]], folder: Path) -> None:
    """The checks of an environment, in place of older ones of it, in the order of the matrix."""
    path = folder / "recorder.json"
    older = ResultTables.read(path).tables[0].rows if path.exists() else ()
    names = [environment.name for environment in MATRIX]
    kept = [row for row in older if row[0] != rows[0][0] and row[0] in names]
    merged = tuple(sorted((*kept, *rows), key=lambda row: names.index(str(row[0]))))
    columns = ("environment", "Python", "installed", "what was found")
    table = ResultTable(title="Checks", columns=columns, rows=merged)
    found = ResultTables(
        title="The recorder elsewhere", about=ABOUT, command=AGAIN, tables=(table,)
    )
    write_tables(folder, "recorder", found)


if __name__ == "__main__":
    sys.exit(main())
