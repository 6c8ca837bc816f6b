"""What an experiment is: settings, published numbers and what the paper leaves open.

Whoever adds a paper writes these values; ``cells`` runs them and ``outcome`` holds what came out
beside what was published. Settings are flat, by the dotted keys of an audit file
("defense.n_rounds"), or by names that an experiment without a network reads itself.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dpaudit.data.datasets import Dataset
from dpaudit.progress import OnProgress
from dpaudit.training.run_directory import RunDirectory

Settings = Mapping[str, Any]
Labels = Mapping[str, str]
ABSENT = "absent"  # the value of a setting that others have and this cell has not


class Measured(NamedTuple):
    """One number that a cell gives for one seed."""

    quantity: str  # with its unit
    value: float
    at: float | None = None  # where the point of a figure lies
    labels: Labels = {}  # beside those of the cell


class Published(NamedTuple):
    """One number of the table, by its labels."""

    labels: Labels
    quantity: str
    value: float
    spread: float | None = None  # behind the plus-minus, if it is printed


class Cell(NamedTuple):
    """What is run for one place of a table: settings over those of the experiment."""

    labels: Labels
    settings: Settings


class Open(NamedTuple):
    """What the paper does not say: a setting, our reading, and why."""

    key: str
    value: Any
    says: str
    where: Labels = {}  # only for cells with these labels


class Ordering(NamedTuple):
    """What the paper says is larger: one label of a column than others, all else equal."""

    says: str  # with the name of the table or figure
    quantity: str
    along: str  # the column
    above: str  # empty: each other label of the column
    below: tuple[str, ...] = ()  # none: each other label of the column
    where: Labels = {}


class Scale(NamedTuple):
    """How much of it is run, and what that took on two cores."""

    seeds: int
    seconds: float
    bytes: int
    settings: Settings = {}
    only: Mapping[str, tuple[str, ...]] = {}  # labels that are run; of other columns all
    cut: str = ""  # what is less than in the paper, in words


@dataclass(frozen=True)
class Around:
    """What a cell runs in: where it keeps how far it is, its data set, whom it tells."""

    run: RunDirectory
    stage: str  # under which it keeps
    dataset: Dataset | None
    on_progress: OnProgress

    def on_step(self, done: int, total: int) -> None:
        """Steps of a cell that is all of one kind."""
        self.on_progress(self.stage, done, total)


Measure = Callable[[Settings, int, Around], Iterable[Measured]]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper. The functions are of modules, so that processes know them."""

    paper: str
    table: str
    shows: str
    measure: Measure
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    scales: Mapping[str, Scale]  # quick, paper
    settings: Settings = field(default_factory=dict)  # of all cells
    published: tuple[Published, ...] = ()
    open: tuple[Open, ...] = ()
    orderings: tuple[Ordering, ...] = ()
    remarks: tuple[str, ...] = ()
    complete: Callable[[Settings], Settings] = dict  # settings that follow from others
    at: str = ""  # what the points of a figure lie along
    data: str = ""  # the name of its data set; empty: it needs none

    def values(self, column: str) -> list[str]:
        """The labels of a column that cells have, in their order."""
        found = (cell.labels[column] for cell in self.cells if column in cell.labels)
        return list(dict.fromkeys(found))
