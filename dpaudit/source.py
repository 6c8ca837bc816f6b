"""The files that a program is made of, and the hash of what is in them."""

import os
import stat
from collections.abc import Iterable
from functools import lru_cache
from hashlib import file_digest, sha256
from importlib.util import find_spec
from pathlib import Path

BESIDE = ("attacks", "defenses", "recorder", "reports")  # beside dpaudit, in a repository
NOT_SOURCE = ("__pycache__", "site-packages", "node_modules", ".git")


def own_source() -> tuple[Path, ...]:
    """All of dpaudit, whichever room this module lies in; the families may lie elsewhere.

    Not where else ``dpaudit`` looks for its families, which is all of a repository.
    """
    specs = map(find_spec, ("dpaudit", *(f"dpaudit.{name}" for name in BESIDE)))
    folders = [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin]
    return tuple(path for folder in folders for path in below(folder, ".py"))


def below(folder: Path, suffix: str, hidden: bool = False) -> list[Path]:
    """The files below a folder, in order; environments are not entered, nor are hidden folders."""
    found = []
    for path, folders, files in os.walk(folder):
        entered = [name for name in folders if name not in NOT_SOURCE]
        folders[:] = [name for name in entered if hidden or name[0] != "."]
        found += [Path(path) / name for name in files if name.endswith(suffix)]
    return sorted(found)


def hash_of(files: Iterable[Path], root: Path | None = None) -> str:
    digest = sha256()
    for path in files:
        name = path.name if root is None else path.relative_to(root).as_posix()
        digest.update(f"{name}\0".encode())
        digest.update(_content_hash(path))
    return digest.hexdigest()


def _content_hash(path: Path) -> bytes:
    """Hash of a regular file; a pipe or a device, which may never end, counts as missing."""
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            times = found.st_mtime_ns, found.st_ctime_ns
            return _hash_as_of(path, found.st_dev, found.st_ino, found.st_size, *times)
    except OSError:
        pass
    return b"missing"  # the audit will say so


@lru_cache(maxsize=4096)
def _hash_as_of(path: Path, *as_of: int) -> bytes:
    """Read once: whoever changes a file changes the time at which it was changed, too."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").digest()
