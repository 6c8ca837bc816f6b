"""Results as data of a folder like docs/results: of experiments, and tables of other commands.

An experiment is a table or figure of a paper, what was published beside what came out here. Its
published runs are a file for each scale.
"""

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, Literal

from dpaudit.strict import Strict

from .finding import Metric, Number


class Assumption(Strict):
    """What a paper leaves open, and how it is read here."""

    key: str  # key by which another reading can be asked for
    value: Any
    says: str


Interval = Literal["student", "range"]  # 95% Student-t, or the least and the largest of the seeds


SIGNED = ("PSNR", "SSIM", "dB above", "information", "its coefficient")  # quantities below 0 too


def limits(quantity: str) -> tuple[float, float]:
    """What a quantity can be at least and at most."""
    if quantity.startswith(SIGNED):
        return -inf, inf
    return 0.0, 100.0 if quantity.endswith("%") else inf


class ExperimentLine(Strict):
    """One number of a table or one point of a figure."""

    labels: dict[str, str]  # "method" to "DPDL"
    quantity: str  # with its unit
    at: Number | None = None  # place of the point in a figure
    published: Number | None = None
    published_spread: Number | None = None  # plus-minus, as the paper prints it
    ours: Metric | None = None  # mean over seeds; None: no run ended
    interval: Interval = "student"  # kind of our interval
    difference: Number | None = None  # ours less the published value
    values: tuple[Number, ...] = ()  # one per seed
    error: str = ""  # why a run did not end, one line


class HeldOrdering(Strict):
    """Something that the paper says is larger, and how often it was here."""

    says: str
    compared: int = 0  # pairs of numbers
    as_published: int = 0  # pairs whose mean differs as the paper says
    confirmed: int = 0  # and the interval over seeds excludes 0
    contradicted: int = 0  # it excludes 0 on the other side


class ExperimentResult(Strict):
    """All that tables, pages and files show of one experiment at one scale."""

    schema_version: Literal[1] = 1
    name: str
    paper: str
    table: str  # or figure
    shows: str
    scale: str
    cut: str  # what this scale leaves out; empty: nothing
    data: str  # data set; empty: none
    data_of_the_paper: str
    seeds: tuple[int, ...]
    chosen: dict[str, tuple[str, ...]] = {}  # labels that alone were run
    changed: dict[str, Any] = {}  # settings that were asked for
    asked: tuple[str, ...] = ()  # both of these as they were typed: "N=10", "defense.h=3"
    command: str = ""  # command that repeats the run
    date: str = ""
    at: str = ""  # what a figure's points lie along, such as "round"
    assumed: tuple[Assumption, ...]
    columns: tuple[str, ...]
    lines: tuple[ExperimentLine, ...]
    orderings: tuple[HeldOrdering, ...] = ()
    remarks: tuple[str, ...] = ()
    seconds: float  # time of all cells, each on one thread
    version: str

    @property
    def other_data(self) -> bool:
        """Whether the paper learned from something else."""
        return self.data != self.data_of_the_paper

    @property
    def title(self) -> str:
        other = f", on {self.data} and not on {self.data_of_the_paper}" if self.other_data else ""
        return f"{self.paper}, {self.table}: scale {self.scale}{other}"

    @classmethod
    def read(cls, path: Path) -> "ExperimentResult":
        return cls.model_validate_json(path.read_bytes())


class ExperimentRuns(Strict):
    """Published runs of one experiment at one scale: of other cells, readings or data each."""

    schema_version: Literal[1] = 1
    runs: tuple[ExperimentResult, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "ExperimentRuns":
        return cls.model_validate_json(path.read_bytes())

    def put(self, run: ExperimentResult) -> "ExperimentRuns":
        """Add a run, which replaces an older one of the same cells, readings and data."""
        by_what = {(old.asked, old.data): old for old in self.runs}
        return ExperimentRuns(runs=tuple((by_what | {(run.asked, run.data): run}).values()))

    def to_json(self) -> str:
        """JSON with one number of the table a line, so that a changed number is a changed line."""
        dumped = (run.model_dump(mode="json", exclude_defaults=True) for run in self.runs)
        runs = ",\n".join(_one_a_line(run, "lines") for run in dumped)
        return '{"schema_version": 1, "runs": [\n' + runs + "\n]}\n"


TableEntry = float | str | None  # an infinite number is a text, which JSON can hold


class ResultTable(Strict):
    """One table: a row of entries for its columns."""

    title: str
    about: str = ""  # text between the title and the table
    columns: tuple[str, ...]
    rows: tuple[tuple[TableEntry, ...], ...]


class ResultTables(Strict):
    """Tables that one command made."""

    schema_version: Literal[1] = 1
    title: str
    about: str = ""
    command: str = ""  # command that makes the table again
    date: str = ""
    tables: tuple[ResultTable, ...]

    @classmethod
    def read(cls, path: Path) -> "ResultTables":
        return cls.model_validate_json(path.read_bytes())

    @property
    def rows(self) -> Iterator[dict[str, TableEntry]]:
        """The rows of all tables in all their columns, with the title of each row's table first."""
        empty = dict.fromkeys(name for table in self.tables for name in table.columns)
        for table in self.tables:
            for row in table.rows:
                yield {"table": table.title, **empty, **dict(zip(table.columns, row, strict=True))}

    def to_json(self) -> str:
        """JSON with one row of a table a line, so that a changed row is a changed line."""
        about = json.dumps(self.model_dump(mode="json", exclude={"tables"}), ensure_ascii=False)
        tables = ",\n".join(_one_a_line(one.model_dump(mode="json"), "rows") for one in self.tables)
        return about.removesuffix("}") + ', "tables": [\n' + tables + "\n]}\n"


def _one_a_line(content: dict[str, Any], key: str) -> str:
    """JSON of an object with each entry of one of its arrays, the last, on a line of its own."""
    entries = ",\n    ".join(json.dumps(one, ensure_ascii=False) for one in content.pop(key))
    about = json.dumps(content, ensure_ascii=False, indent=2).removesuffix("\n}")
    return f'{about},\n  "{key}": [\n    {entries}\n  ]\n}}'
