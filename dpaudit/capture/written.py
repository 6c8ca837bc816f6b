"""The files of a program's folder, and when they were written."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dpaudit.source import below

FileState = tuple[int, int]  # when it was written, in ns, and its size


def files_below(folder: Path, out: Path) -> dict[Path, FileState]:
    """When files of the program's folder were written, and their sizes.

    Those of run directories are left out, and those that this process prints to.
    """
    found, printed = {}, {*_printed_to()}
    for path in below(folder, "", hidden=True):
        parents = [*path.parents][: len(path.parts) - len(folder.parts)]
        if out in parents or any((parent / "run.json").exists() for parent in parents):
            continue
        try:
            status = os.stat(path)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) not in printed:
            found[path] = status.st_mtime_ns, status.st_size
    return found


def _printed_to() -> Iterator[tuple[int, int]]:
    """The device and the number of the file behind each standard stream."""
    for stream in (1, 2):
        with suppress(OSError):  # it is closed
            status = os.fstat(stream)
            yield status.st_dev, status.st_ino
