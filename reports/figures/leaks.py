"""What views leak by the protocol's algebra, round by round and for every pair of agents.

And how far messages move: sensitivity by round, beside the stated bound.
"""

import math
from collections.abc import Sequence

from dpaudit.files.finding import Column, Finding, Role
from dpaudit.reports.tables import wide

from . import drawing
from .drawing import DEFENSE, INK, MUTED, NO_DEFENSE, RULE, SERIES, Axes, Drawn

DARKEST = 0.75  # opacity of the largest finite value
WRITTEN = 16  # agents at most whose cells have room for a number
DECADES = 3.0  # of mu below the largest, that shades distinguish
BOUND = Column.STATED_BOUND
_MU = "of a record used in that round alone, in standard deviations of the noise"
_MATRIX = (
    "Who learns what: mu of a record of the agent in the column, used in round 1, to the agent in "
    "the row"
)


def accounting_figures(findings: Sequence[Finding], name: str) -> list[Drawn]:
    """Each adversary's leak by round, once however many claims share it; and the matrix."""
    figures: dict[tuple[object, ...], Drawn | None] = {}
    for i, f in enumerate(f for f in findings if f.kind == "accounting" and f.series):
        key = f.threat_model, *f.series.items()
        if key in figures:
            continue
        draw = who_learns_what if f.role is Role.WHO_LEARNS_WHAT else mu_by_round
        figures[key] = draw(f, f"{name}{i}")
    return [drawn for drawn in figures.values() if drawn]


def mu_by_round(finding: Finding, name: str) -> Drawn | None:
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


def who_learns_what(finding: Finding, name: str) -> Drawn | None:
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


def sensitivity_figures(findings: Sequence[Finding], name: str) -> list[Drawn]:
    """Each finding on sensitivity whose series can be drawn, by its title."""
    found = [f for f in findings if f.role is Role.SENSITIVITY and f.series]
    drawn = (sensitivity_by_round(f, f"{name}{i}") for i, f in enumerate(found))
    return [figure for figure in drawn if figure is not None]


def sensitivity_by_round(finding: Finding, name: str) -> Drawn | None:
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
