"""Which targets of a scenario are shown, and what a finding has of each: nothing is computed."""

import math
from collections.abc import Iterator
from itertools import count, takewhile
from typing import NamedTuple

from dpaudit.files.artifact_file import STRIP_GAP
from dpaudit.files.finding import Column, Finding, Name, restart_column

from .figures.pictures import Picture

_FIGURES = (Name.SSIM, Name.PSNR, Name.MSE)


class Pick(NamedTuple):
    """A target that is shown in every world, and its row in the finding that it was picked from."""

    label: str
    victim: float  # the agent
    row: int


class Restart(NamedTuple):
    """The attacker's loss of one start of its search."""

    loss: float
    chosen: bool


class TargetCell(NamedTuple):
    """One target of a finding."""

    pick: Pick
    window: str | None  # its part of the strip, as a viewBox; None: the finding has it not
    width: int  # pixels of that part
    figures: dict[str, float]
    restarts: tuple[Restart, ...]  # empty where there was one alone


def picks(finding: Finding) -> list[Pick]:
    """The targets with the highest, the median and the lowest SSIM.

    Of an even number the median is the better one of the two in the middle.
    """
    ssim, victims = (finding.series.get(name, ()) for name in (Name.SSIM, Column.VICTIM))
    if not ssim or not victims:
        return []
    order = sorted(range(len(ssim)), key=lambda i: math.inf if math.isnan(ssim[i]) else -ssim[i])
    places = {"best": 0, "median": (len(order) - 1) // 2, "worst": len(order) - 1}
    if len(order) == 1:
        places = {"the only": 0}
    elif len(order) == 2:
        del places["median"]
    return [Pick(label, victims[order[i]], order[i]) for label, i in places.items()]


def target_cells(finding: Finding, picked: list[Pick], picture: Picture) -> list[TargetCell]:
    """The picked targets in a finding's strip; [] where it is no strip of that many images.

    Of a finding that names no targets, all of them, by their number.
    """
    named = finding.series.get(Column.VICTIM, ())
    ssim = finding.metrics.get(Name.SSIM)
    n = len(named) or (ssim.n if ssim and ssim.n else 0)
    width, rest = divmod(picture.width + STRIP_GAP, n) if n else (0, 0)
    width -= STRIP_GAP
    if rest or width < 1 or not picture.uri:
        return []
    if not named:
        every = (Pick("", math.nan, i) for i in range(n))
        return [TargetCell(p, _window(p.row, width, picture.height), width, {}, ()) for p in every]
    return [_cell(finding, pick, width, picture.height) for pick in picked]


def _cell(finding: Finding, pick: Pick, width: int, height: int) -> TargetCell:
    series, row = finding.series, _row(finding, pick)
    if row is None:
        return TargetCell(pick, None, width, {}, ())
    return TargetCell(
        pick,
        _window(row, width, height),
        width,
        {name: series[name][row] for name in _FIGURES if name in series},
        tuple(_restarts(finding, row)),
    )


def _window(row: int, width: int, height: int) -> str:
    return f"{row * (width + STRIP_GAP)} 0 {width} {height}"


def _row(finding: Finding, pick: Pick) -> int | None:
    """Where a finding has the target: in the same row, unless other victims were in reach."""
    victims = finding.series[Column.VICTIM]
    if pick.row < len(victims) and victims[pick.row] == pick.victim:
        return pick.row
    return victims.index(pick.victim) if pick.victim in victims else None


def _restarts(finding: Finding, row: int) -> Iterator[Restart]:
    series = finding.series
    chosen = series.get(Column.CHOSEN_RESTART)
    for i in takewhile(lambda i: restart_column(i) in series, count(1)):
        yield Restart(series[restart_column(i)][row], chosen is not None and chosen[row] == i)
