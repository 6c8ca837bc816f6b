"""A hint of a mistake in privacy code, as `dpaudit lint` finds it and reports show it."""

from typing import NamedTuple


class Hint(NamedTuple):
    """Where code may be wrong, and why; never a verdict: an audit has to confirm it."""

    path: str
    line: int  # 1-based; of a notebook, in its cell
    column: int  # 1-based
    code: str  # code of the rule, such as "DPA201"
    message: str  # what was found, in one sentence
    cell: int = 0  # cell of a notebook, from 1 on, counting all; 0: no notebook

    @property
    def place(self) -> str:
        """The file with its line, as editors read it."""
        cell = f"cell {self.cell}:" if self.cell else ""
        return f"{self.path}:{cell}{self.line}:{self.column}"


class Unread(NamedTuple):
    """A file that could not be examined, and why."""

    path: str
    code: str  # code with a page of its own
    reason: str
    is_asked_for: bool  # it was named itself, and not found in a folder


class LintResult(NamedTuple):
    """What `dpaudit lint` found."""

    n_files: int  # files that were examined
    hints: tuple[Hint, ...]
    unread: tuple[Unread, ...] = ()
