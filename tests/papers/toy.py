"""An experiment of two methods and two budgets whose numbers follow from settings and seed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dpaudit.errors import RunError
from dpaudit.papers.cells import Request
from dpaudit.papers.experiment import (
    CellContext,
    Experiment,
    ExperimentScale,
    MeasuredNumber,
    Open,
    Ordering,
    PublishedNumber,
    Settings,
    TableCell,
)

CALLS: list[tuple[str, int]] = []  # what was measured in this process


def measure(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    CALLS.append((settings["method"], seed))
    if settings["budget"] < 0:
        raise RunError("DPA070", "a number is infinite")
    base = {"A": 1.0, "B": 2.0}[settings["method"]] * settings["budget"]
    yield MeasuredNumber("score", base + settings["shift"] + 0.01 * seed)
    yield MeasuredNumber("score", 10.0, labels={"view": "other"})


CELLS = tuple(
    TableCell({"method": method, "budget": budget}, {"method": method, "budget": float(budget)})
    for budget in ("1", "4")
    for method in ("A", "B")
)
TOY = Experiment(
    paper="Toy",
    table="Table 1",
    shows="nothing",
    measure=measure,
    columns=("method", "budget", "view"),
    cells=CELLS,
    published=(PublishedNumber({"method": "B", "budget": "4"}, "score", 7.5, 0.5),),
    open=(Open("shift", 0.0, "not printed"), Open("tilt", 1, "of B alone", {"method": "B"})),
    orderings=(
        Ordering("Table 1: B is above A", "score", "method", "B"),
        Ordering("Table 1: A is above B", "score", "method", "A", ("B",), {"budget": "4"}),
        Ordering("Table 1: C is above all", "score", "method", "C"),
        Ordering("Table 1: all are above A", "score", "method", "", ("A",)),
    ),
    scales={
        "quick": ExperimentScale(3, 1, 10**6, only={"budget": ("4",)}, cut="one budget"),
        "paper": ExperimentScale(3, 5, 10**6),
    },
)
LEARNS = replace(TOY, data="mnist")


def ask(scale: str = "paper", **asked: object) -> Request:
    return Request("toy", scale, **asked)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cells").glob("*.json"))


TRAINED = {  # an audit file's, of a defense that is soon trained
    "data.name": "digits",
    "data.n_agents": 4,
    "graph.name": "ring",
    "model.name": "logistic",
    "defense.name": "dp-dpsgd",
    "defense.n_rounds": 6,
    "defense.batch_size": 16,
    "defense.epsilon": 5.0,
}
