"""A process can end in many ways; only what the command itself says is its exit code."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """\
import ctypes, os, signal, sys, time
from dpaudit.commands.exit_code import leave_with

def command():
    {}

leave_with(command)
"""
EACH_IN_A_FORK = """\
import ctypes, json, os, signal, sys, tempfile
from dpaudit.commands.exit_code import leave_with

for act in json.load(sys.stdin):
    with tempfile.TemporaryFile() as said:
        fork = os.fork()
        if fork == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            names = dict(globals())
            exec(f"def command():\\n    {act}", names)
            leave_with(names["command"])
        status = os.waitpid(fork, 0)[1]
        said.seek(0)
        print(json.dumps([os.waitstatus_to_exitcode(status), said.read().decode()]))
"""
SECONDS = 120  # on a machine that does much else
CODES = {f"return {code}": code for code in (0, 1, 2, 130)}
CODES |= {"import atexit; atexit.register(os._exit, 0); return 1": 1}
WITHOUT_A_WORD = {
    "os._exit(0)": "was left with exit code 0",
    "os._exit(1)": "was left with exit code 1",
    "ctypes.CDLL(None).exit(0)": "was left with exit code 0",
    "os.execv('/bin/true', ['true'])": "was left with exit code 0",
    "os.kill(os.getpid(), signal.SIGKILL)": "Killed), perhaps for lack of memory",
    "ctypes.string_at(0)": "was ended by signal 11 (Segmentation fault)",
    "sys.exit(0)": "was left with exit code 0",
}


def start(act: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(act)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def ended() -> dict[str, tuple[int, str]]:
    """Exit code and output of each act; one process has imported all that they need."""
    acts = [*CODES, *WITHOUT_A_WORD]
    done = subprocess.run(
        [sys.executable, "-c", EACH_IN_A_FORK],
        input=json.dumps(acts),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(acts, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("act", CODES)
def test_a_command_leaves_with_the_code_that_it_says(ended, act: str) -> None:
    assert ended[act] == [CODES[act], ""]


@pytest.mark.parametrize("act", WITHOUT_A_WORD)
def test_without_a_word_there_is_a_line_and_exit_code_2(ended, act: str) -> None:
    code, said = ended[act]
    assert code == 2
    line, advice = said.splitlines()
    assert line.startswith("error[DPA026]: no answer: the process of this command ")
    assert WITHOUT_A_WORD[act] in line
    assert advice.startswith("help: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command(number: int) -> None:
    act = (
        f"signal.signal({number:d}, lambda *_: [print('stopped', flush=True), os._exit(3)]); "
        "print('ready', flush=True); time.sleep(60)"
    )
    before = signal.signal(number, signal.default_int_handler)  # the tests may run under nohup
    process = start(act)
    signal.signal(number, before)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=SECONDS) == ("stopped\n", "")
    assert process.returncode == 130


def test_what_nohup_ignores_is_not_passed_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process = start("print('ready', flush=True); time.sleep(0.5); return 0")
    signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0


def test_a_command_ends_with_the_process_that_asks() -> None:
    process = start("print(os.getpid(), flush=True); time.sleep(60)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=SECONDS)  # ends when nobody holds the pipes any more
    deadline = time.monotonic() + SECONDS
    while os.path.exists(f"/proc/{child}/exe") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{child}/exe")
