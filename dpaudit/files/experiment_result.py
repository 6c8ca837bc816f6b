"""experiment.json: a table or figure of a paper, what was published beside what came out here."""

from pathlib import Path
from typing import Any, Literal

from dpaudit.strict import Strict

from .finding import Metric, Number


class Assumption(Strict):
    """What a paper leaves open, and how it is read here."""

    key: str  # by which another reading is asked for
    value: Any
    says: str


class ExperimentLine(Strict):
    """One number of a table or one point of a figure."""

    labels: dict[str, str]  # "method" to "DPDL"
    quantity: str  # with its unit
    at: Number | None = None  # of a figure: where the point lies
    published: Number | None = None
    published_spread: Number | None = None  # as the paper prints it, behind its plus-minus
    ours: Metric | None = None  # mean over seeds; None: no run ended
    values: tuple[Number, ...] = ()  # of each seed
    error: str = ""  # why a run did not end, one line

    @property
    def difference(self) -> float | None:
        """Ours less the published value."""
        if self.ours is None or self.published is None:
            return None
        return self.ours.value - self.published


class HeldOrdering(Strict):
    """Something that the paper says is larger, and how often it was here."""

    says: str
    compared: int = 0  # pairs of numbers
    as_published: int = 0  # of which the mean differs as the paper says
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
    data: str  # that was learned from; empty: none
    data_of_the_paper: str
    seeds: tuple[int, ...]
    chosen: dict[str, tuple[str, ...]] = {}  # labels that alone were run
    changed: dict[str, Any] = {}  # settings that were asked for
    at: str = ""  # what the points of a figure lie along, "round"
    assumed: tuple[Assumption, ...]
    columns: tuple[str, ...]
    lines: tuple[ExperimentLine, ...]
    orderings: tuple[HeldOrdering, ...] = ()
    remarks: tuple[str, ...] = ()
    seconds: float  # of all cells, each on one thread
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
