"""What a step prints, logs, warns of, writes to files or opens, beside the messages that it sends.

Whether that leaves the agent is not known here. Where it differs between neighbouring worlds, the
audit says that it was not examined further.
"""

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPENED = {"socket.connect", "socket.sendto", "subprocess.Popen", "os.system", "os.posix_spawn"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
LARGEST = 10**7  # bytes of a file that are compared


class SideEffects:
    """Texts of all that a step does beside its answer, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._files: dict[Path, int] = {}  # and how long each was before

    def texts(self) -> tuple[str, ...]:
        return (*self.seen, *map(self._written, self._files))

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An event of the interpreter (``sys.addaudithook``)."""
        if event in OPENED:
            self.seen.append(f"{event} {arguments[1:]!r}")
        elif event == "open" and isinstance(arguments[0], str | bytes) and arguments[2] & WRITES:
            path = Path(os.fsdecode(arguments[0]))
            self._files.setdefault(path, path.stat().st_size if path.is_file() else 0)

    def _written(self, path: Path) -> str:
        """What was added to a file, or the whole of one that is no longer than before."""
        try:
            size, before = path.stat().st_size, self._files[path]
            with path.open("rb") as file:
                file.seek(before if size > before else 0)
                return f"{path}: {file.read(LARGEST)!r}"
        except OSError:
            return f"{path}: gone"


_listening: list[SideEffects] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _listening:
        listener = _listening.pop()  # its own actions are not noted
        try:
            listener.note(event, arguments)
        finally:
            _listening.append(listener)


class _Logged(logging.Handler):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        if _listening:
            self._seen.append(record.getMessage())


_hooked: list[bool] = []


@contextlib.contextmanager
def watched() -> Iterator[SideEffects]:
    """Notes what is printed, logged, warned of, written and opened; nothing is shown."""
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    beside, root = SideEffects(), logging.getLogger()
    out, handler = io.StringIO(), _Logged(beside.seen)
    root.addHandler(handler)
    _listening.append(beside)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            yield beside
    finally:
        _listening.remove(beside)
        root.removeHandler(handler)
    beside.seen += [str(one.message) for one in warned]
    beside.seen += [text] if (text := out.getvalue()) else []


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Notes nothing meanwhile: gradients are computed for one world, and kept for another."""
    if not _listening:
        yield
        return
    listening = _listening.copy()
    _listening.clear()
    nowhere = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        _listening.extend(listening)
