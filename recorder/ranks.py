"""Which process of its program this one is: its rank, or its place in the order of starting.

The place of the command itself is empty, and that of the second process that its first one starts
is (0, 1). Forks and Python programs count. A child finds its place in its environment.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, Sequence, Tuple

PLACE = "DPAUDIT_PLACE"  # environment variable with the place of a started process, such as "0.1"
WORKING = "DPAUDIT_RANKS"  # there where each process of a program is one agent
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # set by launchers
Place = Tuple[int, ...]


class _Here:
    """Place, children and rank of this process."""

    place: Place = ()
    started = 0  # others, by this one
    rank: int | None = None  # set once a transport has found it


def be(rank: int) -> None:
    """A transport knows which agent this process is."""
    _Here.rank = rank


def is_given() -> bool:
    """Whether one has said so."""
    return _Here.rank is not None


def forget_place() -> None:
    """The order of starting says nothing of this process."""
    _Here.place = ()


def rank_here() -> int | None:
    """The number of this process among those of its program; None: it has none yet."""
    if _Here.rank is not None:
        return _Here.rank
    launched = _launched()
    if launched is not None:
        return launched
    place = _numbers() or _Here.place
    return place[0] if len(place) == 1 else None


def _launched() -> int | None:
    """The rank that a launcher has given to this process."""
    distributed, mpi = sys.modules.get("torch.distributed"), sys.modules.get("mpi4py.MPI")
    if getattr(distributed, "is_initialized", bool)():
        return int(distributed.get_rank())  # type: ignore[union-attr]
    if getattr(mpi, "Is_initialized", bool)():
        return int(mpi.COMM_WORLD.Get_rank())  # type: ignore[union-attr]
    found = next((os.environ[name] for name in RANKS if name in os.environ), None)
    return None if found is None else int(found)


def _numbers() -> Place:
    """Its place among the processes of multiprocessing, which count from 1 there."""
    processes = sys.modules.get("multiprocessing.process")
    current = None if processes is None else processes.current_process()
    return tuple(number - 1 for number in getattr(current, "_identity", ()))


def apart() -> str:
    """A text that tells this process from others of its program, in every run the same."""
    rank = next((os.environ[name] for name in RANKS if name in os.environ), None)
    rank = rank if _Here.rank is None else str(_Here.rank)
    processes = sys.modules.get("multiprocessing.process")
    name = "MainProcess" if processes is None else processes.current_process().name
    if rank is None and name == "MainProcess" and WORKING in os.environ:
        # A shell has no places to give: what it starts is told apart by arguments.
        rank = "".join(f".{one}" for one in _Here.place or sys.argv[1:])
    return f"{rank or 0}/{name}"


def place_here() -> Place:
    """Place of this process in the order of starting and among those of multiprocessing."""
    return (*_Here.place, *_numbers())


def about_here() -> dict[str, Any]:
    """What is known of this process when it begins to write."""
    rank = rank_here()
    found: dict[str, Any] = {} if rank is None else {"rank": rank}
    if rank is not None and (_Here.rank is not None or _launched() is None):
        found["ordered"] = True
    if not _numbers() and _Here.place:
        found["place"] = list(_Here.place)
    return found


def follow() -> None:
    """Count what this process starts from now on."""
    given = os.environ.pop(PLACE, "")
    _Here.place = tuple(map(int, given.split("."))) if given else ()
    os.register_at_fork(before=_before_fork, after_in_child=_in_fork)
    sys.addaudithook(_starting)


def _before_fork() -> None:
    if sys._getframe(1).f_code.co_name != "_execute_child":  # counted already
        _Here.started += 1


def _in_fork() -> None:
    _Here.place = (*_Here.place, _Here.started - 1)
    _Here.started = 0
    os.environ.pop(PLACE, None)


def _starting(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen":
        return
    executable, command, _, environment = arguments
    is_list = isinstance(command, (list, tuple))
    place = ""
    if _starts_python(executable, command if is_list else [command]):
        place = ".".join(map(str, (*_Here.place, _Here.started)))
        _Here.started += 1
    given = os.environ if environment is None else environment
    if place and isinstance(given, (dict, os._Environ)):
        given[PLACE] = place
    elif PLACE in given:
        del given[PLACE]


def _starts_python(executable: Any, command: Sequence[Any]) -> bool:
    """Whether a program is Python, a script of it, or a shell that is told to start it."""
    words = [os.fsdecode(word) for word in (executable, *command) if word is not None]
    if any("python" in word for word in words):
        return True
    found = shutil.which(words[0]) if words else None
    try:
        with open(found or "", "rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first
