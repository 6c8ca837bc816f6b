"""The files of a program's folder, and when they were written."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpaudit.errors import RunError
from dpaudit.source import below, hash_of

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


@contextmanager
def unedited(folder: Path, forget: Callable[[], None]) -> Iterator[None]:
    """Code below a program's folder is the same until the block ends: its runs are compared.

    Files that appear, and those that are gone, are none of it: programs write copies of their own.

    Args:
        forget: removes what is kept of the runs, which nothing may go on with.

    Raises RunError for a file of other contents, in the place of what followed from that.
    """
    before = {path: hash_of([path]) for path in below(folder, ".py")}

    def refuse_edited() -> None:
        for path, contents in before.items():
            if path.exists() and hash_of([path]) != contents:
                forget()
                raise RunError(
                    "DPA062",
                    f"{path.relative_to(folder)} was changed while the audit ran: its runs are of "
                    "two programs",
                    "audit again, and change no code of the program until the audit is over",
                )

    try:
        yield
    except Exception:
        refuse_edited()
        raise
    refuse_edited()


def _printed_to() -> Iterator[tuple[int, int]]:
    """The device and the number of the file behind each standard stream."""
    for stream in (1, 2):
        with suppress(OSError):  # it is closed
            status = os.fstat(stream)
            yield status.st_dev, status.st_ino
