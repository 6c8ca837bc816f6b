"""Artifacts of a run directory as images inside a page."""

import base64
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpaudit.files.artifact_file import artifact_file

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
        RunError: a path is absolute, goes up, or meets a link.
    """
    return {path: _read(path, run_directory) for path in dict.fromkeys(paths)}


def _read(path: str, run_directory: Path) -> Picture:
    inside = artifact_file(run_directory, path)
    try:
        content = inside.read_bytes() if inside.is_file() else None  # a pipe could have no end
    except (OSError, ValueError):  # ValueError: a path that no file can have
        content = None
    if content is None:
        return Picture(path, problem="missing")
    if not content.startswith(PNG) or len(content) < 24:
        return Picture(path, problem="not a PNG image")
    width, height = struct.unpack(">II", content[16:24])
    if not width or not height:
        return Picture(path, problem="an empty image")
    uri = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return Picture(path, uri, width, height)
