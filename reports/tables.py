"""A result's numbers as rows: behind each figure of the page, and in the files of --tables."""

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dpaudit.files.finding import Finding
from dpaudit.files.result import AuditResult
from dpaudit.text import one_line

CROWD = 256  # agents beyond which a page shows what they have in common
Row = dict[str, object]
# With what a spreadsheet takes a text for a formula, where a cell begins: after a semicolon too,
# which separates cells in half of the world.
_FORMULA = re.compile(r"(^|;)(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_ABOUT = {"kind", "title", "claim", "attack", "threat_model", "message", "world", "batch_size"}
_INDEXES = ("finding", "kind", "standard_error")


def claims(result: AuditResult) -> Iterator[Row]:
    for claim in result.claims:
        own = claim.model_dump(exclude={"restated", "because"})
        restated = claim.restated.epsilon if claim.restated else None
        yield {
            **own,
            "restated_epsilon_low": restated and restated.low,
            "restated_epsilon_high": restated and restated.high,
            "because": " ".join(map(str, claim.because)),
        }


def metrics(
    findings: Iterable[tuple[int, Finding]], names: Collection[str] | None = None
) -> Iterator[Row]:
    """A row for each metric of findings with their indexes; of some names alone if given."""
    for i, finding in findings:
        own = finding.model_dump(include=_ABOUT)
        rounds = " ".join(map(str, finding.rounds))
        for name, metric in finding.metrics.items():
            if names is None or name in names:
                yield {"finding": i, **own, "rounds": rounds, "metric": name, **metric.model_dump()}


def series(result: AuditResult) -> Iterator[Row]:
    for i, finding in enumerate(result.findings):
        yield from _long(i, finding.series)


def traces(result: AuditResult) -> Iterator[Row]:
    for i, finding in enumerate(result.findings):
        yield from _long(i, finding.trace)


def wide(columns: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """Columns of equal length as rows."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def by_world(columns: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[Row]:
    """Columns of several worlds, or of several runs, below one another."""
    for world, own in columns.items():
        yield from ({"world": world, **row} for row in wide(own))


def filled(rows: Sequence[Row]) -> list[str]:
    """The columns that readers of a page need: not an index, nor what no row has."""
    names = dict.fromkeys(name for row in rows for name in row if name not in _INDEXES)
    return [name for name in names if any(row.get(name) not in (None, "") for row in rows)]


def _long(i: int, columns: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    for column, values in columns.items():
        for j, value in enumerate(values):
            yield {"finding": i, "column": column, "row": j, "value": value}


def training(result: AuditResult) -> Iterator[Row]:
    for world, curve in result.utility.items():
        for j, k in enumerate(curve.rounds):
            for agent, loss in enumerate(curve.loss[j]):
                accuracies = curve.accuracy[j] if curve.accuracy else ()
                accuracy = accuracies[agent] if agent < len(accuracies) else None
                own = {"loss": loss, "accuracy": accuracy}
                distance = curve.consensus_distance[j]
                yield {
                    "world": world, "round": k, "agent": agent, **own,
                    "consensus_distance": distance,
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


def as_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows of the same columns as a CSV file, with their names in the first line."""
    found = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]) if found else [], lineterminator="\n")
    writer.writerow({key: cell(key) for key in writer.fieldnames})
    writer.writerows({key: cell(value) for key, value in row.items()} for row in found)
    return text.getvalue()


def cell(value: object) -> object:
    """A text shows what is not seen, and is no formula of a spreadsheet; numbers stay numbers."""
    if not isinstance(value, str) or _is_numbers(value):
        return value
    return _FORMULA.sub(r"\1'", one_line(value))


def _is_numbers(text: str) -> bool:
    """Whether a text is nothing but numbers, one or several."""
    try:
        return all(math.isfinite(float(part)) for part in text.split(" "))
    except ValueError:
        return False
