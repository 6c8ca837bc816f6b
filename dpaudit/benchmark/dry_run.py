"""What a benchmark takes and could prove, estimated before anything of it is run.

What costs the same is measured once: cells that differ in their seed, or in how much is claimed and
how much noise there is, share their time and memory.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dpaudit.errors import Problem
from dpaudit.files.finding import Name
from dpaudit.pipeline.caller_objects import NOTHING
from dpaudit.pipeline.costs import AuditCosts, costs_ahead
from dpaudit.pipeline.jobs import Power, powers_of
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.unexpected_errors import problems_of

from .grid import SEED, BenchmarkPlan, InvalidCells, PlannedCell

COSTS_NOTHING = (SEED, "text", "epsilon", "mu", "noise_multiplier")  # keys, in whatever table
POWER_SECONDS = 30.0  # for the power of all cells; each has its share, and beyond it the ceiling


@dataclass(frozen=True)
class CellAhead:
    """Cells that differ in their seed alone."""

    group: str
    n_seeds: int
    costs: AuditCosts  # of each
    powers: list[Power]

    @property
    def seconds(self) -> float | None:
        """Seconds of the cell on one core; None: unknown."""
        return self.costs.seconds(1)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of its parts of unknown time, each once."""
        return tuple(name for name, seconds, _, _ in self.costs.by_part() if seconds is None)

    @property
    def is_least(self) -> bool:
        """Whether some part of it is of unknown time."""
        return bool(self.unknown)

    @property
    def size(self) -> int | None:
        """Bytes of its largest part; None: unknown."""
        known = all(part.unknown is None for part in self.costs.parts)
        return max(part.size for part in self.costs.parts) if known else None

    def largest(self, name: Name) -> float | None:
        """The most that any attack expects, or could certify at best; None: unknown."""
        known = (power.metrics.get(name) for power in self.powers)
        return max((metric.value for metric in known if metric is not None), default=None)


def cells_ahead(
    plan: BenchmarkPlan, runtime: Runtime, on_cells: Callable[[int, int], None]
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
    found, problems = [], list[Problem]()
    costs: dict[str, AuditCosts] = {}
    source, dataset = "", None  # of the cell before
    for i, (group, cells) in enumerate(groups.items()):
        config = cells[0].config
        here = repr((config.data.name, config.data.path, config.data.scale, config.seed))
        try:
            own = replace(NOTHING, data=dataset if here == source else None)
            prepared = prepare(config, runtime, own)
            source, dataset = here, prepared.learned.dataset
            key = repr(_without(config.model_dump(mode="json"), COSTS_NOTHING))
            if key not in costs:
                costs[key] = costs_ahead(prepared, runtime.max_memory)
            powers = list(powers_of(prepared, POWER_SECONDS / len(groups)))
            found.append(CellAhead(group, len(cells), costs[key], powers))
        except Exception as error:  # of a plug-in, too
            said = problems_of(error)
            problems += [one._replace(text=f'cell "{group}": {one.text}') for one in said]
        on_cells(i + 1, len(groups))
    if problems:
        raise InvalidCells.of(problems)
    return found


def seconds_of(ahead: list[CellAhead], workers: int) -> float:
    """Seconds of all cells with ``workers`` side by side, without cells of unknown time."""
    known = [(a.seconds, a.n_seeds) for a in ahead if a.seconds is not None]
    return max([sum(s * n for s, n in known) / workers, *(s for s, _ in known)], default=0.0)


def unknown_parts(ahead: list[CellAhead]) -> Counter[str]:
    """Number of cells, with all their seeds, in which a part has unknown time, by name."""
    found = Counter[str]()
    for cell in ahead:
        found.update(dict.fromkeys(cell.unknown, cell.n_seeds))
    return found


def _without(value: Any, keys: tuple[str, ...]) -> Any:
    """Tables without some keys, wherever these stand."""
    if isinstance(value, dict):
        return {key: _without(part, keys) for key, part in value.items() if key not in keys}
    return [_without(part, keys) for part in value] if isinstance(value, list) else value
