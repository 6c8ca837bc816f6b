"""A folder with one writer: held by a lock of the operating system, and known again by it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dpaudit.errors import RunError
from dpaudit.files.documents import reason
from dpaudit.files.whole import PARTIAL, replace_whole, writing

LOCK = "run.lock"  # its content is the holder's process id; it stays when the run is over


class Mark(NamedTuple):
    """By which file a folder is known again; no other has its number while it is held open."""

    device: int
    inode: int


class Folder:
    """A folder whose files are written beside their place and then renamed, so they are whole.

    With a ``mark`` it is that very folder: once it is moved, replaced or emptied, nothing is read
    or written any more, here or where it went.
    """

    def __init__(self, path: Path, mark: Mark | None = None) -> None:
        self.path, self._mark = path, mark

    @contextmanager
    def held(self) -> Iterator["Folder"]:
        """It, made if need be, for this process alone until the block or this process ends.

        Raises:
            RunError: another process has it, or it cannot be written.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # it is written: never what a link names
            descriptor = os.open(self.path / LOCK, flags, 0o666)
        try:
            _lock(descriptor, self.path)
            found = os.fstat(descriptor)
            held = Folder(self.path, Mark(found.st_dev, found.st_ino))
            held.forget(f"**/.*{PARTIAL}")
            yield held
        finally:
            os.close(descriptor)

    def at(self, name: str) -> Path:
        """Where a file is. Raises RunError once this is no longer the folder that is held."""
        if self._mark is not None and _mark_of(self.path) != self._mark:
            raise RunError(
                "DPA020",
                f"{self.path}: moved, replaced or emptied while the run was under way; nothing "
                "more was written: run it again",
            )
        return self.path / name

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all. Raises RunError (full disk, no permission)."""
        target = self.at(name)
        with writing(target):
            self._make_folders(target)
            replace_whole(target, content, before=lambda: self.at(name))

    def _make_folders(self, target: Path) -> None:
        """Those between this folder and a file in it; never this folder, once it is held."""
        if self._mark is None:
            self.path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(target.relative_to(self.path).parents[:-1]):
            (self.path / folder).mkdir(exist_ok=True)

    def read(self, name: str) -> bytes:
        """The content of a file. Raises RunError if it cannot be read."""
        path = self.at(name)
        try:
            if path.exists() and not path.is_file():
                raise ValueError("not a regular file")
            return path.read_bytes()
        except (OSError, ValueError) as error:
            raise RunError("DPA020", f"{path}: missing or damaged: {reason(error)}") from None

    def forget(self, pattern: str) -> None:
        """Delete the files that match."""
        with writing(self.path):
            for path in self.at("").glob(pattern):
                path.unlink()


def _mark_of(folder: Path) -> Mark | None:
    """The mark of a folder that is or was held; None of any other."""
    try:
        found = os.lstat(folder / LOCK)
    except OSError:
        return None
    return Mark(found.st_dev, found.st_ino)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace")
        who = f" (process {holder})" if holder.isdigit() else ""
        raise RunError(
            "DPA018",
            f"{folder}: in use by another dpaudit{who}; wait for its end, or give another folder",
        ) from None
    except OSError as error:
        raise RunError("DPA018", f"{folder}: cannot lock: {error.strerror or error}") from None
