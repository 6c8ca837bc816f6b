"""`dpaudit lint`: what is printed, in which format, and the exit codes."""

import json
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from dpaudit.codes import entries
from dpaudit.commands.cli import app

DATA = Path(__file__).parents[1] / "material"
WRONG, RIGHT = entries()["DPA201"].example, entries()["DPA201"].instead


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "right.py").write_text(RIGHT)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, ["lint", *arguments])


def test_a_hint_is_exit_code_1_and_names_what_would_confirm_it(folder: Path) -> None:
    done = run("wrong.py")
    assert done.exit_code == 1
    first, confirm, help, number = done.stdout.splitlines()
    assert first.startswith("wrong.py:6:22: DPA201 Laplace noise")
    assert confirm == f"DPA201: to confirm it: {entries()['DPA201'].confirm}"
    assert help.endswith("see dpaudit explain DPA201")
    assert number == "1 hint in 1 file; a hint is no verdict"


def test_no_hint_is_exit_code_0(folder: Path) -> None:
    done = run("right.py")
    assert (done.exit_code, done.stdout) == (0, "0 hints in 1 file; a hint is no verdict\n")


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("absent.py", None, "error[DPA007]: absent.py: No such file or directory"),
        ("bad.py", "def (", "error[DPA085]: bad.py: not Python: invalid syntax (line 1)"),
    ],
)
def test_a_named_file_that_cannot_be_read_is_exit_code_2(name, content, said, folder: Path) -> None:
    if content is not None:
        (folder / name).write_text(content)
    done = run("wrong.py", name)
    assert done.exit_code == 2
    assert "wrong.py:6:22: DPA201" in done.stdout
    assert said in done.stderr


def test_a_file_of_a_folder_that_cannot_be_read_is_a_note(folder: Path) -> None:
    (folder / "right.py").write_text("def (")
    done = run(".")
    assert done.exit_code == 1
    assert done.stderr == "note: right.py: not examined: not Python: invalid syntax (line 1)\n"


def test_a_folder_without_python_is_exit_code_2(tmp_path: Path) -> None:
    done = run(str(tmp_path))
    assert done.exit_code == 2
    assert "error[DPA085]" in done.stderr


def test_json_has_what_the_lines_say(folder: Path) -> None:
    done = run("wrong.py", "--format", "json")
    assert done.exit_code == 1
    content = json.loads(done.stdout)
    [hint] = content["hints"]
    assert (hint["path"], hint["line"], hint["column"], hint["code"]) == (
        "wrong.py",
        6,
        22,
        "DPA201",
    )
    assert hint["confirm"] == entries()["DPA201"].confirm
    assert (content["n_files"], content["not_examined"]) == (1, [])


@pytest.mark.parametrize("names, exit_code", [(["wrong.py"], 1), (["right.py"], 0), (["no.py"], 2)])
def test_sarif_is_valid_and_places_hints_as_notes(names, exit_code: int, folder: Path) -> None:
    done = run(*names, "--format", "sarif")
    assert done.exit_code == exit_code
    log = json.loads(done.stdout)
    jsonschema.validate(log, json.loads((DATA / "sarif-2.1.0.schema.json").read_text()))
    [one] = log["runs"]
    assert one["invocations"][0]["exitCode"] == exit_code
    for result in one["results"]:
        assert result["level"] == "note"
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "wrong.py"
        assert place["region"] == {"startLine": 6, "startColumn": 22}
    assert len(one["results"]) == (exit_code == 1)


def test_names_of_files_cannot_write_lines_of_their_own(folder: Path) -> None:
    name = "a\n::error::b\x1b[31m.py"
    (folder / name).write_text(WRONG)
    done = run(".")
    assert "\x1b" not in done.stdout
    assert not any(line.startswith("::") for line in done.stdout.splitlines())
