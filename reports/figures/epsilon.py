"""Epsilon: certified bounds against claims, error rates against the claimed curve, mu by round."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from dpaudit.files.finding import Column, Finding, Name, Role
from dpaudit.reports.tables import Row, metrics, wide

from .drawing import (
    BLIND,
    DEFENSE,
    INK,
    MUTED,
    NO_DEFENSE,
    Drawn,
    _svg,
    plain_numbers,
    whole_rounds,
)
from .leak_matrix import who_learns_what

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (0.0, 0.5, *(m * 10.0**e for e in range(7) for m in (1, 2, 5)))  # of epsilons above 10
LONGEST = 24  # characters of a claim that stand beside a row


class _Row(NamedTuple):
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
        rows = [_row(f, findings, texts) for f in tests if f.threat_model == adversary]
        about = f"Epsilon certified against {adversary or 'an adversary'}"
        drawn = bounds_against_claims(rows, f"{name}-bounds{i}", about)
        if drawn is not None:
            yield Drawn(f"{about}. {_BOUNDS}", drawn, _table(rows))
        for j, row in enumerate(rows):
            about = f"{row.claim}: errors of {adversary or 'an adversary'}"
            drawn = tradeoff_curve(row.test, f"{name}-tradeoff{i}-{j}", about)
            if drawn is not None:
                yield Drawn(f"{about}. {_CURVE}", drawn, list(wide(row.test.series)))


def _table(rows: Sequence["_Row"]) -> list[Row]:
    """What is drawn of each claim, as it is exported."""
    every = [finding for row in rows for finding in row.by_role.values()]
    once = {finding.model_dump_json(): finding for finding in reversed(every)}
    return list(metrics(enumerate(reversed(once.values())), _DRAWN))


def accounting_figures(findings: Sequence[Finding], name: str) -> list[Drawn]:
    """Each adversary's leak by round, once however many claims share it; and the matrix."""
    figures: dict[tuple[object, ...], tuple[str, Markup | None, list[Row]]] = {}
    for i, f in enumerate(f for f in findings if f.kind == "accounting" and f.series):
        key = f.threat_model, *f.series.items()
        if key in figures:
            continue
        if f.role is Role.WHO_LEARNS_WHAT and f.series:
            figures[key] = (_MATRIX, who_learns_what(f, f"{name}{i}"), list(wide(f.series)))
        else:
            about = f"Leak by round of the view of {f.threat_model or 'an adversary'}"
            drawing = mu_by_round(f, f"{name}{i}", about)
            figures[key] = (f"{about}, {_MU}", drawing, list(wide(f.series)))
    return [Drawn(said, drawing, rows) for said, drawing, rows in figures.values() if drawing]


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
_MU = "of a record used in that round alone, in standard deviations of the noise"
_MATRIX = (
    "Who learns what: mu of a record of the agent in the column, used in round 1, to the agent in "
    "the row"
)


def _row(test: Finding, findings: Sequence[Finding], texts: Mapping[int, str]) -> _Row:
    """A test's claim, with its controls, and what accounting and the algebra give for it."""
    about = {
        f.role: f
        for f in findings
        if (f.claim, f.threat_model) == (test.claim, test.threat_model)
        and f.attack in (test.attack, None)
    }
    stated = "" if test.claim is None else texts.get(test.claim, "")
    return _Row(stated or test.title, test, about)


def bounds_against_claims(rows: Sequence[_Row], name: str, title: str) -> Markup | None:
    """Marks for bound, claim and controls, a line to the ceiling, a bar for what accounting gives.

    Returns None where no number is finite.
    """
    numbers = [x for row in rows for x in _numbers(row) if math.isfinite(x)]
    if not numbers:
        return None
    largest = max([1.0, *numbers])

    def paint(axes: "Axes") -> None:
        for y, row in enumerate(rows):
            _paint_row(axes, y, row, 1.25 * largest)
        if largest > 10:
            axes.set_xscale("symlog", linthresh=1.0)
            ticks = [t for t in TICKS if t <= largest]
            axes.set_xticks(ticks, [f"{t:g}" for t in ticks], minor=False)
        axes.set(xlabel="epsilon at the claim's delta", ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlim(-0.03 * largest if largest <= 10 else -0.1, 1.3 * largest)
        axes.set_yticks(range(len(rows)), [_short(r.claim) for r in rows], parse_math=False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        _legend_once(axes)

    return _svg(name, title, (4.6, 1.9 + 0.55 * len(rows)), paint)


def _numbers(row: _Row) -> Iterable[float]:
    for finding in (row.test, *row.by_role.values()):
        for metric in _DRAWN:
            value = finding.value(metric)
            if value is not None:
                yield value


class _Mark(NamedTuple):
    """How a number is marked; what is None is as matplotlib has it."""

    shape: str
    colour: str
    label: str
    size: float
    face: str | None = None
    edge: float | None = None


def _paint_row(axes: "Axes", y: int, row: _Row, far: float) -> None:
    """Infinite values stand at ``far``, as an arrow."""
    top = row.test.value(Name.CEILING)
    if top is not None and not math.isnan(top):
        axes.plot(
            [0, min(top, far)],
            [y, y],
            color=MUTED,
            linewidth=0.8,
            marker="|",
            markevery=[1],
            label="ceiling of these runs",
        )
    for role, at, colour, label in (
        (Role.DECLARED, y - 0.16, INK, "accounting of the declared noise"),
        (Role.EXACT_LEAK, y - 0.28, MUTED, "leak of the view"),
    ):
        if role in row.by_role and row.by_role[role].void is None:
            _paint_interval(axes, at, row.by_role[role], colour, label, far)
    for role, look in (
        (Role.NULL_CONTROL, _Mark("o", BLIND, "null control", 5, face="none")),
        (Role.POSITIVE_CONTROL, _Mark("s", NO_DEFENSE, "positive control", 5)),
    ):
        if role in row.by_role:
            bound = row.by_role[role].value(Name.EPSILON_LOWER_BOUND)
            _paint_mark(axes, y + 0.25, bound, look, far)
    certified = _Mark("o", DEFENSE, "certified lower bound", 7)
    _paint_mark(axes, y, row.test.value(Name.EPSILON_LOWER_BOUND), certified, far)
    claim = _Mark("|", INK, "claim", 22, edge=2)
    _paint_mark(axes, y, row.test.value(Name.CLAIMED_EPSILON), claim, far)


def _paint_mark(axes: "Axes", y: float, value: float | None, look: _Mark, far: float) -> None:
    if value is None or math.isnan(value):
        return
    axes.plot(
        [min(value, far)],
        [y],
        look.shape if math.isfinite(value) else ">",
        color=look.colour,
        label=look.label,
        markersize=look.size,
        markerfacecolor=look.face,
        markeredgewidth=look.edge,
    )


def _paint_interval(
    axes: "Axes", y: float, finding: Finding, colour: str, label: str, far: float
) -> None:
    metric = finding.metrics.get(Name.EPSILON)
    if metric is None:  # the algebra of a step that is not linear in its noise
        return
    ends = [metric.value if x is None else x for x in (metric.low, metric.high)]
    if any(map(math.isnan, ends)):
        return
    low, high = (min(x, far) for x in ends)
    axes.plot([low, high], [y, y], color=colour, linewidth=3, label=label)
    axes.plot([high], [y], ">" if math.isinf(ends[1]) else "D", color=colour, markersize=4)


def tradeoff_curve(finding: Finding, name: str, title: str) -> Markup | None:
    """The measured step function beside the least error rates that the claim allows, log axes.

    Args:
        finding: its series has the columns "false positive rate" (increasing), "false negative
            rate" and "least that the claim allows".
        name: unique on the page; becomes a part of ids.
        title: what the drawing shows, for those who do not see it.

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

    def paint(axes: "Axes") -> None:
        x = [max(rate, edge) for rate in fpr]
        best = [max(rate, edge) for rate in accumulate(fnr, min)]  # of thresholds up to this rate
        axes.step(x, best, where="post", color=DEFENSE, linewidth=2, label="measured")
        least = [rate if rate > 0 else edge / 10 for rate in allowed]  # leaves the drawing
        axes.plot(x, least, color=INK, linewidth=1.4, dashes=(4, 2), label="claimed")
        guess = [edge ** (i / 60) for i in range(1, 61)]  # from 1 down to the edge
        guess = [*(1 - rate for rate in guess[::-1]), *guess]
        guess.sort()
        axes.plot(guess, guess[::-1], color=MUTED, linewidth=1, dashes=(1, 1), label="guessing")
        axes.set(xlabel="false positive rate", ylabel="false negative rate")
        axes.set(xscale="log", yscale="log", xlim=(edge * 0.9, 1.1), ylim=(edge * 0.9, 1.1))
        plain_numbers(axes.xaxis, axes.yaxis)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)

    return _svg(name, title, (4.0, 3.4), paint)


def mu_by_round(finding: Finding, name: str, title: str) -> Markup | None:
    """The leak of each round's use of a record; infinite ones as arrows at the top.

    Args:
        finding: its series has the columns "round" and "mu".
        name: unique on the page; becomes a part of ids.
        title: what the drawing shows, for those who do not see it.

    Returns None where there is no number to draw.
    """
    rounds, mus = (finding.series.get(column, ()) for column in (Column.ROUND, Column.MU))
    points = list(zip(rounds, mus, strict=False))
    finite = [(k, mu) for k, mu in points if math.isfinite(mu)]
    noiseless = [k for k, mu in points if math.isinf(mu)]
    if not finite and not noiseless:
        return None
    top = max([mu for _, mu in finite if mu > 0], default=1.0)

    def paint(axes: "Axes") -> None:
        if finite:
            x, y = zip(*finite, strict=True)
            shape = "o" if noiseless else "o-"
            axes.plot(x, y, shape, color=DEFENSE, markersize=4, linewidth=1.2, label="mu")
        if noiseless:
            hint = "infinite: shown without noise"
            axes.plot(noiseless, [1.2 * top] * len(noiseless), "^", color=NO_DEFENSE, label=hint)
        axes.set(xlabel="round", ylabel="mu", ylim=(0, 1.3 * top))
        whole_rounds(axes)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return _svg(name, title, (4.0, 2.7), paint)


def _legend_once(axes: "Axes") -> None:
    """Each mark is named once, however many rows have it; names begin where the drawing does."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import blended_transform_factory

    figure = axes.get_figure(root=True)
    assert figure is not None
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    legend = axes.legend(
        list(named.values()),
        list(named),
        loc="lower left",
        bbox_to_anchor=(0.02, 1.0),
        bbox_transform=blended_transform_factory(figure.transFigure, axes.transAxes),
        fontsize=8,
        ncols=2,
    )
    for mark in legend.legend_handles:
        if isinstance(mark, Line2D):  # no higher than its name
            mark.set_markersize(min(mark.get_markersize(), 9.0))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
