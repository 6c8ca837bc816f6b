"""What a benchmark takes and could prove, told before anything of it is run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dpaudit.errors import DpauditError
from dpaudit.files.finding import Name
from dpaudit.pipeline.dry_run import Outlook, outlook
from dpaudit.pipeline.run import Runtime

from .grid import InvalidCells, Plan, PlannedCell


@dataclass(frozen=True)
class CellAhead:
    """Cells that differ in their seed alone."""

    group: str
    n_seeds: int
    seconds: float | None  # of each, on one core; None: unknown
    at_least: bool  # some part of it is of unknown time
    size: int | None  # bytes of its largest part; None: unknown
    expected: float | None  # the largest epsilon that an attack expects to certify; None: unknown


def cells_ahead(
    plan: Plan, runtime: Runtime, on_cells: Callable[[int, int], None]
) -> list[CellAhead]:
    """Time, memory and power of every cell, with each config prepared for its first seed.

    Args:
        runtime: of one cell.

    Raises:
        InvalidCells: some cannot be run, with a line for each.
    """
    groups: dict[str, list[PlannedCell]] = {}
    for cell in plan.cells:
        groups.setdefault(cell.group, []).append(cell)
    found, problems = [], list[str]()
    for i, (group, cells) in enumerate(groups.items()):
        try:
            found.append(_ahead(group, len(cells), outlook(cells[0].config, runtime)))
        except DpauditError as error:
            problems += [f'cell "{group}": {line}' for line in str(error).split("\n")]
        on_cells(i + 1, len(groups))
    if problems:
        raise InvalidCells("\n".join(problems))
    return found


def seconds_of(ahead: list[CellAhead], workers: int) -> float:
    """Of all cells, where so many are run side by side; what is unknown is left out."""
    known = [(a.seconds, a.n_seeds) for a in ahead if a.seconds is not None]
    return max([sum(s * n for s, n in known) / workers, *(s for s, _ in known)], default=0.0)


def _ahead(group: str, n_seeds: int, found: Outlook) -> CellAhead:
    sizes = [part.size for part in found.parts]
    return CellAhead(
        group,
        n_seeds,
        found.seconds,
        any(part.seconds is None for part in found.parts),
        None if None in sizes else max(size for size in sizes if size is not None),
        max(_expected(found), default=None),
    )


def _expected(found: Outlook) -> Iterator[float]:
    for power in found.powers:
        bound = power.metrics.get(Name.EXPECTED_BOUND)
        if bound is not None:
            yield bound.value
