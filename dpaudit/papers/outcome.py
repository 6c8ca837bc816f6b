"""What came out of an experiment's cells, beside what was published."""

from collections.abc import Iterator, Mapping
from itertools import product
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, stdev

from scipy.special import stdtrit

from dpaudit.files.experiment_result import (
    Assumption,
    ExperimentLine,
    ExperimentResult,
    HeldOrdering,
)
from dpaudit.files.finding import Metric
from dpaudit.progress import OnProgress
from dpaudit.version import __version__

from .cells import Done, Request, readings, run_cells, scale_of, seeds_of
from .experiment import ABSENT, Cell, Experiment, Labels, Ordering

FEWEST = 3  # seeds of which an interval is told
Found = list[tuple[Cell, dict[int, Done]]]
Key = tuple[tuple[tuple[str, str], ...], str, float | None]  # labels, quantity, at


def reproduced(
    experiment: Experiment, request: Request, out: Path, workers: int, on_progress: OnProgress
) -> ExperimentResult:
    """Run what is not run yet, and hold all of it beside the paper; written to experiment.json.

    Raises:
        DpauditError: nothing can be run.
    """
    found = run_cells(experiment, request, out, workers, on_progress)
    scale, lines = scale_of(experiment, request), tuple(_lines(experiment, found))
    return ExperimentResult(
        name=request.name,
        paper=experiment.paper,
        table=experiment.table,
        shows=experiment.shows,
        scale=request.scale,
        cut=scale.cut,
        data=Path(request.data or experiment.data).name,
        data_of_the_paper=experiment.data,
        seeds=seeds_of(experiment, request),
        chosen={**scale.only, **request.only},
        changed=dict(request.changed),
        at=experiment.at,
        assumed=tuple(_assumed(experiment, found)),
        columns=experiment.columns,
        lines=lines,
        orderings=tuple(held(ordering, lines) for ordering in experiment.orderings),
        remarks=experiment.remarks,
        seconds=sum(done.seconds for _, by_seed in found for done in by_seed.values()),
        version=__version__,
    )


def _assumed(experiment: Experiment, found: Found) -> Iterator[Assumption]:
    """What is left open of the cells that were run, as it was read."""
    own = {tuple(cell.labels.items()): readings(experiment, cell) for cell in experiment.cells}
    for one in experiment.open:
        values = dict.fromkeys(
            str(cell.settings.get(one.key, ABSENT))
            for cell, _ in found
            if own[tuple(cell.labels.items())].get(one.key) is one
        )
        if values:
            where = "".join(f" ({label})" for label in one.where.values())
            yield Assumption(key=one.key, value=", ".join(values), says=one.says + where)


def _lines(experiment: Experiment, found: Found) -> Iterator[ExperimentLine]:
    """A line for each number that was measured, and for each cell that gave none."""
    published = {_key(p.labels, p.quantity, None): p for p in experiment.published}
    for cell, by_seed in found:
        values: dict[Key, list[float]] = {}
        for done in by_seed.values():
            for measured in done.measured:
                key = _key({**cell.labels, **measured.labels}, measured.quantity, measured.at)
                values.setdefault(key, []).append(measured.value)
        error = next((done.error for done in by_seed.values() if done.error), "")
        for (labels, quantity, at), own in values.items():
            there = published.get((labels, quantity, None)) if at is None else None
            yield ExperimentLine(
                labels=_ordered(dict(labels), experiment.columns),
                quantity=quantity,
                at=at,
                published=there and there.value,
                published_spread=there and there.spread,
                ours=_estimate(own),
                values=tuple(own),
                error=error,
            )
        if not values:
            for p in experiment.published:
                if cell.labels.items() <= p.labels.items():
                    yield ExperimentLine(
                        labels=_ordered(p.labels, experiment.columns),
                        quantity=p.quantity,
                        published=p.value,
                        published_spread=p.spread,
                        error=error,
                    )


def _key(labels: Labels, quantity: str, at: float | None) -> Key:
    return tuple(sorted(labels.items())), quantity, at


def _ordered(labels: Labels, columns: tuple[str, ...]) -> dict[str, str]:
    return {column: labels[column] for column in columns if column in labels}


def _estimate(values: list[float]) -> Metric:
    """The mean over seeds and its 95% Student-t interval; of fewer than 3 the mean alone."""
    mean, n = fmean(values), len(values)
    if n < FEWEST:
        return Metric(value=mean, n=n)
    margin = float(stdtrit(n - 1, 0.975)) * stdev(values) / n**0.5 if isfinite(mean) else inf
    return Metric(value=mean, low=mean - margin, high=mean + margin, n=n)


def held(ordering: Ordering, lines: tuple[ExperimentLine, ...]) -> HeldOrdering:
    """How often what the paper says is larger was larger here, all other labels being equal.

    Along a figure its last points are compared.
    """
    groups: dict[Key, dict[str, ExperimentLine]] = {}
    for line in lines:
        mine = line.quantity == ordering.quantity and line.ours is not None
        if mine and ordering.where.items() <= line.labels.items() and ordering.along in line.labels:
            others = {k: v for k, v in line.labels.items() if k != ordering.along}
            label = line.labels[ordering.along]
            same = groups.setdefault(_key(others, line.quantity, None), {})
            if label not in same or (line.at or 0) >= (same[label].at or 0):
                same[label] = line
    counts = {"compared": 0, "as_published": 0, "confirmed": 0, "contradicted": 0}
    for by_label in groups.values():
        for outcome in _compared(ordering, by_label):
            counts["compared"] += 1
            for name in outcome:
                counts[name] += 1
    return HeldOrdering(says=ordering.says, **counts)


def _compared(
    ordering: Ordering, by_label: Mapping[str, ExperimentLine]
) -> Iterator[tuple[str, ...]]:
    """Of each pair what holds of it."""
    high = {ordering.above} if ordering.above else by_label.keys() - {*ordering.below}
    low = {*ordering.below} or by_label.keys() - high
    highest = [line for label, line in by_label.items() if label in high]
    lowest = [line for label, line in by_label.items() if label in low]
    for above, below in product(highest, lowest):
        if len(above.values) != len(below.values):
            continue  # a run did not end
        apart = _estimate([a - b for a, b in zip(above.values, below.values, strict=True)])
        confirmed = apart.low is not None and apart.low > 0
        contradicted = apart.high is not None and apart.high < 0
        yield tuple(
            name
            for name, holds in (
                ("as_published", apart.value > 0),
                ("confirmed", confirmed),
                ("contradicted", contradicted),
            )
            if holds
        )
