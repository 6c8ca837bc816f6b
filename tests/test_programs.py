"""The public programs of examples/programs: their files are valid, and their results are there."""

import tomllib
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.published import ResultTables

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in ROOT.glob("examples/programs/*/program.toml"))
run: Any = SimpleNamespace(**run_path(str(ROOT / "examples/programs/run.py")))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_files_of_a_public_program_are_valid(folder: Path) -> None:
    program = run.PublicProgram.model_validate(tomllib.loads((folder / "program.toml").read_text()))
    for case in program.case:
        audit = CapturedConfig.from_toml(folder / case.audit)
        assert audit.program.folder.name == "program"
        for site in audit.noise.sites:  # of our own files: a line that draws
            file, _, line = site.rpartition(":")
            if (folder / file).exists():
                assert "rand" in (folder / file).read_text().splitlines()[int(line) - 1]


def test_every_public_program_has_its_results() -> None:
    programs, cases = ResultTables.read(ROOT / "docs/results/programs.json").tables
    assert {folder.name for folder in FOLDERS} == {row[0] for row in programs.rows}
    expected = {
        f"{folder.name}: {case['name']}"
        for folder in FOLDERS
        for case in tomllib.loads((folder / "program.toml").read_text())["case"]
    }
    assert {row[0] for row in cases.rows} == expected


def test_lines_are_laid_by_their_numbers_of_the_commit(tmp_path: Path) -> None:
    lines = [
        run.Line(file="a.py", at=1, text="x"),
        run.Line(file="a.py", at=2, text="y", replaces=True),
    ]
    text = "one\ntwo\nthree\n"
    assert run.with_lines(text, lines) == "one\nx\ny\nthree\n"
