"""Evidence on claims: certified bounds, error rates, what views leak, how far messages move.

Bounds and error rates stand beside what is claimed, sensitivity beside the stated bound. Views leak
by the protocol's algebra, round by round and for every pair of agents.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from dpaudit.files.finding import Column, Finding, Name, Role
from dpaudit.reports.tables import metric_rows, wide

from . import drawing
from .drawing import BLIND, DEFENSE, INK, MUTED, NO_DEFENSE, RULE, SERIES, Axes, DrawnFigure

DARKEST = 0.75  # opacity of the largest finite value
WRITTEN = 16  # agents at most whose cells have room for a number
DECADES = 3.0  # decades of mu below the largest that shades distinguish
BOUND = Column.STATED_BOUND
_MU = "of a record used in that round alone, in standard deviations of the noise"
_MATRIX = (
    "Who learns what: mu of a record of the agent in the column, used in round 1, to the agent in "
    "the row"
)
LONGEST = 24  # characters of a claim that stand beside a row
_DRAWN = (
    Name.EPSILON_LOWER_BOUND,
    Name.EPSILON_OF_DECLARED_SHAPE,
    Name.CLAIMED_EPSILON,
    Name.CEILING,
    Name.EXPECTED_BOUND,
    Name.EPSILON,
)
_BOUNDS = (
    "A claim is refuted where the bound lies beyond it. No bound can lie beyond the ceiling, but "
    "one that assumes the declared family. An arrow points to infinity"
)
_CURVE = (
    "Every test the adversary could make lies on or above the claimed curve if the claim holds. A "
    "rate of 0 is drawn at the edge; the verdict rests on confidence limits, not on this curve"
)


class _TestedClaim(NamedTuple):
    """What there is on one claim against one adversary."""

    claim: str
    test: Finding
    by_role: Mapping[Role, Finding]  # controls of the same attack, claim and adversary


def empirical_figures(
    findings: Sequence[Finding], name: str, texts: Mapping[int, str]
) -> Iterator[DrawnFigure]:
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


def _bounds(rows: Sequence[_TestedClaim], name: str, adversary: str) -> DrawnFigure | None:
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
            ends = found.metrics[Name.EPSILON].ends
            if not any(map(math.isnan, ends)):
                low, high = (min(x, far) for x in ends)
                end = ">" if math.isinf(ends[1]) else "D"
                axes.plot([low, high], [at, at], color=colour, linewidth=3, label=label)
                axes.plot([high], [at], end, color=colour, markersize=4)
    null, positive = (row.by_role.get(r) for r in (Role.NULL_CONTROL, Role.POSITIVE_CONTROL))
    bound, claimed = Name.EPSILON_LOWER_BOUND, Name.CLAIMED_EPSILON
    family = Name.EPSILON_OF_DECLARED_SHAPE
    for finding, metric_name, at, shape, look in (
        (null, bound, y + 0.25, "o", (BLIND, 5, "null control", "none", None)),
        (positive, bound, y + 0.25, "s", (NO_DEFENSE, 5, "positive control", None, None)),
        (row.test, family, y, "o", (DEFENSE, 7, "the same, of the declared family", "none", None)),
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


def tradeoff_curve(finding: Finding, name: str, title: str) -> DrawnFigure | None:
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
        best = [max(rate, edge) for rate in accumulate(fnr, min)]  # up to this rate
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

    across = blended_transform_factory(axes.figure.transSubfigure, axes.transAxes)
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    legend = axes.legend(
        list(named.values()), list(named), loc="lower left", bbox_to_anchor=(0.02, 1.0), fontsize=8,
        bbox_transform=across, ncols=2,
    )  # fmt: skip
    for mark in legend.legend_handles:
        if isinstance(mark, Line2D):  # no higher than its name
            mark.set_markersize(min(mark.get_markersize(), 9.0))


def accounting_figures(findings: Sequence[Finding], name: str) -> list[DrawnFigure]:
    """Each adversary's leak by round, once however many claims share it; and the matrix."""
    figures: dict[tuple[object, ...], DrawnFigure | None] = {}
    for i, f in enumerate(f for f in findings if f.kind == "accounting" and f.series):
        key = f.threat_model, *f.series.items()
        if key in figures:
            continue
        draw = who_learns_what if f.role is Role.WHO_LEARNS_WHAT else mu_by_round
        figures[key] = draw(f, f"{name}{i}")
    return [drawn for drawn in figures.values() if drawn]


def mu_by_round(finding: Finding, name: str) -> DrawnFigure | None:
    """The leak of each round's use of a record; infinite ones as arrows at the top.

    Args:
        finding: its series has the columns "round" and "mu".

    Returns None where there is no number to draw.
    """
    rounds, mus = (finding.series.get(column, ()) for column in (Column.ROUND, Column.MU))
    points = list(zip(rounds, mus, strict=False))
    finite = [(k, mu) for k, mu in points if math.isfinite(mu)]
    noiseless = [k for k, mu in points if math.isinf(mu)]
    if not finite and not noiseless:
        return None
    top = max([mu for _, mu in finite if mu > 0], default=1.0)

    def paint(axes: Axes) -> None:
        if finite:
            x, y = zip(*finite, strict=True)
            shape = "o" if noiseless else "o-"
            axes.plot(x, y, shape, color=DEFENSE, markersize=4, linewidth=1.2, label="mu")
        if noiseless:
            label, at = "infinite: shown without noise", [1.2 * top] * len(noiseless)
            axes.plot(noiseless, at, "^", color=NO_DEFENSE, label=label)
        axes.set(xlabel="round", ylabel="mu", ylim=(0, 1.3 * top))
        drawing.whole_rounds(axes)
        drawing.legend_above(axes, 2)

    title = f"Leak by round of the view of {finding.threat_model or 'an adversary'}"
    rows = wide(finding.series)
    return drawing.draw(name, title, (4.0, 2.7), paint, f"{title}, {_MU}", rows)


def who_learns_what(finding: Finding, name: str) -> DrawnFigure | None:
    """A cell for each pair, darker for a larger mu (log scale); an infinite one in another colour.

    Args:
        finding: its series has the columns "adversary", "victim" and "mu", a row for each pair.

    Returns None where there is no pair.
    """
    columns = (
        finding.series.get(column, ()) for column in (Column.ADVERSARY, Column.VICTIM, Column.MU)
    )
    cells = [(int(a), int(v), mu) for a, v, mu in zip(*columns, strict=True)]
    if not cells:
        return None
    n = 1 + max(max(a, v) for a, v, _ in cells)
    largest = max((mu for *_, mu in cells if math.isfinite(mu) and mu > 0), default=1.0)

    def paint(axes: Axes) -> None:
        from matplotlib.patches import Patch

        for adversary, victim, mu in cells:
            if not math.isnan(mu):
                colour = NO_DEFENSE if math.isinf(mu) else DEFENSE
                label = f"agent {adversary} learns of agent {victim}: mu {mu:.3g}"
                _square(axes, victim, adversary, colour, _opacity(mu, largest), label)
                if n <= WRITTEN:
                    text = f"{mu:.2f}".lstrip("0") if 0.005 <= mu < 10 else f"{mu:.2g}"
                    text = "∞" if math.isinf(mu) else text
                    axes.text(
                        victim, adversary, text, ha="center", va="center", fontsize=7, color=INK
                    )
        for i in range(n):  # an agent knows its own record
            _square(axes, i, i, RULE, 0.5)
        step = max(1, n // 10)
        axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
        axes.set(xlabel="agent whose record it is", ylabel="agent that reads")
        axes.set_xticks(range(0, n, step))
        axes.set_yticks(range(0, n, step))
        axes.grid(visible=False)
        values = [largest * 10.0**-i for i in range(int(DECADES))]
        shades = [
            Patch(facecolor=DEFENSE, alpha=_opacity(v, largest), label=f"{v:.2g}") for v in values
        ]
        if any(math.isinf(mu) for *_, mu in cells):
            shades.append(Patch(facecolor=NO_DEFENSE, alpha=DARKEST, label="∞, no noise"))
        shades.append(Patch(facecolor="none", edgecolor=MUTED, linewidth=0.5, label="less"))
        drawing.legend_above(axes, 3, handles=shades, columnspacing=1)

    side = 1.2 + min(4.0, max(1.6, 0.34 * n))
    title, rows = f"{finding.title}: mu for each pair of agents", wide(finding.series)
    return drawing.draw(name, title, (side, side + 0.3), paint, _MATRIX, rows)


def _square(
    axes: Axes, x: float, y: float, colour: str, opacity: float, label: str | None = None
) -> None:
    from matplotlib.patches import Rectangle

    corner = (x - 0.5, y - 0.5)
    axes.add_patch(
        Rectangle(corner, 1, 1, facecolor=colour, alpha=opacity, linewidth=0, label=label)
    )


def _opacity(mu: float, largest: float) -> float:
    """Full at the largest and beyond, none at three decades below it."""
    if mu <= 0:
        return 0.0
    return DARKEST * min(1.0, max(0.0, 1 + math.log10(mu / largest) / DECADES))


def sensitivity_figures(findings: Sequence[Finding], name: str) -> list[DrawnFigure]:
    """Each finding on sensitivity whose series can be drawn, by its title."""
    found = [f for f in findings if f.role is Role.SENSITIVITY and f.series]
    drawn = (sensitivity_by_round(f, f"{name}{i}") for i, f in enumerate(found))
    return [figure for figure in drawn if figure is not None]


def sensitivity_by_round(finding: Finding, name: str) -> DrawnFigure | None:
    """Marks for each kind of neighbour, and a line for the bound, on a logarithmic scale.

    Args:
        finding: its series has the columns "round", one for each kind of neighbour, and the bound
            if one is stated.

    Returns None where no column has a number above 0.
    """
    series = dict(finding.series)
    rounds = series.pop(Column.ROUND, ())
    drawn = {
        column: [(k, x) for k, x in zip(rounds, values, strict=True) if math.isfinite(x) and x > 0]
        for column, values in series.items()
    }
    heights = [value for points in drawn.values() for _, value in points]
    if not heights:
        return None
    low, high = min(heights), max(heights)

    def paint(axes: Axes) -> None:
        for i, kind in enumerate(column for column in drawn if column != BOUND):
            look = SERIES[min(i, len(SERIES) - 1)]
            x, y = zip(*drawn[kind], strict=True) if drawn[kind] else ((), ())
            axes.plot(x, y, look.marker, color=look.colour, markersize=5, alpha=0.8, label=kind)
        if drawn.get(BOUND):
            x, y = zip(*drawn[BOUND], strict=True)
            marker = "_" if len(x) == 1 else None  # one round has no line
            axes.plot(x, y, color=INK, linewidth=1.4, marker=marker, markersize=18, label=BOUND)
        axes.set(xlabel="round", ylabel="norm of the difference", yscale="log")
        axes.set_ylim(min(low / 2, high / 20), high * 2)  # a decade at least
        drawing.plain_numbers(axes.yaxis)
        drawing.whole_rounds(axes)
        drawing.legend_above(axes, 3)

    title = f"{finding.title}: measured by round, beside the stated bound if there is one"
    rows = wide(finding.series)
    return drawing.draw(name, title, (4.4, 3.1), paint, finding.title, rows)
