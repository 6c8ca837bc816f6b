"""A result's numbers as rows: behind each figure of the page, and in the files of --tables."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dpaudit.files.result import AuditResult
from dpaudit.text import one_line

from .frame import Row, metric_rows

CROWD = 256  # agents beyond which a page shows what they have in common
# With what a spreadsheet takes a text for a formula, where a cell begins: after a semicolon too,
# which separates cells in half of the world.
_FORMULA = re.compile(r"(^|;)(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_LEFT_OUT = ("finding", "role", "kind", "standard_error")  # of tables on pages


def claims(result: AuditResult) -> Iterator[Row]:
    for claim in result.claims:
        restated = claim.restated.epsilon if claim.restated else None
        yield {
            **claim.model_dump(exclude={"restated", "because"}),
            "restated_epsilon_low": restated and restated.low,
            "restated_epsilon_high": restated and restated.high,
            "because": " ".join(map(str, claim.because)),
        }


def columns(result: AuditResult, kind: str) -> Iterator[Row]:
    """A row for each value of the "series", or the "trace", of each finding."""
    for i, finding in enumerate(result.findings):
        for column, values in getattr(finding, kind).items():
            for j, value in enumerate(values):
                yield {"finding": i, "column": column, "row": j, "value": value}


def training(result: AuditResult) -> Iterator[Row]:
    for world, curve in result.utility.items():
        for j, k in enumerate(curve.rounds):
            accuracies = dict(enumerate(curve.accuracy[j])) if curve.accuracy else {}
            for agent, loss in enumerate(curve.loss[j]):
                yield {
                    "world": world, "round": k, "agent": agent, "loss": loss,
                    "accuracy": accuracies.get(agent),
                    "consensus_distance": curve.consensus_distance[j],
                }  # fmt: skip


def training_of_many(result: AuditResult) -> Iterator[Row]:
    """The lowest, the mean and the highest over agents, of what is finite."""
    for world, curve in result.utility.items():
        for j, k in enumerate(curve.rounds):
            row: Row = {"world": world, "round": k}
            for name, values in (("loss", curve.loss), ("accuracy", curve.accuracy)):
                own = [x for x in values[j] if math.isfinite(x)] if values else []
                row |= {
                    f"lowest {name}": min(own, default=None),
                    f"mean {name}": sum(own) / len(own) if own else None,
                    f"highest {name}": max(own, default=None),
                }
            yield row | {"consensus_distance": curve.consensus_distance[j]}


TABLES: Mapping[str, Callable[[AuditResult], Iterator[Row]]] = {  # of a result, by name
    "claims": claims,
    "findings": lambda result: metric_rows(enumerate(result.findings)),
    "series": lambda result: columns(result, "series"),
    "traces": lambda result: columns(result, "trace"),
    "training": training,
}


def wide(series: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """Columns of equal length as rows."""
    return (dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True))


def filled(rows: Sequence[Row]) -> list[str]:
    """The columns that readers of a page need: not an index, nor what no row has."""
    names = dict.fromkeys(name for row in rows for name in row if name not in _LEFT_OUT)
    return [name for name in names if any(row.get(name) not in (None, "") for row in rows)]


def as_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows of the same columns as a CSV file, with their names in the first line."""
    found = list(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([list(map(cell, found[0])) if found else []])
    writer.writerows(map(cell, row.values()) for row in found)
    return text.getvalue()


def cell(value: object) -> object:
    """A text shows what is not seen, and is no formula of a spreadsheet; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    try:
        if all(math.isfinite(float(part)) for part in value.split(" ")):
            return value
    except ValueError:
        pass
    return _FORMULA.sub(r"\1'", one_line(value))
