"""A folder with one writer: held by a lock of the operating system, and known again by it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from dpaudit.errors import RunError
from dpaudit.files.atomic_files import PARTIAL, replace_whole, writing
from dpaudit.files.documents import reason

LOCK = "run.lock"  # its content is the holder's process id; it stays when the run is over


class Folder:
    """A folder whose files are written beside their place and then renamed, so they are whole.

    One that is held is that very folder: once it is moved, replaced or emptied, nothing is read or
    written any more, here or where it went.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: tuple[int, int] | None = None  # device and number of its lock, while held

    @contextmanager
    def held(self) -> Iterator[Self]:
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
            held = type(self)(self.path)
            held._mark = _mark(os.fstat(descriptor))  # no other file has it while this one is open
            held.forget(f"**/.*{PARTIAL}")
            yield held
        finally:
            os.close(descriptor)

    def at(self, name: str) -> Path:
        """Where a file is. Raises RunError once this is no longer the folder that is held."""
        if self._mark is not None and self._mark_now() != self._mark:
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
            if self._mark is None:  # this folder is never made again once it is held
                self.path.mkdir(parents=True, exist_ok=True)
            for folder in reversed(target.relative_to(self.path).parents[:-1]):
                (self.path / folder).mkdir(exist_ok=True)
            replace_whole(target, content, before=lambda: self.at(name))

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

    def _mark_now(self) -> tuple[int, int] | None:
        """The mark of what lies at the path now; None if it was never held."""
        try:
            return _mark(os.lstat(self.path / LOCK))
        except OSError:
            return None


def _mark(lock: os.stat_result) -> tuple[int, int]:
    return lock.st_dev, lock.st_ino


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
            f"{folder}: in use by another dpaudit{who}",
            "wait for its end, or give another folder",
        ) from None
    except OSError as error:
        raise RunError("DPA018", f"{folder}: cannot lock: {error.strerror or error}") from None
