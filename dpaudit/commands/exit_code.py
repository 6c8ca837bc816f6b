"""The exit code of a command is the one that it says itself, whatever its plug-ins do."""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from dpaudit.errors import Problem

from .terminal import print_problems

CODES = (0, 1, 2, 130)
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_POLL_SECONDS = 0.2
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def leave_with(command: Callable[[], int]) -> NoReturn:
    """Run a command in a forked process, and leave with the exit code that it returns.

    A process can be ended by a plug-in's os._exit, by exit() of a native library, by a crash, or by
    the system for lack of memory, with any exit code. None of them is an answer: without a word of
    the command itself there is a line on stderr, and exit code 2.
    """
    word, words = os.pipe()
    asker = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until they can be passed on
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        os.setsid()  # signals of the terminal come once, from the process that asks
        _end_with(asker)
        code = command()
        os.write(words, bytes([code]))
        gc.freeze()  # else all that torch holds is looked through at the end, for a second
        sys.exit(code)
    os.close(words)
    stopped = _forwarding_signals(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    _, status = os.waitpid(child, 0)
    os.set_blocking(word, False)  # a process that the command left behind may hold it open
    os._exit(_said(word, status, bool(stopped)))  # no one else has a say at the end


def _forwarding_signals(child: int) -> list[int]:
    """Pass on what should stop this process, but what nohup ignores; the list holds what came."""
    came: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        came.append(number)
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    return came


def _said(word: int, status: int, stopped: bool) -> int:
    """The code that the command said, or 2 with a line on how it ended."""
    try:
        said = os.read(word, 2)
    except BlockingIOError:
        said = b""
    if len(said) == 1 and said[0] in CODES:
        return said[0]
    if stopped:
        return 130
    code = os.waitstatus_to_exitcode(status)
    how = f"was left with exit code {code}"
    if code < 0:
        memory = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        how = f"was ended by signal {-code} ({signal.strsignal(-code)}){memory}"
    with suppress(OSError):  # stderr may be broken
        text = f"no answer: the process of this command {how}; what was done is kept"
        print_problems([Problem("DPA026", text)])
    return 2


def _end_with(parent: int) -> None:
    """End this process as soon as its parent, whose id is given, has ended in whatever way.

    The kernel does so on Linux; a thread looks after it there and elsewhere.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
