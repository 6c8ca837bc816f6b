"""Who learns what: a heat map over ordered pairs of agents."""

import math
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpaudit.files.finding import Column, Finding

from .drawing import DEFENSE, INK, MUTED, NO_DEFENSE, RULE, _svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DARKEST = 0.75  # opacity of the largest finite value
WRITTEN = 16  # agents at most whose cells have room for a number
DECADES = 3.0  # of mu below the largest, that shades tell apart


def who_learns_what(finding: Finding, name: str) -> Markup | None:
    """A cell for each pair, darker for a larger mu (log scale); an infinite one in another colour.

    Args:
        finding: its series has the columns "adversary", "victim" and "mu", a row for each pair.
        name: unique on the page; becomes a part of ids.

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

    def paint(axes: "Axes") -> None:
        for adversary, victim, mu in cells:
            _cell(axes, adversary, victim, mu, largest, written=n <= WRITTEN)
        for i in range(n):  # an agent knows its own record
            _square(axes, i, i, RULE, 0.5)
        step = max(1, n // 10)
        axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
        axes.set(xlabel="agent whose record it is", ylabel="agent that reads")
        axes.set_xticks(range(0, n, step))
        axes.set_yticks(range(0, n, step))
        axes.grid(visible=False)
        _key(axes, cells, largest)

    side = 1.2 + min(4.0, max(1.6, 0.34 * n))
    return _svg(name, f"{finding.title}: mu for each pair of agents", (side, side + 0.3), paint)


def _cell(
    axes: "Axes", adversary: int, victim: int, mu: float, largest: float, written: bool
) -> None:
    if math.isnan(mu):
        return
    infinite = math.isinf(mu)
    colour = NO_DEFENSE if infinite else DEFENSE
    opacity = DARKEST if infinite else _opacity(mu, largest)
    said = f"agent {adversary} learns of agent {victim}: mu {mu:.3g}"
    _square(axes, victim, adversary, colour, opacity, said)
    if written:
        text = "∞" if infinite else f"{mu:.2f}".lstrip("0") if 0.005 <= mu < 10 else f"{mu:.2g}"
        axes.text(victim, adversary, text, ha="center", va="center", fontsize=7, color=INK)


def _square(
    axes: "Axes", x: float, y: float, colour: str, opacity: float, said: str | None = None
) -> None:
    from matplotlib.patches import Rectangle

    corner = (x - 0.5, y - 0.5)
    axes.add_patch(
        Rectangle(corner, 1, 1, facecolor=colour, alpha=opacity, linewidth=0, label=said)
    )


def _opacity(mu: float, largest: float) -> float:
    """Full at the largest, none at three decades below it."""
    if mu <= 0:
        return 0.0
    return DARKEST * min(1.0, max(0.0, 1 + math.log10(mu / largest) / DECADES))


def _key(axes: "Axes", cells: list[tuple[int, int, float]], largest: float) -> None:
    """Shades by value, and the infinite one where there is one."""
    from matplotlib.patches import Patch

    values = [largest * 10.0**-i for i in range(int(DECADES))]
    shades = [
        Patch(facecolor=DEFENSE, alpha=_opacity(v, largest), label=f"{v:.2g}") for v in values
    ]
    if any(math.isinf(mu) for *_, mu in cells):
        shades.append(Patch(facecolor=NO_DEFENSE, alpha=DARKEST, label="∞, no noise"))
    shades.append(Patch(facecolor="none", edgecolor=MUTED, linewidth=0.5, label="less"))
    axes.legend(
        handles=shades, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1
    )
