"""A result's numbers as rows, in files and behind figures, and as one tidy frame of findings.

The frame has a row for each metric: comparison, leaderboard and notebook read it. A figure of a
claim, of an attack or of a leaderboard is the largest of its kind in that frame.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult, EpsilonRange, JudgedClaim
from dpaudit.text import one_line

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, object]
_ABOUT = (
    "role", "kind", "title", "claim", "attack", "threat_model", "message", "world", "batch_size",
    "void",
)  # fmt: skip
_COLUMNS = ("run", "finding", *_ABOUT, "rounds", "metric", *Metric.model_fields)
CROWD = 256  # agents beyond which a page shows what they have in common
# With what a spreadsheet takes a text for a formula, where a cell begins: after a semicolon too,
# which separates cells in half of the world.
_FORMULA = re.compile(r"(^|;)(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_LEFT_OUT = ("finding", "role", "kind", "standard_error")  # of tables on pages


class LargestFigure(NamedTuple):
    """The largest of some figures. Of a void one only the lower end may stand."""

    metric: Metric | None = None  # None: there is no such figure
    void: str | None = None  # what falsifies it
    among: int = 1  # findings of which it is the largest

    @property
    def compared(self) -> float | None:
        """The number that is compared between audits: the upper end of an accounted interval."""
        return None if self.void or self.metric is None else self.metric.value


class ClaimFigures(NamedTuple):
    """A claim against one adversary, with its figures."""

    claim: JudgedClaim
    accounted: LargestFigure  # epsilon of one record over the whole run
    exact: LargestFigure  # epsilon that the view leaks by the protocol's algebra
    certified: LargestFigure
    ceiling: LargestFigure
    sensitivity: LargestFigure  # measured over stated


def metric_rows(
    findings: Iterable[tuple[int, Finding]], names: Collection[str] | None = None
) -> Iterator[Row]:
    """A row for each metric of findings with their indexes.

    Args:
        names: the metrics that are wanted; None: all.
    """
    for i, finding in findings:
        about = finding.model_dump(include={*_ABOUT})
        rounds = " ".join(map(str, finding.rounds))
        for name, metric in finding.metrics.items():
            if names is None or name in names:
                row = {"finding": i, **about, "rounds": rounds, "metric": name}
                yield row | metric.model_dump()


def findings_frame(results: Sequence[AuditResult]) -> "pd.DataFrame":
    """Every metric of every finding; the column "run" is the index of its audit."""
    import pandas as pd

    rows = [
        {"run": run, **row}
        for run, result in enumerate(results)
        for row in metric_rows(enumerate(result.findings))
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({"value": float})


def of_the_defense(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The rows that are about the defended run."""
    return frame[frame.world.isna() | (frame.world == "defense")]


def largest(frame: "pd.DataFrame", by: list[str]) -> "pd.DataFrame":
    """The row with the largest value of each group, with the size of the group as "among".

    A void row comes before all others and an undefined one last; of equal ones the first is taken.
    """
    found = frame.assign(
        among=frame.groupby(by, dropna=False).value.transform("size"),
        is_void=frame.void.notna(),
        size=frame.value.fillna(-math.inf),
    )
    found = found.sort_values(["is_void", "size"], ascending=False, kind="stable")
    return found.drop_duplicates(by)


def largest_figures(
    frame: "pd.DataFrame", results: Sequence[AuditResult], by: list[str]
) -> dict[tuple[Any, ...], LargestFigure]:
    """The largest figure of each group, by the group's values; what is missing there is None."""
    found = {}
    for row in largest(frame, by).to_dict("records"):
        finding = results[row["run"]].findings[row["finding"]]
        key = tuple(None if row[name] != row[name] else row[name] for name in by)
        metric = finding.metrics[row["metric"]]
        found[key] = LargestFigure(metric, finding.void, row["among"])
    return found


def evidence_frame(frame: "pd.DataFrame", results: Sequence[AuditResult]) -> "pd.DataFrame":
    """The rows that bear on each claim; the column "place" is the claim's index in its audit."""
    import pandas as pd

    pairs = [
        (run, place, i)
        for run, result in enumerate(results)
        for place, claim in enumerate(result.claims)
        for i, finding in enumerate(result.findings)
        if i in claim.because
        or (finding.role is Role.SENSITIVITY and finding.adjacency in (None, claim.adjacency))
    ]
    named = pd.DataFrame(pairs, columns=["run", "place", "finding"])
    return named.merge(frame, on=["run", "finding"])


def claim_figures(
    evidence: "pd.DataFrame", results: Sequence[AuditResult]
) -> list[list[ClaimFigures]]:
    """The claims of each audit with their figures."""
    found = largest_figures(evidence, results, ["run", "place", "role", "metric"])
    of_findings = (
        (Role.EXACT_LEAK, Name.EPSILON),
        (Role.TEST, Name.EPSILON_LOWER_BOUND),
        (Role.TEST, Name.CEILING),
        (Role.SENSITIVITY, Name.MEASURED_OVER_STATED),
    )
    return [
        [
            ClaimFigures(
                claim,
                LargestFigure(r.epsilon, r.void) if (r := claim.restated) else LargestFigure(),
                *(found.get((run, place, *which), LargestFigure()) for which in of_findings),
            )
            for place, claim in enumerate(result.claims)
        ]
        for run, result in enumerate(results)
    ]


def claims(result: AuditResult) -> Iterator[Row]:
    for claim in result.claims:
        restated = claim.restated.epsilon if claim.restated else None
        yield {
            **claim.model_dump(exclude={"restated", "because", "premises", "range"}),
            "restated_epsilon_low": restated and restated.low,
            "restated_epsilon_high": restated and restated.high,
            **dict.fromkeys(f"{end}_epsilon" for end in EpsilonRange.model_fields),
            **{f"{end}_epsilon": value for end, value in claim.range or ()},
            "because": " ".join(map(str, claim.because)),
        }


def premises(result: AuditResult) -> Iterator[Row]:
    """A row for each claim, adversary and premise."""
    for claim in result.claims:
        about = claim.model_dump(include={"claim", "text", "threat_model", "verdict"})
        for premise in claim.premises:
            findings = " ".join(map(str, premise.findings))
            yield {
                **about, "premise": premise.name, "status": premise.status, "says": premise.says,
                "findings": findings,
            }  # fmt: skip


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
    "premises": premises,
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
