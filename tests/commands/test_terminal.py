"""Errors and signals as exit codes, whatever they meet on the way."""

import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner

from dpaudit.commands import terminal
from dpaudit.commands.cli import app
from dpaudit.commands.terminal import answer, errors_as_exit_codes, same_command, say
from dpaudit.errors import ConfigError, Problem
from tests.said import without_help
from tests.some_fast import fast_if


@pytest.fixture(autouse=True)
def _signals_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def exit_code(act) -> int:
    with pytest.raises(typer.Exit) as left, errors_as_exit_codes("dpaudit audit --resume"):
        act()
    return left.value.exit_code


def test_a_refusal_is_its_line_and_exit_code_2(capsys) -> None:
    def refuse() -> None:
        raise ConfigError("DPA005", "audit.toml:3: seed: expected a number")

    assert exit_code(refuse) == 2
    assert "audit.toml:3" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_exit_code_130_and_says_how_to_go_on(number, capsys) -> None:
    assert exit_code(lambda: os.kill(os.getpid(), number)) == 130
    assert "dpaudit audit --resume" in capsys.readouterr().err


def test_an_error_that_native_code_makes_is_an_interruption() -> None:
    def loads() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape of an object") from None

    assert exit_code(loads) == 130


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "error, said",
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (SystemExit(0), "SystemExit: 0"),
        (SystemExit(None), "SystemExit"),
        (typer.Exit(0), "Exit"),
        (typer.Abort(), "Abort"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (RecursionError("maximum recursion depth exceeded"), "RecursionError: maximum"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("two\nlines \x1b[2J"), "ValueError: two lines \\x1b[2J"),
        (ConfigError("DPA005", ""), "ConfigError"),
    ],
)
def test_what_was_not_foreseen_is_a_line_and_a_log(
    error: BaseException, said: str, capsys, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail() -> None:
        raise error

    assert exit_code(fail) == 2
    [line] = without_help(capsys.readouterr().err).splitlines()
    assert line.startswith("error: unforeseen ")
    assert said in line
    [log] = tmp_path.iterdir()
    assert line.endswith(f"traceback: {log}")
    assert "in fail\n    raise error" in log.read_text()


def test_the_line_names_the_code_that_is_no_library_s(capsys) -> None:
    """Torch raised it; the line to repair is the caller's."""

    def multiplies() -> None:
        torch.ones(2, 3) @ torch.ones(2, 3)

    assert exit_code(multiplies) == 2
    [line] = without_help(capsys.readouterr().err).splitlines()
    here = multiplies.__code__
    assert f", in {here.co_filename}, line {here.co_firstlineno + 1}; a bug in" in line


def test_a_log_that_cannot_be_written_is_said_in_the_same_line(capsys, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    assert exit_code(lambda: 1 / 0) == 2
    [line] = without_help(capsys.readouterr().err).splitlines()
    assert line.endswith("no traceback was kept: Not a directory")


def in_a_shell(command: str, output: str) -> tuple[int, list[str]]:
    """Exit code of dpaudit itself, and the lines of stderr."""
    dpaudit = f"{sys.executable} -m dpaudit.commands.cli"
    line = f"{dpaudit} {command} {output}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    return done.returncode, without_help(done.stderr).splitlines()


@pytest.mark.parametrize(
    "command",
    fast_if(
        lambda command: "list" not in command, ["--help", "explain epsilon", "list attacks --json"]
    ),
)
def test_an_output_that_cannot_be_written_is_exit_code_2(command: str) -> None:
    code, [said] = in_a_shell(command, ">/dev/full")
    assert code == 2
    assert said.startswith("error: the output: cannot write: ")


COMPUTING = ("epsilon --noise-multiplier 1", "list models", "list attacks --json")


@pytest.mark.parametrize(
    "command, expected",
    [
        ("--help", 0),
        ("--version", 0),
        ("explain", 0),
        ("explain epsilon", 0),
        *(pytest.param(command, 0, marks=pytest.mark.slow) for command in COMPUTING),
        ("", 2),
    ],
)
def test_nobody_who_reads_on_is_no_error(command: str, expected: int) -> None:
    assert in_a_shell(command, "| true") == (expected, [])


def test_an_error_that_nobody_reads_is_still_exit_code_2() -> None:
    assert in_a_shell("explain nothing", "2>&1 | true") == (2, [])
    assert in_a_shell("--nope", "2>&1 | true") == (2, [])


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--nope"], "error: No such option: --nope"),
        (["nope"], "error: No such command 'nope'"),
        (["audit"], "error: Missing argument 'CONFIG'"),
        (["list", "x"], "error: Invalid value for 'kind': 'x' is not one of 'defenses', "),
        (["audit", "a.toml", "--seed", "-1"], "error: Invalid value for '--seed': "),
        ([], ""),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_one_line(
    arguments: list[str], said: str, capfd, monkeypatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["dpaudit", *arguments])
    assert answer(app) == 2
    lines = without_help(capfd.readouterr().err).splitlines()
    assert len(lines) == bool(said), lines
    assert "".join(lines).startswith(said)


def test_alone_it_says_what_to_do_next_and_audits_nothing(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dpaudit"])
    assert answer(app) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["dpaudit", "init"],
        ["dpaudit", "audit"],
        ["dpaudit", "show"],
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "started, found, named",
    [
        ("bin/dpaudit", None, "bin/dpaudit"),
        ("bin/dpaudit", "other/dpaudit", "bin/dpaudit"),
        ("bin/dpaudit", "bin/dpaudit", "dpaudit"),
        ("lib/cli.py", None, "dpaudit"),
    ],
)
def test_a_command_to_go_on_with_can_be_pasted(started, found, named, monkeypatch) -> None:
    monkeypatch.setattr(terminal.shutil, "which", lambda name: found)
    monkeypatch.setattr(sys, "argv", [started, "audit", "my audit.toml", "--seed", "3"])
    assert same_command("--resume") == f"{named} audit 'my audit.toml' --seed 3 --resume"
    monkeypatch.setattr(sys, "argv", [started, "audit", "a.toml", "--resume"])
    assert same_command("--resume") == f"{named} audit a.toml --resume"


WORDS = "against eavesdropper: Runs with and without one record certify epsilon at least 0.684"


@pytest.mark.parametrize("width", [20, 40, 79])
def test_on_a_terminal_no_word_is_broken(width: int, monkeypatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, soft_wrap=True)
    monkeypatch.setattr(terminal, "_stdout", console)
    path = "report: /a/path/that-is/longer/than-any/terminal-is-wide/in-all-of-these/tests.html"
    for line in (f"  {WORDS}", path):
        say(line)
    lines = [Text.from_ansi(line).plain for line in out.getvalue().splitlines()]
    assert " ".join(lines).split() == [*WORDS.split(), *path.split()]
    assert all(len(line) <= width for line in lines[:-1])
    assert lines[1].startswith("  ")


def test_elsewhere_a_line_stays_a_line(capsys) -> None:
    say(f"{WORDS} {WORDS}")
    assert capsys.readouterr().out == f"{WORDS} {WORDS}\n"


def test_problems_that_are_alike_share_a_line_of_help(capsys) -> None:
    alike = [Problem("DPA001", "one"), Problem("DPA001", "two"), Problem("DPA004", "three", "do")]
    terminal.print_problems(alike)
    assert capsys.readouterr().err.splitlines() == [
        "error[DPA001]: one",
        "error[DPA001]: two",
        "help: Correct the key, or remove it; see dpaudit explain DPA001",
        "error[DPA004]: three",
        "help: do; see dpaudit explain DPA004",
    ]


def test_help_breaks_no_option_at_80_columns(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, command in get_command(app).commands.items():
        text = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).stdout
        assert max(map(len, text.splitlines())) <= 80
        for parameter in (p for p in command.params if not p.hidden):
            assert all(option in text for option in parameter.opts if option.startswith("--"))


def test_the_list_of_commands_says_in_full_what_each_does() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    said = " ".join(text.split())
    for command in get_command(app).commands.values():
        assert " ".join(command.help.split("\n\n")[0].split()) in said


def test_a_shell_is_told_what_can_follow() -> None:
    asked = {"_DPAUDIT_COMPLETE": "complete_bash", "COMP_WORDS": "dpaudit au", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "dpaudit.commands.cli"],
        capture_output=True,
        text=True,
        env={**os.environ, **asked},
    )
    assert (done.returncode, done.stdout.split()) == (0, ["audit"]), done.stderr


def test_too_little_memory_is_a_line_of_its_own(capsys) -> None:
    def fail() -> None:
        raise MemoryError

    assert exit_code(fail) == 2
    assert without_help(capsys.readouterr().err).startswith("error: out of memory")


def test_audited_code_prints_on_stderr_alone(capfd) -> None:
    """Whatever writes: Python, a file descriptor, or another process."""
    print("before")
    with terminal.prints_on_stderr():
        print("by Python")
        os.write(1, b"by its number\n")
        subprocess.run(["echo", "by another process"], check=True)
    print("after")
    out, err = capfd.readouterr()
    assert out == "before\nafter\n"
    assert sorted(err.split("\n")) == ["", "by Python", "by another process", "by its number"]
