"""Rows of a leaderboard: one for each combination of axes, adversary and claim, over its seeds.

A figure of a row is the mean of its seeds with a 95% interval by Student's t, which one seed has
not. What accounting gives lies between its least and its largest end in any seed; what is falsified
in one seed is void. A verdict is the worst of the seeds'.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from dpaudit.errors import RunError, shortened
from dpaudit.files.artifact_file import artifact_file
from dpaudit.files.benchmark_result import BenchmarkResult, Cell
from dpaudit.files.finding import Metric
from dpaudit.files.result import AuditResult, JudgedClaim
from dpaudit.files.verdict import Verdict, worst

from .measured import FIGURES, Measured, measured
from .tables import Row

LONGEST = 60  # characters of a value of an axis
NOT_RUN = "not run yet"

Values = tuple[str, ...]  # of the axes, as text


class Gap(NamedTuple):
    """A cell without a result, and why it has none."""

    cell: Cell
    values: Values
    why: str


@dataclass(frozen=True)
class Standing:
    """What audits that differ in their seeds alone found of a claim against an adversary."""

    values: Values
    seeds: tuple[Measured, ...]
    gaps: tuple[Gap, ...]  # of other seeds

    @property
    def graph(self) -> str:
        return self.seeds[0].graph if self.seeds else ""

    @property
    def adversary(self) -> str:
        return self.seeds[0].adversary if self.seeds else ""

    @property
    def claim(self) -> JudgedClaim | None:
        return self.seeds[0].claim if self.seeds else None

    @property
    def verdict(self) -> Verdict | None:
        return worst([seed.claim.verdict for seed in self.seeds if seed.claim is not None])

    @property
    def agreeing(self) -> int:
        """How many seeds have that verdict."""
        claims = (seed.claim for seed in self.seeds)
        return sum(claim is not None and claim.verdict is self.verdict for claim in claims)

    @property
    def void(self) -> str | None:
        """What falsifies accounting in some seed."""
        return next((seed.void for seed in self.seeds if seed.void), None)

    @property
    def accounted(self) -> Metric | None:
        """Epsilon from the least to the largest end in any seed; its value is the largest."""
        told = [seed.accounted for seed in self.seeds if seed.accounted is not None]
        if not told:
            return None
        low = min(one.value if one.low is None else one.low for one in told)
        high = max(one.value if one.high is None else one.high for one in told)
        return Metric(value=high, low=low, high=high)

    @cached_property
    def figures(self) -> dict[str, Metric]:
        """Those of ``FIGURES`` that some seed has."""
        told = {key: [s.figures[key] for s in self.seeds if key in s.figures] for key in FIGURES}
        return {k: over_seeds(x, FIGURES[k].is_share) for k, x in told.items() if x}

    def lacks(self, key: str) -> str:
        """Why it has no such figure: "not available" where some seed was asked for it."""
        return "not available" if any(key in seed.unavailable for seed in self.seeds) else ""


def over_seeds(values: Sequence[float], is_share: bool = False) -> Metric:
    """The mean and its 95% interval by Student's t, of a share within 0 and 1; n counts seeds.

    Of one seed, or where one is infinite, there is no interval.
    """
    from scipy.special import stdtrit  # half a second that pages without it do not wait for

    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2 or not math.isfinite(mean):
        return Metric(value=mean, n=n)
    variance = math.fsum((x - mean) ** 2 for x in values) / (n - 1)
    half = float(stdtrit(n - 1, 0.975)) * math.sqrt(variance / n)
    low, high = mean - half, mean + half
    if is_share:
        low, high = max(0.0, low), min(1.0, high)
    return Metric(value=mean, low=low, high=high, n=n)


def standings(benchmark: BenchmarkResult, folder: Path) -> list[Standing]:
    """The rows of a benchmark, in the order of its cells.

    A result that cannot be read is a gap, which says why.
    """
    texts = {}  # of each combination, whose values may be alike as text
    found: dict[str, dict[tuple[str, int | None], list[Measured]]] = {}
    gaps: dict[str, list[Gap]] = {}
    for cell, values in zip(benchmark.cells, _values(benchmark), strict=True):
        which = repr([cell.values.get(axis) for axis in benchmark.axes])
        texts[which], rows = values, found.setdefault(which, {})
        try:
            for one in _measured(cell, folder):
                claim = None if one.claim is None else one.claim.claim
                rows.setdefault((one.adversary, claim), []).append(one)
        except RunError as error:
            gaps.setdefault(which, []).append(Gap(cell, values, str(error)))
    return [
        Standing(texts[which], tuple(seeds), tuple(gaps.get(which, ())))
        for which, rows in found.items()
        for seeds in rows.values() or [[]]
    ]


def gaps_of(rows: Sequence[Standing]) -> list[Gap]:
    """Each cell without a result, once."""
    return list({gap.cell.name: gap for row in rows for gap in row.gaps}.values())


def _measured(cell: Cell, folder: Path) -> list[Measured]:
    """Raises RunError, in the line that says why there is no result."""
    if cell.state != "done":
        raise RunError("DPA070", cell.error or NOT_RUN)
    return list(measured(AuditResult.read(artifact_file(folder, f"cells/{cell.name}/audit.json"))))


def _values(benchmark: BenchmarkResult) -> list[Values]:
    """Of each cell the values of the axes; tables by their names, where these tell them apart."""
    columns = [
        _told_apart([_as_text(cell.values.get(axis)) for cell in benchmark.cells],
                    [_name(cell.values.get(axis)) for cell in benchmark.cells])
        for axis in benchmark.axes
    ]  # fmt: skip
    return list(zip(*columns, strict=True)) if columns else [()] * len(benchmark.cells)


def _told_apart(texts: Sequence[str], names: Sequence[str | None]) -> list[str]:
    meant: dict[str, set[str]] = {}
    for text, name in zip(texts, names, strict=True):
        meant.setdefault(shortened(name or text, LONGEST), set()).add(text)
    short = [shortened(name or text, LONGEST) for text, name in zip(texts, names, strict=True)]
    return [one if len(meant[one]) == 1 else text for one, text in zip(short, texts, strict=True)]


def _name(value: object) -> str | None:
    """Of a table, or of all tables of an array."""
    if isinstance(value, list) and value:
        names = [_name(part) for part in value]
        return None if None in names else ", ".join(filter(None, names))
    named = value.get("name", value.get("text")) if isinstance(value, dict) else None
    return named if isinstance(named, str) else None


def _as_text(value: object) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def as_rows(axes: Sequence[str], rows: Sequence[Standing]) -> Iterator[Row]:
    """The rows as a table of numbers and texts: the file that is exported."""
    for row in rows:
        claim, accounted, void = row.claim, row.accounted, row.void
        yield {
            **dict(zip(axes, row.values, strict=True)),
            "adversary": row.adversary,
            "claim": claim and claim.text,
            "scope": claim and claim.scope,
            "adjacency": claim and claim.adjacency,
            "delta": claim and claim.delta,
            "claimed_epsilon": claim and claim.epsilon,
            "claimed_mu": claim and claim.mu,
            "accounted_epsilon_low": accounted and accounted.low,
            "accounted_epsilon_high": accounted and (math.inf if void else accounted.high),
            "accounting_void": void,
            "verdict": row.verdict and row.verdict.value,
            "seeds": len(row.seeds),
            "seeds_of_this_verdict": row.agreeing,
            **_figures(row),
            "gaps": "; ".join(f"{gap.cell.name}: {gap.why}" for gap in row.gaps) or None,
        }


def _figures(row: Standing) -> Row:
    """Each figure with its ends, and how many seeds it is of."""
    columns: Row = {}
    for key in FIGURES:
        metric = row.figures.get(key)
        columns[key] = metric and metric.value
        columns[f"{key}_low"] = metric and metric.low
        columns[f"{key}_high"] = metric and metric.high
        columns[f"{key}_seeds"] = metric and metric.n
    return columns
