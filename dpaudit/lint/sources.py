"""The files that are examined: those that are named, and Python files and notebooks in folders."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpaudit.files.documents import json_from, reason, text_of
from dpaudit.files.hint import Unread

MOST_BYTES = 5 * 2**20  # larger files were not written by a person
SKIPPED = {"__pycache__", "node_modules", "site-packages"}  # and what begins with a dot


@dataclass(frozen=True)
class SourceFile:
    """A file that was read."""

    path: str
    text: str
    is_asked_for: bool
    cells: tuple[tuple[int, int], ...] = ()  # (number, first line) of each cell of a notebook

    def place(self, line: int) -> tuple[int, int]:
        """The cell of a line, 0 outside of notebooks, and the line in it."""
        begun = [(cell, first) for cell, first in self.cells if first <= line]
        return (begun[-1][0], line - begun[-1][1] + 1) if begun else (0, line)


def sources(paths: Sequence[Path]) -> Iterator[SourceFile | Unread]:
    """Every file once, in order; links below a folder are not followed."""
    seen = set()
    for path in paths:
        for file in [path] if not path.is_dir() else sorted(_below(path)):
            if file not in seen:
                seen.add(file)
                yield _source(file, file == path)


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED and name[0] != "."]
        for name in names:
            file = Path(place, name)
            if name.endswith((".py", ".ipynb")) and not file.is_symlink():
                yield file


def _source(file: Path, is_asked_for: bool) -> SourceFile | Unread:
    try:
        text = text_of(file, MOST_BYTES)
        if file.suffix == ".ipynb":
            return _notebook(file, text, is_asked_for)
        return SourceFile(str(file), text, is_asked_for)
    except (OSError, ValueError) as error:
        said = "not UTF-8" if isinstance(error, UnicodeDecodeError) else reason(error)
        code = "DPA007" if isinstance(error, OSError) else "DPA085"
        return Unread(str(file), code, said, is_asked_for)


def _notebook(file: Path, text: str, is_asked_for: bool) -> SourceFile:
    """The code cells one after the other; lines for IPython are left out. Raises ValueError."""
    content = json_from(text)
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        raise ValueError("not a notebook: it has no cells")
    lines: list[str] = []
    begins: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, start=1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            code = cell.get("source", "")
            code = "".join(map(str, code)) if isinstance(code, list) else str(code)
            begins.append((number, len(lines) + 1))
            if not code.lstrip().startswith("%%"):  # a cell in another language
                lines += _plain(code.split("\n"))
    return SourceFile(str(file), "\n".join(lines), is_asked_for, tuple(begins))


def _plain(lines: list[str]) -> Iterator[str]:
    """The lines, with one that does nothing wherever IPython would be called."""
    continues, indent = False, ""
    for line in lines:
        stripped = line.strip()
        is_magic = stripped.startswith(("%", "!", "?")) or stripped.endswith("?") or continues
        indent = indent if continues else line[: len(line) - len(line.lstrip())]
        continues = is_magic and stripped.endswith("\\")
        yield f"{indent}pass" if is_magic else line
