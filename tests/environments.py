"""Environments of several versions, made in a folder, and the recorder held against programs there.

    python tests/environments.py FOLDER [NAME ...]

Each environment is made by the Python of its version, which is looked for on PATH and among those
of pyenv, and keeps what pip has installed for the next time. A program of torch.distributed is
recorded, and every message must be on its link, in order and bit for bit, as its receivers wrote it
down. So are programs that send by pipes, queues, sockets, HTTP and gRPC. The NumPy example is audited: its fault must be found, and its right twin not be accused. A
table is printed, and the exit code is 1 if anything differs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "capture"))

from sheets import (
    GUESTS,
    assert_every_message_on_its_channel,
    assert_every_message_on_its_link,
    assert_every_sum,
)

from dpaudit.capture.audit import run_captured
from dpaudit.capture.run import Options, capture
from dpaudit.errors import DpauditError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.verdict import Verdict

EXAMPLES = Path(__file__).parents[1] / "examples"
OF_THE_BATCH = "    return total * min(1.0, len(x) * CLIP / norm)\n"
OF_EACH_RECORD = """\
    each = (1 / (1 + np.exp(-x @ w)) - y)[:, None] * x
    norms = np.linalg.norm(each, axis=1, keepdims=True)
    return (each * np.minimum(1.0, CLIP / norms)).sum(axis=0)
"""


@dataclass(frozen=True)
class Environment:
    """What is installed, and what its gloo cannot do."""

    name: str
    python: str
    requirements: tuple[str, ...]
    lacks: tuple[str, ...] = ()  # ways of sending

    def has(self, package: str) -> bool:
        return any(one.startswith(package) for one in self.requirements)


OLD_GLOO = ("functional_collectives", "gathers_into", "reduce_scatters", "exchanges")
MATRIX = (
    Environment("numpy-1.24", "3.8", ("numpy==1.24.4",)),
    Environment("numpy-1.26", "3.9", ("numpy==1.26.4",)),
    Environment("numpy-1.26-of-3.12", "3.12", ("numpy==1.26.4",)),
    Environment("numpy-2", "3.13", ("numpy>=2.2",)),
    Environment("grpc", "3.12", ("grpcio>=1.60", "numpy==1.26.4")),
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
    os.chdir(GUESTS)
    kinds = ["fork", "spawn", "socket", "http", *(["grpc"] if environment.has("grpc") else [])]
    for kind in kinds:
        printed, own = scratch / f"{kind}.txt", os.dup(1)
        with open(printed, "wb") as file:
            os.dup2(file.fileno(), 1)
        try:
            options = Options(seconds=300, python=python)
            recording = capture(["python", "channels.py", kind], scratch / kind, options)
        finally:
            os.dup2(own, 1)
        assert_every_message_on_its_channel(recording, printed.read_text())
    return f"arrays by {', '.join(kinds)}"


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


def checks(python: Path, environment: Environment, scratch: Path) -> Iterator[Callable[[], str]]:
    right = (OF_THE_BATCH, OF_EACH_RECORD)
    yield lambda: audited(python, "numpy-gossip", "tapped.py", right, scratch)
    yield lambda: routed(python, environment, scratch)
    if environment.has("torch"):
        yield lambda: recorded(python, environment, scratch)


def main() -> int:
    folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    failed = False
    for environment in MATRIX:
        if names and environment.name not in names:
            continue
        python, said = made(environment, folder), []
        if python is None:
            print(f"{environment.name:20} no Python {environment.python} here")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            for check in checks(python, environment, Path(scratch)):
                try:
                    said.append(check())
                except (AssertionError, DpauditError) as error:
                    said.append(f"FAILED: {error}")
                    failed = True
        about = f"Python {environment.python}, {', '.join(environment.requirements)}"
        print(f"{environment.name:20} {about:45} {'; '.join(said)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
