"""Reconstructions: SSIM by round, the course of a search, and shares of targets beside bounds."""

import math
from collections.abc import Mapping, Sequence

from dpaudit.files.finding import Column, Finding, Metric, Name, claim_column
from dpaudit.reports.reconstructions import ReconstructionGroup
from dpaudit.reports.tables import metric_rows, wide

from . import drawing
from .drawing import BLIND, DEFENSE, INK, LOOKS, MUTED, OTHER, SERIES, Axes, DrawnFigure

Points = list[tuple[float, float]]
AxisScale = tuple[str, tuple[float, float]]  # its kind, and its ends
BY_PSNR = (
    "by PSNR: no attacker exceeds what accounting allows if the noise is as declared, or what a "
    "claim allows if the claim holds"
)
BY_SSIM = "by SSIM: blind is one guess, and nothing bounds the share"
LONGEST = 24  # characters of a claim in a legend


def ssim_intervals(
    scenarios: Sequence[tuple[str, ReconstructionGroup]], name: str, title: str
) -> list[DrawnFigure]:
    """For each scenario a mark at each mean SSIM and a line over its 95% interval, on one scale.

    A scenario of which nothing is finite has no figure.

    Args:
        scenarios: each with what it is called.
    """
    ssim = [[(k, s.metric(Name.SSIM, k)) for k in s.rounds] for _, s in scenarios]
    metrics = [[m for _, by_world in rounds for m in by_world.values()] for rounds in ssim]
    ends = [
        x
        for own in metrics
        for m in own
        for x in (m.value, m.low, m.high)
        if x is not None and math.isfinite(x)
    ]
    scale = (min([0.0, *ends]) - 0.05, max([1.0, *ends]) + 0.05)
    figures = []
    for i, (label, scenario) in enumerate(scenarios):
        if any(math.isfinite(metric.value) for metric in metrics[i]):
            figure = _ssim(ssim[i], scale, f"{name}-{i}", f"{title}: {label}")
            rows = list(metric_rows(scenario.by_round, {Name.SSIM}))
            figures.append(figure._replace(caption=label, rows=rows))
    return figures


def _ssim(
    rounds: Sequence[tuple[int, Mapping[str, Metric]]], scale: tuple[float, float], name: str,
    title: str,
) -> DrawnFigure:  # fmt: skip
    def paint(axes: Axes) -> None:
        for row, (k, ssim) in enumerate(rounds):
            for world, metric in ssim.items():
                look = LOOKS.get(world, OTHER)
                y = row + {"no-defense": -0.2, "blind": 0.2}.get(world, 0.0)
                if not math.isfinite(metric.value):
                    continue
                if metric.low is not None and metric.high is not None:
                    ends = [metric.low, metric.high]
                    axes.plot(ends, [y, y], color=look.colour, linewidth=1.6, label="_")
                label = f"{world}, round {k}"
                axes.plot(
                    [metric.value], [y], look.marker, color=look.colour, markersize=5, label=label
                )
        axes.axvline(0, color=MUTED, linewidth=0.8, label="_zero")
        axes.set(xlabel="SSIM to the truth", xlim=scale)
        drawing.named_rows(axes, [f"round {k}" for k, _ in rounds])
        shown = {world for _, ssim in rounds for world in ssim}
        marks = [
            mark
            for world, look in LOOKS.items()
            if world in shown
            for mark in axes.plot([], [], look.marker, color=look.colour, label=world, markersize=5)
        ]
        drawing.legend_above(axes, 3, handles=marks, columnspacing=1)

    return drawing.draw(name, title, (3.7, 1.0 + 0.34 * len(rounds)), paint)


def search_by_iteration(findings: Sequence[Finding], name: str, title: str) -> list[DrawnFigure]:
    """For each round two panels over iterations: the attacker's loss and the PSNR, on one scale.

    What has no trace that can be drawn has no figure.
    """
    courses = [(f, _points(f.trace, Name.LOSS), _points(f.trace, Name.PSNR)) for f in findings]
    courses = [course for course in courses if course[1] and course[2]]
    scales = [_scale([y for _, loss, _ in courses for _, y in loss], logarithmic=True)]
    scales += [_scale([y for _, _, psnr in courses for _, y in psnr], logarithmic=False)]
    figures = []
    for i, rounds in enumerate(dict.fromkeys(f.rounds for f, *_ in courses)):
        own = [course for course in courses if course[0].rounds == rounds]
        about = f"round {', '.join(map(str, rounds))}" if rounds else "round not stated"
        figure = _search(own, scales, f"{name}-{i}", f"{title}, {about}")
        rows = [{"world": f.world, **row} for f, *_ in own for row in wide(f.trace)]
        figures.append(figure._replace(caption=about, rows=rows, rounds=rounds))
    return figures


def _search(
    courses: Sequence[tuple[Finding, Points, Points]], scales: Sequence[AxisScale], name: str,
    title: str,
) -> DrawnFigure:  # fmt: skip
    def paint(losses: Axes, psnr: Axes) -> None:
        _lines(losses, [(f.world or "defense", loss) for f, loss, _ in courses])
        _lines(psnr, [(f.world or "defense", psnr) for f, _, psnr in courses])
        losses.set(ylabel="attacker's own loss", yscale=scales[0][0], ylim=scales[0][1])
        psnr.set(ylabel="oracle: PSNR (dB)", ylim=scales[1][1])
        if scales[0][0] == "log":
            drawing.plain_numbers(losses.yaxis)
        losses.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, columnspacing=1)

    return drawing.draw(name, title, (5.0, 2.2), paint, panels=2)


def _scale(values: Sequence[float], logarithmic: bool) -> AxisScale:
    """Limits that all rounds share, with room around; logarithmic where all is above 0."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if logarithmic and low > 0:
        room = max((high / low) ** 0.06, 1.05)
        return "log", (low / room, high * room)
    room = 0.06 * (high - low) or 0.5
    return "linear", (low - room, high + room)


def _points(trace: Mapping[str, Sequence[float]], quantity: str) -> Points:
    points = zip(trace.get(Column.ITERATION, ()), trace.get(quantity, ()), strict=False)
    return [point for point in points if all(map(math.isfinite, point))]


def _lines(axes: Axes, lines: Sequence[tuple[str, Points]]) -> None:
    named = set[str]()
    for world, points in lines:
        look = LOOKS.get(world, OTHER)
        axes.plot(
            *zip(*points, strict=True), look.marker, color=look.colour, markersize=3, linewidth=1.4,
            linestyle=(0, look.dash) if look.dash else "-", label=None if world in named else world,
        )  # fmt: skip
        named.add(world)
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(left=0)
    axes.set_xlabel("iteration")


def share_figures(finding: Finding, name: str, texts: Mapping[int, str]) -> list[DrawnFigure]:
    """Shares of targets by PSNR beside all bounds, and by SSIM beside a blind guess.

    Args:
        finding: of the role "reconstructed-share".
        texts: of the claims, by their index.
    """
    series = finding.series
    if not series.get(Column.SHARE):
        return []
    claims = {i: text for i, text in texts.items() if claim_column(i) in series}

    def by_psnr(axes: Axes) -> None:
        at = series[Column.PSNR_AT_LEAST]
        _measured(axes, at, *(series[c] for c in (Column.SHARE, Column.LOW, Column.HIGH)))
        for place, (i, text) in enumerate(claims.items()):
            look = SERIES[place % len(SERIES)]
            label = f"claim allows: {text[:LONGEST]}"
            _line(axes, at, series[claim_column(i)], look.colour, look.dash, label)
        allowed = series[Column.ACCOUNTING_ALLOWS]
        _line(axes, at, allowed, INK, (4, 1, 1, 1), "accounting allows")
        _line(axes, at, series[Column.WITHOUT_PRIOR], MUTED, (1, 1), "without prior")
        ends = series[Column.BLIND_AT_LEAST], series[Column.BLIND_AT_MOST]
        axes.fill_between(at, *ends, color=BLIND, alpha=0.35, linewidth=0, label="blind")
        _share_axes(axes, "PSNR of at least (dB)")

    def by_ssim(axes: Axes) -> None:
        at = series[Column.SSIM_AT_LEAST]
        ends = Column.SSIM_SHARE, Column.SSIM_LOW, Column.SSIM_HIGH
        _measured(axes, at, *(series[column] for column in ends))
        _line(axes, at, series[Column.SSIM_BLIND], BLIND, (1, 1), "blind, at least")
        _share_axes(axes, "SSIM of at least")

    title = "Share of targets reconstructed to at least each PSNR, and the most that is possible"
    rows = wide(series)
    psnr = drawing.draw(f"{name}-psnr", title, (4.6, 3.5), by_psnr, BY_PSNR, rows)
    title = "Share of targets reconstructed to at least each SSIM, and what one blind guess reaches"
    return [psnr, drawing.draw(f"{name}-ssim", title, (4.6, 3.1), by_ssim, BY_SSIM)]


def _measured(
    axes: Axes, at: Sequence[float], share: Sequence[float], low: Sequence[float],
    high: Sequence[float],
) -> None:  # fmt: skip
    axes.step(at, share, where="post", color=DEFENSE, linewidth=1.8, label="reconstructed")
    axes.fill_between(at, low, high, color=DEFENSE, alpha=0.15, linewidth=0)


def _line(
    axes: Axes, at: Sequence[float], share: Sequence[float], colour: str, dash: tuple[int, ...],
    label: str,
) -> None:  # fmt: skip
    """Nothing, where there is no number."""
    if any(map(math.isfinite, share)):
        axes.plot(at, share, color=colour, dashes=dash, linewidth=1.4, label=label)


def _share_axes(axes: Axes, xlabel: str) -> None:
    axes.set(xlabel=xlabel, ylabel="share of images", ylim=(-0.02, 1.02))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, columnspacing=1)
