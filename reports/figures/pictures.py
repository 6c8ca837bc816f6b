"""Artifacts of a run directory as images inside a page."""

import base64
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from dpaudit.errors import DpauditError

PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """A PNG artifact, or the reason why it cannot be shown."""

    path: str
    uri: str = ""
    width: int = 1  # pixels, of the whole strip
    height: int = 1
    problem: str = ""

    @property
    def scale(self) -> int:
        """How many times larger a pixel is shown at most: a strip becomes about 64 pixels high."""
        return max(1, round(64 / self.height))


def embedded(paths: Iterable[str], run_directory: Path) -> dict[str, Picture]:
    """Every artifact read once, by its path.

    Raises:
        DpauditError: a path is absolute, goes up, or is a link that leads out of the run directory.
    """
    return {path: _read(path, run_directory) for path in dict.fromkeys(paths)}


def _read(path: str, run_directory: Path) -> Picture:
    inside = _inside(path, run_directory)
    try:
        content = inside.read_bytes()
    except (OSError, ValueError):  # ValueError: a path that no file can have
        return Picture(path, problem="missing")
    if not content.startswith(PNG) or len(content) < 24:
        return Picture(path, problem="not a PNG image")
    width, height = struct.unpack(">II", content[16:24])
    if not width or not height:
        return Picture(path, problem="an empty image")
    uri = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return Picture(path, uri, width, height)


def _inside(path: str, run_directory: Path) -> Path:
    """The file that an artifact's path names. Raises DpauditError where that is elsewhere."""
    posix, windows = PurePosixPath(path), PureWindowsPath(path)
    leaves = posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts)
    try:
        root = run_directory.resolve()
        inside = (root / path).resolve()
    except (OSError, ValueError, RuntimeError):  # a loop of links, or no possible file name
        return run_directory / path
    if leaves or not inside.is_relative_to(root):
        raise DpauditError(
            f"{run_directory}: artifact {path!r} is outside the run directory; "
            "expected a relative path without .."
        )
    return inside
