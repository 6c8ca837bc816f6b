"""The process whose forks are the workers: it imports what they use, beside the caller.

Imports take seconds in each process. The command line asks for this process before its own.
"""

import gc
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from types import ModuleType

FORKS = "forkserver" in multiprocessing.get_all_start_methods()
SOCKET = 107  # bytes of the path of a socket at most; that of a server of forks is in the folder
LISTENER = "/pymp-abcdefgh/listener-abcdefgh"  # for temporary files, under a name like this
_USED_BY_ALL = ["dpaudit.pipeline.preloaded"]  # imported once for all worker processes


def begin() -> None:
    """Start the process whose forks are the workers: it imports what they use, beside the caller.

    If it runs already, nothing is started.
    """
    if can_fork():
        multiprocessing.get_context("forkserver").set_forkserver_preload(_USED_BY_ALL)
        with importing_only_what_is_sent():
            forkserver.ensure_running()


def can_fork() -> bool:
    """Whether a server of forks can be had: its socket's path may be too long."""
    return FORKS and len(os.fsencode(tempfile.gettempdir() + LISTENER)) <= SOCKET


@contextmanager
def imports() -> Iterator[None]:
    """No collection of garbage meanwhile, which takes a tenth of the time of large imports."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def importing_only_what_is_sent() -> Iterator[None]:
    """What starts meanwhile has neither the caller's script nor modules of the working folder.

    A new process would run a script again that has no guard, and that would start processes; and it
    would look for the modules of its own start in the working folder first.
    """
    main, safe = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH")
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if safe is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = safe
