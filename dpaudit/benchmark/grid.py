"""The cells of a benchmark: combinations of values, and the audits that they make of the base."""

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from dpaudit.errors import MOST_LINES, ConfigError, Problem, nearest
from dpaudit.files.benchmark_file import (
    BenchmarkFile,
    PluginOptions,
    Setting,
    called,
    hashable,
    unknown_key,
)
from dpaudit.files.config import AuditConfig
from dpaudit.files.file_problems import dotted
from dpaudit.pipeline.requirements import missing_package
from dpaudit.registry import PluginFamily, load_plugin

from .drafts import (
    SEED,
    AxisValue,
    Combination,
    Draft,
    draft_of,
    leaves_of,
    names_of,
    parts_of,
    set_by,
    telling,
)

MOST_COMBINATIONS = 10**6  # of axes, before any is excluded


class InvalidCells(ConfigError):
    """Cells that are no audits, each with a line."""

    most_lines = 10**6


@dataclass(frozen=True)
class PlannedCell:
    """One audit of a benchmark, before it is run."""

    name: str  # of its folder
    values: dict[str, Any]  # by the keys that distinguish cells
    group: str  # the name without the seed
    content: dict[str, Any]  # of its audit file
    config: AuditConfig


@dataclass(frozen=True)
class BenchmarkPlan:
    """All cells of a benchmark, in order, and the keys that distinguish them."""

    name: str
    axes: tuple[str, ...]
    cells: tuple[PlannedCell, ...]


def plan_of(file: BenchmarkFile, most: int) -> BenchmarkPlan:
    """The cells of a benchmark file, each a valid audit.

    Args:
        most: cells at most.

    Raises:
        ConfigError: there are more; an axis is over a key that no audit has; an exclusion excludes
            nothing; or cells are no valid audits, with a line for each.
    """
    settings = file.benchmark.axis, file.benchmark.cell
    _refuse_unknown_keys(file)
    axes = [parts_of(axis.settings, ("axis", i, "values")) for i, axis in enumerate(settings[0])]
    listed = parts_of(settings[1], ("cell",))
    combinations = [*_grid(file, axes, bool(listed)), *((part,) for part in listed)]
    n_seeds = max(1, len(file.benchmark.seeds))
    if len(combinations) * n_seeds > most:
        raise _too_many(file, len(combinations) * n_seeds, most)
    if not combinations:
        raise ConfigError("DPA069", f"{file.path}: every cell is excluded")
    firsts = dict.fromkeys(label for parts in (*axes, listed) for p in parts for label in p.labels)
    drafts = [draft_of(file, combination) for combination in combinations]
    labels = telling(drafts, firsts)
    return BenchmarkPlan(file.name, tuple(labels), tuple(_planned(file, drafts, labels)))


def _too_many(file: BenchmarkFile, n: int, most: int) -> ConfigError:
    return ConfigError(
        "DPA069",
        f"{file.path}: {n:,} cells are more than the {most:,} of --max-cells; give a larger "
        "--max-cells, or fewer values",
    )


def _refuse_unknown_keys(file: BenchmarkFile) -> None:
    axes = enumerate(file.benchmark.axis)
    settings = [(("axis", i), setting) for i, axis in axes for setting in axis.settings]
    settings += [(("cell", i), setting) for i, setting in enumerate(file.benchmark.cell)]
    options = _options(file, [setting for _, setting in settings])
    found: dict[Problem, None] = {}  # each once: many values have the same key
    why = cache(lambda path, suggest: unknown_key(path, options, suggest))
    for at, setting in settings:
        for key, value in setting.items():
            for path in (key, *(leaf for leaf, _ in leaves_of(value, key))):
                if (said := why(path, len(found) < MOST_LINES)) is not None:
                    found[file.located(at, Problem("DPA001", said))] = None
                    break
    if found:
        raise ConfigError.of(found)


def _options(file: BenchmarkFile, settings: Sequence[Setting]) -> PluginOptions:
    """The options of every plug-in that the file names; none of one that is not there."""
    leaves = [*leaves_of(file.base), *(leaf for each in settings for leaf in leaves_of(each))]
    families: dict[str, PluginFamily] = {"defense": "defenses", "attack": "attacks"}
    found: dict[str, list[str]] = {}
    for key, family in families.items():
        pattern = re.compile(rf"{key}(\.\d+)?\.name")
        for name in dict.fromkeys(str(v) for path, v in leaves if pattern.fullmatch(path)):
            with suppress(ConfigError):  # which is said of the cells that name it
                found.setdefault(key, []).extend(load_plugin(family, name).model_fields)
    return found


def _grid(file: BenchmarkFile, axes: list[list[AxisValue]], any_listed: bool) -> list[Combination]:
    """The combinations that are not excluded."""
    whole = math.prod(map(len, axes))
    if whole > MOST_COMBINATIONS:
        raise _too_many(file, whole, MOST_COMBINATIONS)
    combinations = list(product(*axes)) if axes or not any_listed else []
    settings = (part.setting for parts in axes for part in parts)
    keys = dict.fromkeys(key for setting in settings for key, _ in leaves_of(setting))
    gone, having = set[int](), _having(combinations) if file.benchmark.exclude else {}
    for i, table in enumerate(file.benchmark.exclude):
        exclusion = dict(leaves_of(table))
        for key in (key for key in exclusion if key not in keys):
            own, known = called(key), [called(one) for one in keys]
            said = f'no axis sets "{own}"{nearest(own, known)}; known here: {", ".join(known)}'
            raise file.refusal(("exclude", i), said)
        found = _meant(exclusion, having)
        if not found:
            raise file.refusal(("exclude", i), "excludes nothing: no cell has these values")
        gone |= found
    return [each for j, each in enumerate(combinations) if j not in gone]


def _having(combinations: Sequence[Combination]) -> dict[tuple[str, Hashable], set[int]]:
    """The cells that have a value at a key."""
    found: dict[tuple[str, Hashable], set[int]] = {}
    for j, each in enumerate(combinations):
        for key, value in set_by(each).items():
            found.setdefault((key, hashable(value)), set()).add(j)
    return found


def _meant(exclusion: Setting, having: Mapping[tuple[str, Hashable], set[int]]) -> set[int]:
    """The cells with all values of an exclusion, where a list stands for any of its values."""
    each = []
    for key, given in exclusion.items():
        wanted = (given, *given) if isinstance(given, list) else (given,)
        each.append(set().union(*(having.get((key, hashable(one)), ()) for one in wanted)))
    return set.intersection(*each)


def _planned(
    file: BenchmarkFile, drafts: Sequence[Draft], labels: Sequence[str]
) -> list[PlannedCell]:
    """The cells of combinations, seed by seed. Raises InvalidCells."""
    cells: list[PlannedCell] = []
    refused: list[tuple[str, Draft]] = []  # cells that are no audits, by their group
    seen: dict[str, str] = {}  # audits with all defaults, and the cells that are these
    for draft, group in zip(drafts, names_of(drafts, labels), strict=True):
        config = draft.config
        if config is None:
            refused.append((group, draft))
            continue
        audit = config.model_dump_json()
        if audit in seen:
            other = "one before it" if seen[audit] == group else f'cell "{seen[audit]}"'
            again = Problem("DPA069", f"is the same audit as {other}")
            refused.append((group, replace(draft, problems=[((), again)])))
        seen.setdefault(audit, group)
        for seed in _seeds(file, config, draft.combination):
            own = config.model_copy(update={"seed": seed})
            name = f"{group}-seed-{seed}" if group else f"seed-{seed}"
            content = {**draft.audit, SEED: seed}
            cells.append(PlannedCell(name, draft.has(labels), group, content, own))
    if refused:
        raise InvalidCells.of(_said(file, refused, len(drafts)))
    return cells


def _seeds(file: BenchmarkFile, config: AuditConfig, parts: Combination) -> Sequence[int]:
    if file.benchmark.seeds and any(SEED in part.setting for part in parts):
        at = next(part.at for part in parts if SEED in part.setting)
        raise file.refusal(at, "sets the seed, and so does seeds; leave one of them out")
    return file.benchmark.seeds or (config.seed,)


def _said(file: BenchmarkFile, refused: Sequence[tuple[str, Draft]], n: int) -> Iterator[Problem]:
    """Each problem, with what set it; those of the base, which all n have, once."""
    by_base = [[p for p in draft.problems if draft.setter(p[0]) is None] for _, draft in refused]
    every = set.intersection(*map(set, by_base)) if len(refused) == n else set()
    for key, problem in (found for found in by_base[0] if found in every):
        yield file.located_in_base(key, problem)
    for group, draft in refused:
        for key, problem in (found for found in draft.problems if found not in every):
            where = f'cell "{group}"' + (f": {dotted(key)}:" if key else "")
            said = problem._replace(text=f"{where} {problem.text}")
            part = draft.setter(key)
            yield file.located_in_base((), said) if part is None else file.located(part.at, said)


def without_lacking(plan: BenchmarkPlan) -> tuple[BenchmarkPlan, list[str]]:
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
