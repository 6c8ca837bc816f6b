"""What came out of an experiment's cells, beside what was published."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, stdev

from scipy.special import stdtrit

from dpaudit.files.finding import Metric
from dpaudit.files.published import (
    Assumption,
    ExperimentLine,
    ExperimentResult,
    HeldOrdering,
    Interval,
    limits,
)
from dpaudit.progress import OnProgress
from dpaudit.version import __version__

from .cells import Done, Request, readings, run_cells, seeds_of
from .experiment import ABSENT, Experiment, Labels, MeasuredNumber, Ordering, TableCell

FEWEST = 3  # seeds of which an interval is given
Found = list[tuple[TableCell, dict[int, Done]]]
Key = tuple[tuple[tuple[str, str], ...], str, float | None]  # labels, quantity, at


def reproduced(
    experiment: Experiment, request: Request, out: Path, workers: int, on_progress: OnProgress
) -> ExperimentResult:
    """Run what is not run yet, and hold all of it beside the paper; written to experiment.json.

    Raises:
        DpauditError: nothing can be run.
    """
    found = run_cells(experiment, request, out, workers, on_progress)
    scale, lines = experiment.scales[request.scale], tuple(_lines(experiment, found))
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
        columns=tuple(experiment.columns),
        lines=lines,
        orderings=tuple(held(ordering, lines) for ordering in experiment.orderings),
        remarks=tuple(experiment.remarks),
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
        numbers: dict[Key, list[MeasuredNumber]] = {}
        for done in by_seed.values():
            for one in done.measured:
                key = _key({**cell.labels, **one.labels}, one.quantity, one.at)
                numbers.setdefault(key, []).append(one)
        error = next((done.error for done in by_seed.values() if done.error), "")
        for (labels, quantity, at), own in numbers.items():
            there = published.get((labels, quantity, None)) if at is None else None
            ours, interval = estimate(own)
            yield ExperimentLine(
                labels=_ordered(dict(labels), experiment.columns),
                quantity=quantity,
                at=at,
                published=there and there.value,
                published_spread=there and there.spread,
                ours=ours,
                interval=interval,
                difference=there and ours.value - there.value,
                values=tuple(one.value for one in own),
                error=error,
            )
        for p in experiment.published if not numbers else ():
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


def _ordered(labels: Labels, columns: Sequence[str]) -> dict[str, str]:
    return {column: labels[column] for column in columns if column in labels}


def estimate(numbers: Sequence[MeasuredNumber]) -> tuple[Metric, Interval]:
    """The mean over seeds, and an interval: of one seed that over its batches, if it has one.

    From three seeds on it is the 95% Student-t interval. Where that reaches beyond what the
    quantity can be, as a residual below 0, it is the range of the seeds.
    """
    values = [one.value for one in numbers]
    if len(numbers) == 1:
        [one] = numbers
        return Metric(value=one.value, low=one.low, high=one.high, n=one.n), "student"
    found = _student(values)
    least, most = limits(numbers[0].quantity)
    if found.low is None or found.high is None or (least <= found.low and found.high <= most):
        return found, "student"
    return found.model_copy(update={"low": min(values), "high": max(values)}), "range"


def _student(values: Sequence[float]) -> Metric:
    """The mean and its 95% Student-t interval; of fewer than 3 values the mean alone."""
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
    apart = [pair for by_label in groups.values() for pair in _differences(ordering, by_label)]
    return HeldOrdering(
        says=ordering.says,
        compared=len(apart),
        as_published=sum(pair.value > 0 for pair in apart),
        confirmed=sum(pair.low is not None and pair.low > 0 for pair in apart),
        contradicted=sum(pair.high is not None and pair.high < 0 for pair in apart),
    )


def _differences(ordering: Ordering, by_label: Mapping[str, ExperimentLine]) -> Iterator[Metric]:
    """By how much the line that the paper says is larger exceeds the other, for each pair."""
    high = {ordering.above} if ordering.above else by_label.keys() - {*ordering.below}
    low = {*ordering.below} or by_label.keys() - high
    highest = [line for label, line in by_label.items() if label in high]
    lowest = [line for label, line in by_label.items() if label in low]
    for above, below in product(highest, lowest):
        if len(above.values) == len(below.values):  # else a run did not end
            yield _student([a - b for a, b in zip(above.values, below.values, strict=True)])
