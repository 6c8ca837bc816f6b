"""Accuracy at equal measured epsilon: what is left of a benchmark's rows at each level.

Two defenses at the same claimed epsilon may leak differently. This compares them at the epsilon
that their audits measured, which is infinite where a premise was not examined or failed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from dpaudit.files.finding import Metric
from dpaudit.files.published import ResultTable, TableEntry

from .standings import Standing

TOLERANCE = 0.02  # noise that is measured on a run has an interval: so far above a level is at it
ANY = math.inf  # the level of what leaks without limit, too
BUDGETS = ("epsilon", "mu", "noise_multiplier")  # last parts of keys that set how much is claimed
ABOUT = (
    "The test accuracy of each defense's row with the largest measured epsilon that is at most the "
    f"level, or {TOLERANCE:.0%} above it, within which noise is measured. It is a mean over seeds "
    "with a 95% Student-t interval. Empty: no row has so small an epsilon."
)


def levels(rows: Sequence[Standing]) -> list[float]:
    """The epsilons that are claimed in some row, and none at all."""
    claimed = {row.claim.epsilon for row in rows if row.claim and row.claim.epsilon is not None}
    return [*sorted(claimed), ANY]


def at_level(rows: Sequence[Standing], level: float) -> Standing | None:
    """The row that comes nearest to a level from below; of equal ones the more accurate.

    Of rows without limit, any may stand for what is trained so: the most accurate one does.
    """
    able = [
        row
        for row in rows
        if "test_accuracy" in row.figures
        and row.measured is not None
        and row.measured <= level * (1 + TOLERANCE)
    ]
    return max(
        able,
        key=lambda row: (
            row.measured if level < ANY else 0.0, row.figures["test_accuracy"].value
        ),
        default=None,
    )  # fmt: skip


def equal_epsilon_table(axes: Mapping[str, str], rows: Sequence[Standing]) -> ResultTable | None:
    """A row for each combination of axes but budgets; None: nothing was measured or classified.

    Args:
        axes: by their path, what their columns are called.
    """
    kept = [i for i, path in enumerate(axes) if path.rpartition(".")[2] not in BUDGETS]
    groups: dict[tuple[str, ...], list[Standing]] = {}
    for row in rows:
        which = (*(row.values[i] for i in kept), row.adversary)
        groups.setdefault(which, []).append(row)
    asked = levels(rows)
    found = {which: [at_level(own, level) for level in asked] for which, own in groups.items()}
    if not any(row is not None for own in found.values() for row in own):
        return None
    names = [*axes.values()]
    columns = [*(names[i] for i in kept), "adversary"]
    for level in asked:
        said = "any epsilon" if level == ANY else f"epsilon {level:g}"
        columns += [f"accuracy at {said}", f"{said}: low", f"{said}: high", f"{said}: measured"]
    entries = tuple(
        (*which, *(entry for row in own for entry in _entries(row))) for which, own in found.items()
    )
    return ResultTable(
        title="Accuracy at equal measured epsilon",
        about=ABOUT,
        columns=tuple(columns),
        rows=entries,
    )


def _entries(row: Standing | None) -> Iterator[TableEntry]:
    """The accuracy, its interval, and the epsilon that was measured."""
    if row is None:
        yield from (None, None, None, None)
        return
    accuracy: Metric = row.figures["test_accuracy"]
    for x in (accuracy.value, accuracy.low, accuracy.high):
        yield None if x is None else float(f"{x:.3g}")
    measured = row.measured
    assert measured is not None  # it was compared with a level
    yield float(f"{measured:.3g}") if math.isfinite(measured) else str(measured)
