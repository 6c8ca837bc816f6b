"""Epsilon: certified bounds against claims, and error rates against the claimed curve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from dpaudit.files.finding import Column, Finding, Name, Role
from dpaudit.reports.tables import metric_rows, wide

from . import drawing
from .drawing import BLIND, DEFENSE, INK, MUTED, NO_DEFENSE, Axes, Drawn

LONGEST = 24  # characters of a claim that stand beside a row
_DRAWN = (
    Name.EPSILON_LOWER_BOUND,
    Name.CLAIMED_EPSILON,
    Name.CEILING,
    Name.EXPECTED_BOUND,
    Name.EPSILON,
)
_BOUNDS = (
    "A claim is refuted where the bound lies beyond it. No bound can lie beyond the ceiling. An "
    "arrow points to infinity"
)
_CURVE = (
    "Every test the adversary could make lies on or above the claimed curve if the claim holds. A "
    "rate of 0 is drawn at the edge; the verdict rests on confidence limits, not on this curve"
)


class _TestedClaim(NamedTuple):
    """What there is on one claim against one adversary."""

    claim: str
    test: Finding
    by_role: Mapping[Role, Finding]  # of the same claim and adversary, controls of the same attack


def empirical_figures(
    findings: Sequence[Finding], name: str, texts: Mapping[int, str]
) -> Iterator[Drawn]:
    """For each adversary its bounds, and below them the trade-off curve of each claim, when asked.

    Args:
        texts: of the claims, by their index.
    """
    tests = [
        f for f in findings if f.role is Role.TEST and f.value(Name.EPSILON_LOWER_BOUND) is not None
    ]
    for i, adversary in enumerate(dict.fromkeys(f.threat_model for f in tests)):
        rows = [_tested(f, findings, texts) for f in tests if f.threat_model == adversary]
        found = [_bounds(rows, f"{name}-bounds{i}", adversary or "an adversary")]
        for j, row in enumerate(rows):
            title = f"{row.claim}: errors of {adversary or 'an adversary'}"
            found.append(tradeoff_curve(row.test, f"{name}-tradeoff{i}-{j}", title))
        yield from (drawn for drawn in found if drawn is not None)


def _tested(test: Finding, findings: Sequence[Finding], texts: Mapping[int, str]) -> _TestedClaim:
    """A test's claim, with its controls, and what accounting and the algebra give for it."""
    about = {
        f.role: f
        for f in findings
        if (f.claim, f.threat_model) == (test.claim, test.threat_model)
        and f.attack in (test.attack, None)
    }
    stated = "" if test.claim is None else texts.get(test.claim, "")
    return _TestedClaim(stated or test.title, test, about)


def _bounds(rows: Sequence[_TestedClaim], name: str, adversary: str) -> Drawn | None:
    """Marks for bound, claim and controls, a line to the ceiling, a bar for what accounting gives.

    Returns None where no number is finite.
    """
    values = [
        finding.value(metric)
        for row in rows
        for finding in (row.test, *row.by_role.values())
        for metric in _DRAWN
    ]
    numbers = [x for x in values if x is not None and math.isfinite(x)]
    if not numbers:
        return None
    largest = max([1.0, *numbers])

    def paint(axes: Axes) -> None:
        for y, row in enumerate(rows):
            _paint_claim(axes, y, row, 1.25 * largest)
        drawing.epsilon_ticks(axes, largest)
        axes.set_xlabel("epsilon at the claim's delta")
        axes.set_xlim(-0.03 * largest if largest <= 10 else -0.1, 1.3 * largest)
        drawing.named_rows(axes, [drawing.clipped(row.claim, LONGEST) for row in rows])
        _legend_once(axes)

    every = [finding for row in rows for finding in row.by_role.values()]
    once = {finding.model_dump_json(): finding for finding in reversed(every)}
    table = metric_rows(enumerate(reversed(once.values())), _DRAWN)
    title, inches = f"Epsilon certified against {adversary}", (4.6, 1.9 + 0.55 * len(rows))
    return drawing.draw(name, title, inches, paint, f"{title}. {_BOUNDS}", table)


def _paint_claim(axes: Axes, y: int, row: _TestedClaim, far: float) -> None:
    """Infinite values stand at ``far``, as an arrow."""
    top = row.test.value(Name.CEILING)
    if top is not None and not math.isnan(top):
        axes.plot(
            [0, min(top, far)], [y, y], color=MUTED, linewidth=0.8, marker="|", markevery=[1],
            label="ceiling of these runs",
        )  # fmt: skip
    for role, at, colour, label in (
        (Role.DECLARED, y - 0.16, INK, "accounting of the declared noise"),
        (Role.EXACT_LEAK, y - 0.28, MUTED, "leak of the view"),
    ):
        found = row.by_role.get(role)
        # without a metric: the algebra of a step that is not linear in its noise
        if found is not None and found.void is None and Name.EPSILON in found.metrics:
            metric = found.metrics[Name.EPSILON]
            ends = [metric.value if x is None else x for x in (metric.low, metric.high)]
            if not any(map(math.isnan, ends)):
                low, high = (min(x, far) for x in ends)
                end = ">" if math.isinf(ends[1]) else "D"
                axes.plot([low, high], [at, at], color=colour, linewidth=3, label=label)
                axes.plot([high], [at], end, color=colour, markersize=4)
    null, positive = (row.by_role.get(r) for r in (Role.NULL_CONTROL, Role.POSITIVE_CONTROL))
    bound, claimed = Name.EPSILON_LOWER_BOUND, Name.CLAIMED_EPSILON
    for finding, metric_name, at, shape, look in (
        (null, bound, y + 0.25, "o", (BLIND, 5, "null control", "none", None)),
        (positive, bound, y + 0.25, "s", (NO_DEFENSE, 5, "positive control", None, None)),
        (row.test, bound, y, "o", (DEFENSE, 7, "certified lower bound", None, None)),
        (row.test, claimed, y, "|", (INK, 22, "claim", None, 2)),
    ):
        value = None if finding is None else finding.value(metric_name)
        if value is not None and not math.isnan(value):
            colour, size, label, face, edge = look
            axes.plot(
                [min(value, far)], [at], shape if math.isfinite(value) else ">", color=colour,
                label=label, markersize=size, markerfacecolor=face, markeredgewidth=edge,
            )  # fmt: skip


def tradeoff_curve(finding: Finding, name: str, title: str) -> Drawn | None:
    """The measured step function beside the least error rates that the claim allows, log axes.

    Args:
        finding: its series has the columns "false positive rate" (increasing), "false negative
            rate" and "least that the claim allows".

    Returns None where a column is missing, or no rate is above 0.
    """
    columns = (Column.FALSE_POSITIVE_RATE, Column.FALSE_NEGATIVE_RATE, Column.LEAST_ALLOWED)
    if not set(columns) <= set(finding.series):
        return None
    fpr, fnr, allowed = (list(finding.series[column]) for column in columns)
    above_0 = [x for x in (*fpr, *fnr) if math.isfinite(x) and x > 0]
    if not above_0:
        return None
    edge = min(above_0) / 2

    def paint(axes: Axes) -> None:
        x = [max(rate, edge) for rate in fpr]
        best = [max(rate, edge) for rate in accumulate(fnr, min)]  # of thresholds up to this rate
        axes.step(x, best, where="post", color=DEFENSE, linewidth=2, label="measured")
        least = [rate if rate > 0 else edge / 10 for rate in allowed]  # leaves the drawing
        axes.plot(x, least, color=INK, linewidth=1.4, dashes=(4, 2), label="claimed")
        guess = [edge ** (i / 60) for i in range(1, 61)]  # from 1 down to the edge
        guess = sorted([*(1 - rate for rate in guess), *guess])
        axes.plot(guess, guess[::-1], color=MUTED, linewidth=1, dashes=(1, 1), label="guessing")
        axes.set(xlabel="false positive rate", ylabel="false negative rate")
        axes.set(xscale="log", yscale="log", xlim=(edge * 0.9, 1.1), ylim=(edge * 0.9, 1.1))
        drawing.plain_numbers(axes.xaxis, axes.yaxis)
        drawing.legend_above(axes, 3)

    rows = wide(finding.series)
    return drawing.draw(name, title, (4.0, 3.4), paint, f"{title}. {_CURVE}", rows)


def _legend_once(axes: Axes) -> None:
    """Each mark is named once, however many rows have it; names begin where the drawing does."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import blended_transform_factory

    figure = axes.get_figure(root=True)
    assert figure is not None
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    legend = axes.legend(
        list(named.values()), list(named), loc="lower left", bbox_to_anchor=(0.02, 1.0), fontsize=8,
        bbox_transform=blended_transform_factory(figure.transFigure, axes.transAxes), ncols=2,
    )  # fmt: skip
    for mark in legend.legend_handles:
        if isinstance(mark, Line2D):  # no higher than its name
            mark.set_markersize(min(mark.get_markersize(), 9.0))
