"""What share of targets was reconstructed at least how well, beside the most that is possible."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpaudit.files.finding import Column, Finding, claim_column
from dpaudit.reports.tables import wide

from .drawing import BLIND, DEFENSE, INK, MUTED, SERIES, Drawn, _svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BY_PSNR = (
    "by PSNR: no attacker can lie above what accounting allows, if the noise is as declared, nor "
    "above what a claim allows, if that is true of this attack"
)
BY_SSIM = "by SSIM: blind is one guess, and nothing bounds the share"
LONGEST = 24  # characters of a claim in a legend


def share_figures(finding: Finding, name: str, texts: Mapping[int, str]) -> list[Drawn]:
    """By PSNR beside all bounds, and by SSIM beside a blind guess.

    Args:
        finding: of the role "reconstructed-share".
        name: unique on the page; becomes a part of ids.
        texts: of the claims, by their index.
    """
    series = finding.series
    if not series.get(Column.SHARE):
        return []
    rows = list(wide(series))
    return [
        Drawn(BY_PSNR, _by_psnr(series, f"{name}-psnr", texts), rows),
        Drawn(BY_SSIM, _by_ssim(series, f"{name}-ssim")),
    ]


def _by_psnr(series: Mapping[str, Sequence[float]], name: str, texts: Mapping[int, str]) -> Markup:
    at = series[Column.PSNR_AT_LEAST]
    claims = {i: text for i, text in texts.items() if claim_column(i) in series}

    def paint(axes: "Axes") -> None:
        _measured(axes, at, series, (Column.SHARE, Column.LOW, Column.HIGH))
        for place, (i, text) in enumerate(claims.items()):
            look = SERIES[place % len(SERIES)]
            said = f"claim allows: {text[:LONGEST]}"
            _line(axes, at, series[claim_column(i)], look.colour, look.dash, said)
        allowed = series[Column.ACCOUNTING_ALLOWS]
        _line(axes, at, allowed, INK, (4, 1, 1, 1), "accounting allows")
        _line(axes, at, series[Column.WITHOUT_PRIOR], MUTED, (1, 1), "without prior")
        ends = series[Column.BLIND_AT_LEAST], series[Column.BLIND_AT_MOST]
        axes.fill_between(at, *ends, color=BLIND, alpha=0.35, linewidth=0, label="blind")
        _axes(axes, "PSNR of at least (dB)")

    title = "Share of targets reconstructed to at least each PSNR, and the most that is possible"
    return _svg(name, title, (4.6, 3.5), paint)


def _by_ssim(series: Mapping[str, Sequence[float]], name: str) -> Markup:
    at = series[Column.SSIM_AT_LEAST]

    def paint(axes: "Axes") -> None:
        _measured(axes, at, series, (Column.SSIM_SHARE, Column.SSIM_LOW, Column.SSIM_HIGH))
        _line(axes, at, series[Column.SSIM_BLIND], BLIND, (1, 1), "blind, at least")
        _axes(axes, "SSIM of at least")

    title = "Share of targets reconstructed to at least each SSIM, and what one blind guess reaches"
    return _svg(name, title, (4.6, 3.1), paint)


def _measured(
    axes: "Axes",
    at: Sequence[float],
    series: Mapping[str, Sequence[float]],
    columns: tuple[str, str, str],
) -> None:
    share, low, high = (series[column] for column in columns)
    axes.step(at, share, where="post", color=DEFENSE, linewidth=1.8, label="reconstructed")
    axes.fill_between(at, low, high, color=DEFENSE, alpha=0.15, linewidth=0)


def _line(
    axes: "Axes",
    at: Sequence[float],
    share: Sequence[float],
    colour: str,
    dash: tuple[int, ...],
    label: str,
) -> None:
    """Nothing, where there is no number."""
    if any(map(math.isfinite, share)):
        axes.plot(at, share, color=colour, dashes=dash, linewidth=1.4, label=label)


def _axes(axes: "Axes", xlabel: str) -> None:
    axes.set(xlabel=xlabel, ylabel="share of images", ylim=(-0.02, 1.02))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, columnspacing=1)
