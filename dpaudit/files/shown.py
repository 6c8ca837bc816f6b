"""What a result has in Python and notebooks, which the room of reports makes of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pandas as pd


class ShownFigure(Protocol):
    """A figure of the report; a notebook shows it where it ends a cell."""

    name: str
    caption: str

    @property
    def frame(self) -> "pd.DataFrame":
        """The numbers behind it."""

    def save(self, path: str | Path) -> None:
        """Write it as SVG, PDF or PNG, by the ending of the path."""


class ShownFigures(Protocol):
    """Figures by name."""

    def __getitem__(self, name: str) -> ShownFigure: ...

    def __iter__(self) -> Iterator[str]: ...


class Notebook(Protocol):
    """A result in a notebook."""

    @property
    def figures(self) -> ShownFigures:
        """The figures of the report."""

    def frame(self, table: str) -> "pd.DataFrame":
        """One of the tables of the report."""

    def html(self) -> str:
        """The result as the end of a cell."""
