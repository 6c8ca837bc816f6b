"""What a file, a folder's listing or the place of a module is like now, as a text."""

import os
import stat
from collections.abc import Iterable
from hashlib import file_digest, sha256
from importlib.machinery import all_suffixes

MISSING, FOLDER, ENDLESS = "missing", "folder", "endless"  # in the place of a file's hash


def content(path: str) -> str:
    """The SHA-256 of a file; MISSING, FOLDER, or ENDLESS for a pipe or a device."""
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            return FOLDER
        if not stat.S_ISREG(kind):
            return ENDLESS
        with open(path, "rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return MISSING


def names_in(path: str) -> list[str]:
    """What a folder holds, in order, without hidden names and compiled modules."""
    try:
        found = os.listdir(path)
    except (OSError, ValueError):
        return []
    return sorted(name for name in found if name[0] != "." and name != "__pycache__")


def listing(names: Iterable[str], ignored: Iterable[str]) -> str:
    """The hash of names, without some."""
    names = set(names) - set(ignored)
    return sha256("\0".join(sorted(names)).encode("utf-8", "surrogateescape")).hexdigest()


def module_place(folder: str, name: str, portions: bool) -> str:
    """As what a folder holds a module: the ends of the names that Python would import.

    Args:
        portions: whether a folder without ``__init__`` counts, a portion of a namespace package.
    """
    place = os.path.join(folder, name)
    ends = [end for end in all_suffixes() if os.path.isfile(place + end)]
    inits = [f"/__init__{end}" for end in all_suffixes()]
    ends += [end for end in inits if os.path.isfile(place + end)]
    if portions and os.path.isdir(place):
        ends.append("/")
    return " ".join(ends)
