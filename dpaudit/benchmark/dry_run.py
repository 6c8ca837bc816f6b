"""What a benchmark takes and could prove, told before anything of it is run.

What costs the same is measured once: cells that differ in their seed, or in how much is claimed and
how much noise there is, share their time and memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dpaudit.data.datasets import Dataset
from dpaudit.errors import DpauditError, Problem
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name
from dpaudit.pipeline.caller_objects import NOTHING, CallerObjects
from dpaudit.pipeline.dry_run import Cost, Power, cost_of, powers_of
from dpaudit.pipeline.jobs import Prepared
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.unforeseen import problems_of

from .grid import SEED, InvalidCells, Plan, PlannedCell

COSTS_NOTHING = (SEED, "text", "epsilon", "mu", "noise_multiplier")  # keys, in whatever table
POWER_SECONDS = 30.0  # for the power of all cells; each has its share, and beyond it the ceiling


@dataclass(frozen=True)
class CellAhead:
    """Cells that differ in their seed alone."""

    group: str
    n_seeds: int
    seconds: float | None  # of each, on one core; None: unknown
    at_least: bool  # some part of it is of unknown time
    size: int | None  # bytes of its largest part; None: unknown
    expected: float | None  # the largest epsilon that an attack expects to certify; None: unknown
    at_most: float | None  # the largest that any attack could; None: unknown


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
    look = _Look(runtime, POWER_SECONDS / len(groups))
    found, problems = [], list[Problem]()
    for i, (group, cells) in enumerate(groups.items()):
        try:
            found.append(_ahead(group, len(cells), *look.at(cells[0].config)))
        except Exception as error:  # of a plug-in, too
            said = problems_of(error)
            problems += [one._replace(text=f'cell "{group}": {one.text}') for one in said]
        on_cells(i + 1, len(groups))
    if problems:
        raise InvalidCells.of(problems)
    return found


def seconds_of(ahead: list[CellAhead], workers: int) -> float:
    """Of all cells, where so many are run side by side; what is unknown is left out."""
    known = [(a.seconds, a.n_seeds) for a in ahead if a.seconds is not None]
    return max([sum(s * n for s, n in known) / workers, *(s for s, _ in known)], default=0.0)


class _Look:
    """Prepares one config after the other; keeps the last data set and what was measured."""

    def __init__(self, runtime: Runtime, patience: float) -> None:
        self._runtime, self._patience = runtime, patience
        self._costs: dict[str, Cost | DpauditError] = {}  # or why it cannot be run
        self._source = ""
        self._dataset: Dataset | None = None

    def at(self, config: AuditConfig) -> tuple[Cost, list[Power]]:
        """Raises DpauditError: the config, the data or the memory does not allow the audit."""
        source = repr((config.data.name, config.data.path, config.data.scale, config.seed))
        own = replace(NOTHING, data=self._dataset if source == self._source else None)
        prepared = prepare(config, self._runtime, own)
        self._source, self._dataset = source, prepared.learned.dataset
        key = repr(_without(config.model_dump(mode="json"), COSTS_NOTHING))
        if key not in self._costs:
            self._costs[key] = _cost_or_refusal(config, prepared, self._runtime, own)
        cost = self._costs[key]
        if isinstance(cost, DpauditError):
            raise cost
        return cost, list(powers_of(config, prepared, self._patience))


def _cost_or_refusal(
    config: AuditConfig, prepared: Prepared, runtime: Runtime, own: CallerObjects
) -> Cost | DpauditError:
    try:
        return cost_of(config, prepared, runtime, own)
    except DpauditError as refusal:
        return refusal


def _without(value: Any, keys: tuple[str, ...]) -> Any:
    """Tables without some keys, wherever these stand."""
    if isinstance(value, dict):
        return {key: _without(part, keys) for key, part in value.items() if key not in keys}
    return [_without(part, keys) for part in value] if isinstance(value, list) else value


def _ahead(group: str, n_seeds: int, cost: Cost, powers: list[Power]) -> CellAhead:
    sizes = [part.size for part in cost.parts]
    return CellAhead(
        group,
        n_seeds,
        cost.seconds,
        any(part.seconds is None for part in cost.parts),
        None if None in sizes else max(size for size in sizes if size is not None),
        max(_told(powers, Name.EXPECTED_BOUND), default=None),
        max(_told(powers, Name.CEILING), default=None),
    )


def _told(powers: list[Power], name: Name) -> Iterator[float]:
    for power in powers:
        if (metric := power.metrics.get(name)) is not None:
            yield metric.value
