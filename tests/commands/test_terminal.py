"""Errors and signals as exit codes, whatever they meet on the way."""

import os
import signal

import pytest
import typer

from dpaudit.commands.terminal import errors_as_exit_codes
from dpaudit.errors import ConfigError


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
        raise ConfigError("audit.toml:3: seed: expected a number")

    assert exit_code(refuse) == 2
    assert "audit.toml:3" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_exit_code_130_and_says_how_to_go_on(number, capsys) -> None:
    assert exit_code(lambda: os.kill(os.getpid(), number)) == 130
    assert "dpaudit audit --resume" in capsys.readouterr().err


def test_an_error_that_native_code_makes_of_a_signal_is_an_interruption() -> None:
    def loads() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape of an object") from None

    assert exit_code(loads) == 130


def test_an_error_of_our_own_making_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), errors_as_exit_codes():
        _ = 1 / 0


def test_a_command_leaves_with_the_code_that_it_chose() -> None:
    def leave() -> None:
        raise typer.Exit(1)

    assert exit_code(leave) == 1
