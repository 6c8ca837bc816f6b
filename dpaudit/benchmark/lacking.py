"""Cells of a benchmark that cannot run here, for a package that is not installed."""

from dataclasses import replace

from dpaudit.pipeline.packages import missing_package

from .grid import Plan


def without_lacking(plan: Plan) -> tuple[Plan, list[str]]:
    """The cells that lack no package, and a line for each package that others lack."""
    lacking: dict[str, int] = {}  # number of cells by what they lack
    missing: dict[str, str | None] = {}  # by the defense and its options
    cells = []
    for cell in plan.cells:
        plugin = cell.config.defense
        key = plugin.model_dump_json()
        if key not in missing:
            missing[key] = missing_package(plugin.name, plugin.create("defenses"))
        line = missing[key]
        if line is None:
            cells.append(cell)
        else:
            lacking[line] = lacking.get(line, 0) + 1
    lines = [f"{n} of {len(plan.cells)} cells cannot run: {line}" for line, n in lacking.items()]
    return replace(plan, cells=tuple(cells)), lines
