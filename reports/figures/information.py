"""What a message reveals: information by round beside that of shuffled trials, best estimates."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dpaudit.files.finding import Column, Finding, Name
from dpaudit.reports.reconstructions import NumberedFinding
from dpaudit.reports.tables import Row, wide

from . import drawing
from .drawing import INK, LOOKS, MUTED, OTHER, SERIES, Axes, DrawnFigure

Findings = Mapping[str, Finding]  # world or run -> finding
FAR = 3.0  # times the largest value drawn, beyond which a line would flatten all others
CAPACITIES: Mapping[Name, tuple[str, tuple[int, ...]]] = {  # capacity -> its name and dashes
    Name.CAPACITY: ("capacity", (6, 2)),
    Name.CAPACITY_FOR_A_NUMBER: ("of one record: a number", (3, 1, 1, 1)),
    Name.CAPACITY_FOR_PRESENCE: ("of one record: its presence", (1, 2)),
}


class MessageInformation(NamedTuple):
    """What one message reveals to one adversary: its findings, with their places in the result."""

    threat_model: str | None
    message: str | None
    entries: list[NumberedFinding]

    def drawn(self, column: str) -> dict[str, Finding]:
        """By world, the findings whose series have this column."""
        found = (entry.finding for entry in self.entries)
        return {f.world: f for f in found if f.world is not None and column in f.series}

    @property
    def notes(self) -> list[tuple[str, list[str]]]:
        """Each note once, and the worlds that it is about: none if about all of them."""
        worlds = {entry.finding.world for entry in self.entries}
        about: dict[str, dict[str, None]] = {}
        for f in (entry.finding for entry in self.entries):
            for note in f.notes:
                about.setdefault(note, {})[f.world or ""] = None
        return [(note, [] if worlds == set(of) else list(of)) for note, of in about.items()]


def leaks(entries: Iterable[NumberedFinding]) -> list[MessageInformation]:
    """Findings grouped by adversary and message, in their order.

    A world that comes a second time begins a group: the same message, asked about something else.
    """
    groups: list[MessageInformation] = []
    for entry in entries:
        f = entry.finding
        same = [g for g in groups if (g.threat_model, g.message) == (f.threat_model, f.message)]
        if not same or any(_alike(e.finding, f) for e in same[-1].entries):
            same.append(MessageInformation(f.threat_model, f.message, []))
            groups.append(same[-1])
        same[-1].entries.append(entry)
    return groups


Question = tuple[str | None, str | None]  # (message, adversary) that several runs ask about


def by_run(
    runs: Iterable[tuple[str, Iterable[NumberedFinding]]],
) -> dict[Question, dict[str, Finding]]:
    """Information under the defense, for each question by the label of the run; the first of it."""
    asked: dict[Question, dict[str, Finding]] = {}
    for label, entries in runs:
        for leak in leaks(entries):
            finding = leak.drawn(Column.ROUND).get("defense")
            if finding is not None:
                question = leak.message, leak.threat_model
                asked.setdefault(question, {}).setdefault(label, finding)
    return asked


def _alike(a: Finding, b: Finding) -> bool:
    return (
        a.world == b.world and set(a.series) == set(b.series) and set(a.metrics) == set(b.metrics)
    )


def information_by_round(drawn: Findings, name: str, title: str) -> DrawnFigure | None:
    """Bits with their interval, and the mean of shuffled trials under the defense.

    A line for each world, or for each of several runs. The axis on the right has the same values as
    M-NMI: over I(V; V), which the finding states.

    Returns None where there is nothing finite to draw.
    """
    bits = [x for f in drawn.values() for x in f.series[Column.INFORMATION]]
    if not any(map(math.isfinite, bits)):
        return None
    limited = any(Name.CAPACITY in f.metrics for f in drawn.values())

    def paint(axes: Axes) -> None:
        for i, (label, finding) in enumerate(drawn.items()):
            look, series = LOOKS.get(label, SERIES[i % len(SERIES)]), finding.series
            rounds, low, high = (series[c] for c in (Column.ROUND, Column.LOW, Column.HIGH))
            axes.plot(
                rounds, series[Column.INFORMATION], color=look.colour, dashes=look.dash,
                marker=look.marker if len(rounds) <= 30 else "", markersize=4, linewidth=1.6,
                label=label,
            )  # fmt: skip
            if len(rounds) == 1:
                axes.vlines(rounds, low, high, color=look.colour, linewidth=1.6)
            else:
                axes.fill_between(rounds, low, high, color=look.colour, alpha=0.2, linewidth=0)
        first = drawn.get("defense") or next(iter(drawn.values()))  # other shuffles look the same
        rounds, baseline = first.series[Column.ROUND], first.series[Column.BASELINE]
        if any(map(math.isfinite, baseline)):
            axes.plot(
                rounds, baseline, color=MUTED, marker="." if len(rounds) <= 30 else "",
                dashes=(1, 1), linewidth=1, label="trials shuffled",
            )  # fmt: skip
        _capacities(axes, drawn)
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.set(xlabel="round", ylabel="information (bits)")
        drawing.whole_rounds(axes)
        _ratio(axes, drawn)
        drawing.legend_above(axes, 2 if limited else 3)

    inches = (4.2, 3.3 if limited else 2.9)
    return drawing.draw(name, title, inches, paint, rows=_rows(drawn))


def estimates(drawn: Findings, name: str, title: str) -> DrawnFigure | None:
    """The private quantity of held-out trials against the adversary's best estimate of it.

    Returns None where there is no point to draw.
    """
    points = {}
    for world, f in drawn.items():
        pairs = zip(f.series[Column.PRIVATE], f.series[Column.ESTIMATE], strict=True)
        points[world] = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if not any(points.values()):
        return None

    def paint(axes: Axes) -> None:
        for world in sorted(points, key=lambda w: w == "defense"):  # the defense lies on top
            look = LOOKS.get(world, OTHER)
            x, y = zip(*points[world], strict=True) if points[world] else ((), ())
            axes.plot(x, y, look.marker, color=look.colour, markersize=3, alpha=0.6, label=world)
        every = [value for pairs in points.values() for pair in pairs for value in pair]
        ends = [min(every), max(every)]
        axes.plot(ends, ends, color=MUTED, linewidth=0.8, label="exact")
        axes.set(xlabel="private quantity", ylabel="best estimate")
        drawing.legend_above(axes, 3)

    return drawing.draw(name, title, (4.2, 2.9), paint, rows=_rows(drawn))


def _rows(drawn: Findings) -> Iterator[Row]:
    return ({"world": world, **row} for world, f in drawn.items() for row in wide(f.series))


def _capacities(axes: Axes, drawn: Findings) -> None:
    """What the declared noise lets through at most, where that is not far above all that is drawn.

    A line for each kind of secret, as every world has the same noise declared, or none.
    """
    found = next((f for f in drawn.values() if Name.CAPACITY in f.metrics), None)
    if found is None:
        return
    top = axes.get_ylim()[1]
    for name, (label, dashes) in CAPACITIES.items():
        bits = found.metrics[name].value
        if bits <= FAR * top:
            axes.axhline(bits, color=INK, linewidth=1, dashes=dashes, label=label)


def _ratio(axes: Axes, drawn: Findings) -> None:
    import numpy as np

    wholes = {f.value(Name.SELF_INFORMATION) for f in drawn.values()}
    whole = wholes.pop()
    if whole is None or wholes:
        return
    both = (lambda bits: np.divide(bits, whole), lambda ratio: np.multiply(ratio, whole))
    axes.secondary_yaxis("right", functions=both).set_ylabel("M-NMI")
