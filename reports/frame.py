"""One tidy frame of findings, a row for each metric: tables, comparison and leaderboard read it.

A figure of a claim, of an attack or of a leaderboard is the largest of its kind in that frame.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult, JudgedClaim

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, object]
_ABOUT = (
    "role", "kind", "title", "claim", "attack", "threat_model", "message", "world", "batch_size",
    "void",
)  # fmt: skip
_COLUMNS = ("run", "finding", *_ABOUT, "rounds", "metric", *Metric.model_fields)


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


def claim_figures(results: Sequence[AuditResult]) -> list[list[ClaimFigures]]:
    """The claims of each audit with their figures."""
    evidence = evidence_frame(findings_frame(results), results)
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
