"""The Python of a program: started once, of this or of another environment."""

import sys
from pathlib import Path

import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.interpreter import in_environment, interpreter, with_python


def program(folder: Path, *lines: str) -> Path:
    path = folder / "python"
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("said", ["3 8", "3 11", "4 0"])
def test_a_new_enough_interpreter_is_taken(tmp_path: Path, said: str) -> None:
    path = program(tmp_path, f"echo {said}")
    assert interpreter(path, "program.python") == path


@pytest.mark.parametrize(
    "lines, why",
    [
        (("echo 3 7",), "Python 3.7; expected 3.8 or newer"),
        (("echo 2 99",), "Python 2.99; expected 3.8 or newer"),
        (("echo 3",), "it is no Python, or does not start"),
        (("echo 3 11", "exit 1"), "it is no Python, or does not start"),
        (("echo three",), "it is no Python"),
    ],
)
def test_an_old_one_and_what_is_none_are_one_line(tmp_path: Path, lines, why: str) -> None:
    path = program(tmp_path, *lines)
    with pytest.raises(ConfigError) as refused:
        interpreter(path, "program.python")
    assert str(refused.value) == f"program.python: {path}: {why}"
    with pytest.raises(ConfigError, match="no such program; expected a Python"):
        interpreter(tmp_path / "absent", "program.python")


def test_an_environment_is_active_where_its_interpreter_lies(tmp_path: Path) -> None:
    before = {"PATH": "/bin", "PYTHONHOME": "x", "CONDA_PREFIX": "y", "VIRTUAL_ENV": "z", "A": "a"}
    (folder := tmp_path / "bin").mkdir()
    assert in_environment(None, before) == before
    given = {"PATH": f"{folder}:/bin", "A": "a"}
    assert in_environment(folder / "python", before) == given
    (tmp_path / "pyvenv.cfg").touch()
    active = {**given, "VIRTUAL_ENV": str(tmp_path)}
    assert in_environment(folder / "python", before) == active


def test_only_a_bare_python_is_replaced() -> None:
    own = Path(sys.executable)
    assert with_python(own, ["python3", "a.py"]) == [sys.executable, "a.py"]
    assert with_python(own, ["./python", "a.py"]) == ["./python", "a.py"]
    assert with_python(own, ["torchrun", "a.py"]) == ["torchrun", "a.py"]
    assert with_python(None, ["python", "a.py"]) == ["python", "a.py"]
