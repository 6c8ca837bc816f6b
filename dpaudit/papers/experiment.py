"""What an experiment is: settings, published numbers and what the paper leaves open.

Whoever adds a paper writes these values in a file of ``experiments/``, which ``declared`` reads;
``cells`` runs them, and ``outcome`` sets what came out beside what was published. Settings are
flat, by the dotted keys of an audit file ("defense.n_rounds"), or by names that an experiment
without a network reads itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dpaudit.data.datasets import Dataset
from dpaudit.progress import OnProgress
from dpaudit.training.run_directory import RunDirectory

Settings = Mapping[str, Any]
Labels = Mapping[str, str]
ABSENT = "absent"  # the value of a setting that others have and this cell has not


class MeasuredNumber(NamedTuple):
    """One number that a cell gives for one seed."""

    quantity: str  # with its unit
    value: float
    at: float | None = None  # where the point of a figure lies
    labels: Labels = {}  # beside those of the cell
    low: float | None = None  # of a 95% interval over the batches of one run, if there is one
    high: float | None = None
    n: int = 1  # of these batches


class PublishedNumber(NamedTuple):
    """One number of the paper's table, by its labels."""

    labels: Labels
    quantity: str
    value: float
    spread: float | None = None  # behind the plus-minus, if it is printed


class TableCell(NamedTuple):
    """What is run for one place of a table: settings over those of the experiment."""

    labels: Labels
    settings: Settings


class Open(NamedTuple):
    """What the paper does not say: a setting, our reading, and why."""

    key: str
    value: Any = None
    says: str = ""
    where: Labels = {}  # only for cells with these labels


class Ordering(NamedTuple):
    """What the paper says is larger: one label of a column than others, all else equal."""

    says: str  # with the name of the table or figure
    quantity: str
    along: str  # the column
    above: str = ""  # empty: each other label of the column
    below: Sequence[str] = ()  # none: each other label of the column
    where: Labels = {}


class ExperimentScale(NamedTuple):
    """How much of it is run, and what that took on two cores."""

    seeds: int
    seconds: float
    bytes: int
    settings: Settings = {}
    only: Mapping[str, Sequence[str]] = {}  # labels that are run; of other columns all
    cut: str = ""  # what is less than in the paper, in words


@dataclass(frozen=True)
class CellContext:
    """What a cell runs in: where it keeps checkpoints, its data set, and whom it reports to."""

    run: RunDirectory
    stage: str  # the name of its checkpoints
    dataset: Dataset | None
    on_progress: OnProgress

    def on_step(self, done: int, total: int) -> None:
        """Report a step of a cell that is all of one kind."""
        self.on_progress(self.stage, done, total)


Measure = Callable[[Settings, int, CellContext], Iterable[MeasuredNumber]]  # settings, seed


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper. The functions are of modules, so that processes know them."""

    paper: str
    table: str
    shows: str
    measure: Measure
    columns: Sequence[str]
    cells: tuple[TableCell, ...]
    scales: Mapping[str, ExperimentScale]  # quick, paper
    settings: Settings = field(default_factory=dict)  # of all cells
    published: tuple[PublishedNumber, ...] = ()
    open: tuple[Open, ...] = ()
    orderings: tuple[Ordering, ...] = ()
    remarks: Sequence[str] = ()
    at: str = ""  # what the points of a figure lie along
    data: str = ""  # the name of its data set; empty: it needs none

    def values(self, column: str) -> list[str]:
        """The labels of a column that cells have, in their order."""
        found = (cell.labels[column] for cell in self.cells if column in cell.labels)
        return list(dict.fromkeys(found))


def spread(last: int, count: int) -> list[int]:
    """``count`` rounds from 1 to ``last`` (fewer where they coincide), even in log k."""
    if count >= last:
        return list(range(1, last + 1))
    return sorted({int(k) for k in np.geomspace(1, last, count).round()})


def printed(
    numbers: str, rows: Sequence[str], columns: Sequence[Labels], quantity: str
) -> Iterator[PublishedNumber]:
    """The numbers of a printed table.

    Args:
        numbers: a line for each row: its labels with commas, a bar, and a number for each column,
            "0.25, DPDL | 94.4±0.6 92.3±0.5"; "-" where the paper has none.
        rows: the names of the columns that the labels before the bar belong to.
        columns: the labels of each number of a line.

    Raises:
        ValueError: a line has too few or too many labels or numbers.
    """
    for line in numbers.strip().splitlines():
        before, _, after = line.partition("|")
        labels = (label.strip() for label in before.split(",", len(rows) - 1))
        own = dict(zip(rows, labels, strict=True))
        for of_column, number in zip(columns, after.split(), strict=True):
            if number != "-":
                value, _, spread = number.partition("±")
                known = float(spread) if spread else None
                yield PublishedNumber({**own, **of_column}, quantity, float(value), known)
