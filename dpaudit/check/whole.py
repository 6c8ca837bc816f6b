"""Files that are written whole or not at all."""

import glob
import os
from pathlib import Path

from dpaudit.errors import RunError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, then rename it; a link there is replaced, not followed.

    Raises:
        RunError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        try:
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path}: cannot write: {error.strerror}") from None


def _sweep(path: Path) -> None:
    """Remove what killed processes left beside a file."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        pid = left.suffix[1:]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            left.unlink(missing_ok=True)
