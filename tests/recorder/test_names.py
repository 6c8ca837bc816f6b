"""Draws that name a file or a symbol are no noise: lines of the program that draw are others."""

import sys
import tempfile
from pathlib import Path

from dpaudit.capture.run import Options, capture

PROGRAM = """
import random, tempfile
from dpaudit_recorder import tap

for k in range(2):
    tap.batch(0, [[1.0, 2.0]])
    import symbols
    tempfile.TemporaryFile().close()
    tap.send(0, [1], "model", [random.gauss(0.0, 1.0)])
"""
SYMBOLS = """
import random, sys

sys.path.insert(0, {packages!r})
import sympy.core.symbol
"""
DUMMY = """
import random

class Dummy:
    index = random.Random().randint(10**6, 9 * 10**6)

class Other:
    index = random.Random().randint(10**6, 9 * 10**6)
"""


def lines_of_draws(folder: Path, packages: str) -> list[str]:
    inside = folder / packages / "sympy" / "core"
    inside.mkdir(parents=True)
    for package in (inside, inside.parent):
        (package / "__init__.py").touch()
    (inside / "symbol.py").write_text(DUMMY)
    (folder / "symbols.py").write_text(SYMBOLS.format(packages=str(folder / packages)))
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py")]
    recording = capture(command, folder / "out", Options(seconds=60))
    return [draw.call_site.split("/")[-1] for draw in recording.draws]


def test_names_of_files_and_of_sympy_are_no_draws(tmp_path: Path) -> None:
    own = ["program.py:9"] * 2
    assert lines_of_draws(tmp_path / "one", "site-packages") == ["symbol.py:8", *own]
    assert Path(tempfile.__file__).name == "tempfile.py"


def test_a_module_of_the_program_draws_whatever_its_name(tmp_path: Path) -> None:
    own = ["program.py:9"] * 2
    assert lines_of_draws(tmp_path / "two", "mine") == ["symbol.py:5", "symbol.py:8", *own]
