"""One run directory, one writer: a lock of the operating system, let go when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dpaudit.errors import RunError

LOCK = "run.lock"  # its content is the holder's process id; it stays when the run is over


class Mark(NamedTuple):
    """By which file a folder is known again; no other has its number while it is held open."""

    device: int
    inode: int


def mark_of(folder: Path) -> Mark | None:
    """The mark of a folder that is or was held; None of any other."""
    try:
        found = os.stat(folder / LOCK)
    except OSError:
        return None
    return Mark(found.st_dev, found.st_ino)


@contextmanager
def locked(folder: Path) -> Iterator[Mark]:
    """Alone with a folder, which is made if need be, until the block or this process ends.

    Raises:
        RunError: another process has it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise RunError(f"{folder}: cannot write: {error.strerror or error}") from None
    try:
        _lock(descriptor, folder)
        found = os.fstat(descriptor)
        yield Mark(found.st_dev, found.st_ino)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace")
        who = f" (process {holder})" if holder.isdigit() else ""
        raise RunError(
            f"{folder}: in use by another dpaudit{who}; wait for its end, or give another folder"
        ) from None
    except OSError as error:
        raise RunError(f"{folder}: cannot lock: {error.strerror or error}") from None
