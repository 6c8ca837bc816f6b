"""Files that are written whole or not at all, and those that lie in a run directory."""

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath

from dpaudit.errors import RunError

from .documents import reason

PARTIAL = ".partial"  # ends the names of files that are being written; what is killed leaves them
STRIP_GAP = 2  # white pixels between the images of a strip, which are of the same size


def write_whole(path: Path, content: bytes) -> None:
    """Write a file and the folders it lies in, without what killed processes left beside it.

    Raises:
        RunError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        replace_whole(path, content)


def replace_whole(path: Path, content: bytes, before: Callable[[], object] = lambda: None) -> None:
    """Write a file beside its place, then rename it; a link there is replaced, not followed.

    ``before`` is called before it is renamed; if that raises, nothing is.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        before()
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def refuse_links(path: Path) -> None:
    """A repository can hold links: no output follows one that lies below the working folder.

    Raises:
        RunError: a part of the path is such a link.
    """
    here, parts = os.path.realpath(os.curdir), path.parts
    for i in range(len(parts)):
        part = Path(*parts[: i + 1])
        above = os.path.realpath(part.parent)
        below = above == here or above.startswith(os.path.join(here, ""))
        if below and part.name != os.pardir and part.is_symlink():
            raise RunError(
                "DPA016",
                f"{path}: cannot write: {part} is a link, and no output follows a link below the "
                "working folder",
                "name what it leads to, or remove it",
            )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the operating system does not allow, or no path can be, is one line; so is a link."""
    refuse_links(path)
    try:
        yield
    except (OSError, ValueError) as error:
        raise RunError("DPA016", f"{path}: cannot write: {reason(error)}") from None


def _sweep(path: Path) -> None:
    """Remove what killed processes left beside a file."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL}"):
        pid = left.name.removesuffix(PARTIAL).rpartition(".")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            left.unlink(missing_ok=True)


def artifact_file(folder: Path, path: str) -> Path:
    """The file of a run directory that an artifact's path names, which may be missing.

    Raises:
        RunError: the path is absolute, goes up, or meets a link.
    """
    posix, windows = PurePosixPath(path), PureWindowsPath(path)
    if posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts):
        raise RunError(
            "DPA020",
            f"{folder}: artifact {path!r} is outside the run directory; "
            "expected a relative path without ..",
        )
    file = folder / path
    try:
        links = [place for place in (file, *file.parents) if place.is_symlink()]
    except (OSError, ValueError):  # no possible file name
        return file
    if any(place.is_relative_to(folder) and place != folder for place in links):
        raise RunError(
            "DPA020",
            f"{folder}: artifact {path!r} is a link, or lies behind one; expected a file of the "
            "run directory itself",
        )
    return file
