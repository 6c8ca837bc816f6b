"""The file of a ledger, which several processes may add to: each addition holds a lock on it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpaudit.errors import RunError
from dpaudit.files.atomic_files import writing
from dpaudit.files.documents import reason
from dpaudit.files.ledger_file import (
    Budget,
    LedgerEntry,
    budget_of,
    counted_lines,
    entry_of,
    to_line,
)

FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LedgerFile:
    """A budget and its entries on disk.

    It is opened anew for each addition, so that forked processes and threads lock each other out.

    Raises:
        RunError: its folder cannot be made, or the path is a link.
    """

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path = path
        self._budget = budget
        self._lines, self._read = 0, 0  # lines that were read, and their bytes
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[list[LedgerEntry]]:
        """Hold the file, whose entries since the last time are given; ``append`` adds to it.

        Raises:
            RunError: it cannot be read or written, has another budget, or lost entries.
        """
        with self._coded():
            descriptor = os.open(self.path, FLAGS, 0o644)
        with os.fdopen(descriptor, "r+b", buffering=0) as self._file:
            with self._coded():
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # until it is closed
                lines = self._rest()
            yield self._entries(lines)

    def append(self, entry: LedgerEntry) -> None:
        """Add an entry, which is on the disk when this returns. Raises RunError."""
        with self._coded():
            self._write(to_line(entry))
        self._lines += 1

    @contextmanager
    def _coded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError("DPA016", f"{self.path}: cannot write: {reason(error)}") from None

    def _rest(self) -> list[bytes]:
        """The lines that were not read before; one that a killed program cut off is removed."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self._read:
            raise RunError("DPA082", f"{self.path}: entries are missing that were in it before")
        self._file.seek(self._read)
        content = self._file.read(size - self._read)
        lines = counted_lines(content).lines
        if len(lines) < len(content):
            self._file.truncate(self._read + len(lines))
        if self._read + len(lines) == 0:
            self._write(to_line(self._budget))
            self._lines = 1
        missing = lines[len(content) :]  # the end of the last one
        self._read += len(lines) - len(missing)
        if missing:
            self._write(missing)
        return lines.splitlines(keepends=True)

    def _entries(self, lines: list[bytes]) -> list[LedgerEntry]:
        if self._lines == 0:
            first, *lines = lines
            self._require_same_budget(budget_of(first, self.path))
            self._lines = 1
        found = [entry_of(line, self.path, self._lines + i) for i, line in enumerate(lines, 1)]
        self._lines += len(lines)
        return found

    def _require_same_budget(self, there: Budget) -> None:
        for key in Budget.model_fields:
            one, other = getattr(there, key), getattr(self._budget, key)
            if one != other:
                raise RunError("DPA083", f"{self.path}: its {key} is {one}, not {other}")

    def _write(self, line: bytes) -> None:
        written = self._file.write(line)
        if written != len(line):  # a full disk: the rest is removed by whoever reads it next
            raise OSError(f"{written} of {len(line)} bytes were written")
        os.fsync(self._file.fileno())
        self._read += len(line)
