"""benchmark.json: which audits a benchmark is made of, and what became of each."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpaudit.errors import RunError
from dpaudit.registry import load_plugin
from dpaudit.strict import Strict

from .file_problems import read_model

if TYPE_CHECKING:
    import pandas as pd

State = Literal["waiting", "done", "failed"]


class Cell(Strict):
    """One audit. It has a folder of its own, ``cells/NAME``, with audit.json once it is done."""

    name: str  # of its folder
    values: dict[str, Any]  # by the path of the key that an axis sets, "defense.name"
    seed: int
    state: State = "waiting"
    error: str = ""  # of a cell that failed: one line
    code: str | None = None  # of this error, such as "DPA021"


class BenchmarkResult(Strict):
    """A benchmark as far as it has come; written anew whenever a cell ends."""

    schema_version: Literal[1] = 1
    name: str
    version: str  # of dpaudit
    axes: tuple[str, ...]  # paths of keys, in the order of the file; without the seed
    cells: tuple[Cell, ...]
    timing: dict[str, float] = {}  # seconds by name of a cell: all that differs between two runs

    @classmethod
    def read(cls, path: Path) -> "BenchmarkResult":
        """Read a benchmark.json.

        Raises:
            RunError: it is missing or damaged.
        """
        return read_model(path, cls, "a benchmark.json", RunError)

    def to_frame(self, folder: Path) -> "pd.DataFrame":
        """The leaderboard as a table, of the cells that lie in the benchmark's folder."""
        frame: pd.DataFrame = load_plugin("reports", "leaderboard")(self, folder).frame()
        return frame
