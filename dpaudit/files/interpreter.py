"""The Python of a program, which may be of another environment than dpaudit's."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpaudit.errors import ConfigError

from .documents import reason

OLDEST = (3, 8)  # oldest Python for the recorder
SECONDS = 60.0  # time limit for the start of an interpreter
_ASKED = "import sys; print(*sys.version_info[:2])"


def interpreter(asked: str | Path, key: str) -> Path:
    """The path of an interpreter, which has been started once.

    Args:
        asked: a path, or a name on PATH.
        key: of the option that names it, for errors.

    Raises ConfigError if it does not start, or is too old for the recorder.
    """
    found = shutil.which(asked)
    if found is None:
        raise ConfigError("DPA057", f"{key}: {asked}: no such program; expected a Python")
    try:
        ended = subprocess.run(
            [found, "-c", _ASKED],
            env=in_environment(Path(found), os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
        )
        version = tuple(map(int, ended.stdout.split()))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        why = reason(error) if isinstance(error, OSError) else "it is no Python"
        raise ConfigError("DPA057", f"{key}: {found}: {why}") from None
    if ended.returncode or len(version) != 2:
        raise ConfigError("DPA057", f"{key}: {found}: it is no Python, or does not start")
    if version < OLDEST:
        said, oldest = (".".join(map(str, one)) for one in (version, OLDEST))
        raise ConfigError("DPA057", f"{key}: {found}: Python {said}; expected {oldest} or newer")
    return Path(os.path.abspath(found))


def in_environment(python: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """What a shell has in which the interpreter's environment is active; None: as it is."""
    if python is None:
        return dict(environment)
    folder = python.parent
    path = os.pathsep.join([str(folder), environment.get("PATH", os.defpath)])
    given = {**environment, "PATH": path}
    for name in ("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"):
        given.pop(name, None)
    if (folder.parent / "pyvenv.cfg").exists():
        given["VIRTUAL_ENV"] = str(folder.parent)
    return given


def with_python(python: Path | None, command: Sequence[str]) -> list[str]:
    """A command that begins with "python", by this interpreter."""
    first, *rest = command
    asks = Path(first).name.startswith("python") and os.sep not in first
    return [str(python), *rest] if python is not None and asks else [first, *rest]
