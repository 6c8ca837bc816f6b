"""Numbers that a file imports by name from other files of its package: read there, never imported.

Only ``NAME = number`` at the top of the other file counts, and only what is not changed there.
"""

import ast
import warnings
from functools import lru_cache
from pathlib import Path

from dpaudit.files.documents import text_of

from .module import Env, numbers_at_top
from .sources import MOST_BYTES


def imported_numbers(tree: ast.Module, file: Path) -> Env:
    """What such names hold in a file, by the name that they have in it."""
    found: Env = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            there = numbers_in(_file_of(node, file))
            for alias in node.names:
                if alias.name in there:
                    found[alias.asname or alias.name] = there[alias.name]
    return found


def _file_of(node: ast.ImportFrom, file: Path) -> Path | None:
    """The file that is imported from, below the folder of the package; None if there is none."""
    parts = node.module.split(".") if node.module else []
    folder = file.parent
    if node.level:
        for _ in range(node.level - 1):
            folder = folder.parent
    elif parts:  # the folder that holds the package, or the script that is run
        holding = (up for up in file.parents if up.name == parts[0])
        folder = next((up.parent for up in holding), folder)
    path = folder.joinpath(*parts)
    files = (path.with_suffix(".py"), path / "__init__.py") if parts else (path / "__init__.py",)
    return next((one for one in files if one.is_file() and not one.is_symlink()), None)


@lru_cache(maxsize=1024)
def numbers_in(file: Path | None) -> Env:
    """The numbers at the top of a file; nothing of one that cannot be read."""
    if file is None:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes warn
            return numbers_at_top(ast.parse(text_of(file, MOST_BYTES)))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
