"""Where an artifact of a run lies: in its run directory, whatever a file says."""

from pathlib import Path, PurePosixPath, PureWindowsPath

from dpaudit.errors import RunError

STRIP_GAP = 2  # white pixels between the images of a strip, which are of the same size


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
