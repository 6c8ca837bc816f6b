"""benchmark.json: which audits a benchmark is made of, and what became of each."""

from typing import Any, Literal

from dpaudit.strict import Strict

State = Literal["waiting", "done", "failed"]


class Cell(Strict):
    """One audit. It has a folder of its own, ``cells/NAME``, with audit.json once it is done."""

    name: str  # of its folder
    values: dict[str, Any]  # by the path of the key that an axis sets, "defense.name"
    seed: int
    state: State = "waiting"
    error: str = ""  # of a cell that failed: one line


class BenchmarkResult(Strict):
    """A benchmark as far as it has come; written anew whenever a cell ends."""

    schema_version: Literal[1] = 1
    name: str
    version: str  # of dpaudit
    axes: tuple[str, ...]  # paths of keys, in the order of the file; without the seed
    cells: tuple[Cell, ...]
    timing: dict[str, float] = {}  # seconds by name of a cell: all that differs between two runs
