"""A file that is given to the wrong command: one line that names the right one."""

from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from tests.said import without_help

FILES = {
    "audit": """\
seed = 1
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 2
noise_multiplier = 1.0
""",
    "program": '[program]\ncommand = ["python", "simulation.py"]\n',
    "mechanism": '[mechanism]\nfunction = "ours:noised"\nshape = [4]\n',
    "check": '[[check]]\nname = "ours"\naudit = "audit.toml"\n',
    "benchmark": 'audit = "audit.toml"\n[[axis]]\nkey = "seed"\nvalues = [1, 2]\n',
}
CALLED = {
    "audit": "an audit file: dpaudit audit",
    "program": "the audit of a program: dpaudit audit",
    "mechanism": "the audit of a function: dpaudit audit",
    "check": "a claims file: dpaudit check",
    "benchmark": "a benchmark file: dpaudit benchmark",
}
WRONG = [
    (command, kind)
    for command, kind in product(("audit", "check", "benchmark"), FILES)
    if kind != command and (command, kind) not in [("audit", "program"), ("audit", "mechanism")]
]


@pytest.mark.parametrize("command, kind", WRONG)
def test_the_right_command_is_named(tmp_path: Path, command: str, kind: str) -> None:
    file = tmp_path / "file.toml"
    file.write_text(FILES[kind])
    done = CliRunner().invoke(app, [command, str(file)])
    assert done.exit_code == 2
    assert without_help(done.stderr) == f"error: {file}: this is {CALLED[kind]} {file}\n"


@pytest.mark.parametrize("command, key", [("check", "check"), ("benchmark", "audit")])
def test_what_a_file_names_as_an_audit_is_recognised_too(tmp_path, command, key) -> None:
    (tmp_path / "audit.toml").write_text(FILES["check"])
    file = tmp_path / "file.toml"
    file.write_text(FILES[command])
    done = CliRunner().invoke(app, [command, str(file), "--workers", "1"])
    assert done.exit_code == 2
    assert "audit.toml: this is a claims file: dpaudit check" in done.stderr
    assert len(without_help(done.stderr).splitlines()) == 1


def test_a_misplaced_key_is_still_the_problem(tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(f"{FILES['audit']}[[check]]\nname = 'x'\n")
    done = CliRunner().invoke(app, ["audit", str(file)])
    assert "check: unknown key; known here: seed, data" in done.stderr


@pytest.mark.parametrize("command", ["attack", "show", "report"])
def test_a_file_in_the_place_of_a_run_directory_is_one_line(tmp_path: Path, command: str) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(FILES["audit"])
    done = CliRunner().invoke(app, [command, str(file)])
    assert done.exit_code == 2
    [line] = without_help(done.stderr).splitlines()
    assert line.startswith(f"error: {file}: not a folder; expected ")
