"""A process can end in many ways; only what the command itself says is its exit code."""

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """\
import ctypes, os, signal, sys, time
from dpaudit.commands.last_word import leave_with

def command():
    {}

leave_with(command)
"""


def start(act: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(act)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_a_command_leaves_with_the_code_that_it_says(code: int) -> None:
    process = start(f"return {code}")
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == code


def test_what_runs_after_the_word_has_no_say() -> None:
    process = start("import atexit; atexit.register(os._exit, 0); return 1")
    process.communicate(timeout=30)
    assert process.returncode == 1


@pytest.mark.parametrize(
    "act, how",
    [
        ("os._exit(0)", "was left with exit code 0"),
        ("os._exit(1)", "was left with exit code 1"),
        ("ctypes.CDLL(None).exit(0)", "was left with exit code 0"),
        ("os.execv('/bin/true', ['true'])", "was left with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "Killed), perhaps for lack of memory"),
        ("ctypes.string_at(0)", "was ended by signal 11 (Segmentation fault)"),
        ("sys.exit(0)", "was left with exit code 0"),
    ],
)
def test_without_a_word_there_is_a_line_and_exit_code_2(act: str, how: str) -> None:
    process = start(act)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 2
    [line] = error.splitlines()
    assert line.startswith("error: no answer: the process of this command ")
    assert how in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command(number: int) -> None:
    act = (
        f"signal.signal({number:d}, lambda *_: [print('stopped', flush=True), os._exit(3)]); "
        "print('ready', flush=True); time.sleep(60)"
    )
    process = start(act)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=30) == ("stopped\n", "")
    assert process.returncode == 130


def test_what_nohup_ignores_is_not_passed_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process = start("print('ready', flush=True); time.sleep(0.5); return 0")
    signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_command_ends_with_the_process_that_asks() -> None:
    process = start("print(os.getpid(), flush=True); time.sleep(60)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=30)  # ends when nobody holds the pipes any more
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{child}/exe") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{child}/exe")
