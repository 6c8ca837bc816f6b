"""A process that does not outlive the one that started it."""

import ctypes
import os
import signal
import sys
import threading
import time

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_POLL_SECONDS = 0.2


def end_with(parent: int) -> None:
    """End this process as soon as its parent, whose id is given, has ended in whatever way.

    The kernel does so on Linux; a thread looks after it there and elsewhere.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
