"""The cells of a benchmark: combinations of values, and the audits that they make of the base."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any

from dpaudit.errors import ConfigError, DataError, RunError, nearest
from dpaudit.files.audit_keys import Options, unknown_key
from dpaudit.files.benchmark_file import BenchmarkFile, Setting, with_absolute_data
from dpaudit.files.config import SENSORS, AuditConfig, validated
from dpaudit.files.file_problems import FileKey, FileProblem, dotted
from dpaudit.registry import PluginFamily, load_plugin

from .settings import (
    Combination,
    Part,
    leaves_of,
    on_the_way,
    ordered,
    parts_of,
    put,
    set_by,
    told_apart,
    value_at,
)

MOST_COMBINATIONS = 10**6  # of axes, before any is excluded
LONGEST_NAME = 100  # characters of a folder
SEED = "seed"


class InvalidCells(ConfigError):
    """Cells that are no audits, each with a line."""

    most_lines = 10**6


@dataclass(frozen=True)
class PlannedCell:
    """One audit of a benchmark, before it is run."""

    name: str  # of its folder
    values: dict[str, Any]  # by the keys that tell cells apart
    group: str  # the name without the seed
    content: dict[str, Any]  # of its audit file
    config: AuditConfig


@dataclass(frozen=True)
class Plan:
    """All cells of a benchmark, in order, and the keys that tell them apart."""

    name: str
    axes: tuple[str, ...]
    cells: tuple[PlannedCell, ...]


@dataclass(frozen=True)
class _Draft:
    """What a combination makes of the base; whether that is an audit is not checked."""

    combination: Combination
    content: dict[str, Any]
    problems: tuple[FileProblem, ...]

    def has(self, keys: Iterable[str]) -> dict[str, Any]:
        """Those of some keys that are there, with their values."""
        found = {}
        for key in keys:
            with suppress(KeyError, IndexError, TypeError, ValueError):
                found[key] = value_at(self.content, key)
        return found


@dataclass(frozen=True)
class _Refused:
    """A cell that is no audit."""

    group: str
    combination: Combination
    problems: Sequence[FileProblem]

    def setting(self, key: FileKey) -> Part | None:
        """The part that sets what is at a key; of no key, the last one."""
        own = [p for p in self.combination if any(on_the_way(k, key) for k in p.setting)]
        return own[-1] if own else None

    @property
    def by_base(self) -> list[FileProblem]:
        """Problems of what no part sets."""
        return [(key, text) for key, text in self.problems if self.setting(key) is None]


def plan_of(file: BenchmarkFile, most: int) -> Plan:
    """The cells of a benchmark file, each a valid audit.

    Args:
        most: cells at most.

    Raises:
        ConfigError: there are more; an axis is over a key that no audit has; an exclusion excludes
            nothing; or cells are no valid audits, with a line for each.
    """
    settings = file.benchmark.axis, file.benchmark.cell
    axes = [parts_of(axis.settings, ("axis", i, "values")) for i, axis in enumerate(settings[0])]
    listed = parts_of(settings[1], ("cell",))
    _refuse_unknown_keys(file, [part for parts in (*axes, listed) for part in parts])
    combinations = [*_grid(file, axes, bool(listed)), *((part,) for part in listed)]
    n_seeds = max(1, len(file.benchmark.seeds))
    if len(combinations) * n_seeds > most:
        raise _too_many(file, len(combinations) * n_seeds, most)
    if not combinations:
        raise ConfigError(f"{file.path}: every cell is excluded")
    firsts = dict.fromkeys(label for parts in (*axes, listed) for p in parts for label in p.labels)
    drafts = [_draft(file, combination) for combination in combinations]
    labels = _telling(drafts, [label for label in firsts if label != SEED])
    return Plan(file.name, tuple(labels), tuple(_planned(file, drafts, labels)))


def _too_many(file: BenchmarkFile, n: int, most: int) -> ConfigError:
    return ConfigError(
        f"{file.path}: {n:,} cells are more than the {most:,} of --max-cells; give a larger "
        "--max-cells, or fewer values"
    )


def _refuse_unknown_keys(file: BenchmarkFile, parts: Iterable[Part]) -> None:
    parts = list(parts)
    options = _options(file, parts)
    lines: dict[str, None] = {}  # each once: many values have the same key
    for part in parts:
        for key, value in part.setting.items():
            for path in (key, *(leaf for leaf, _ in leaves_of(value, key))):
                said = unknown_key(path, options)
                at = part.at[:2] if part.at[0] == "axis" else part.at
                if said is not None:
                    lines[file.line(at, said)] = None
                    break
    if lines:
        raise ConfigError("\n".join(lines))


def _options(file: BenchmarkFile, parts: Sequence[Part]) -> Options:
    """The options of every plug-in that the file names; none of one that is not there."""
    leaves = [*leaves_of(file.base), *(leaf for part in parts for leaf in part.leaves.items())]
    families: dict[str, PluginFamily] = {"defense": "defenses", "attack": "attacks"}
    found: dict[str, list[str]] = {}
    for key, family in families.items():
        pattern = re.compile(rf"{key}(\.\d+)?\.name")
        for name in dict.fromkeys(str(v) for path, v in leaves if pattern.fullmatch(path)):
            with suppress(ConfigError):  # which is said of the cells that name it
                found.setdefault(key, []).extend(load_plugin(family, name).model_fields)
    return found


def _grid(file: BenchmarkFile, axes: list[list[Part]], any_listed: bool) -> list[Combination]:
    """The combinations that are not excluded."""
    whole = math.prod(map(len, axes))
    if whole > MOST_COMBINATIONS:
        raise _too_many(file, whole, MOST_COMBINATIONS)
    combinations = list(product(*axes)) if axes or not any_listed else []
    keys = {key: None for parts in axes for part in parts for key in part.leaves}
    gone = set[int]()
    for i, table in enumerate(file.benchmark.exclude):
        exclusion = dict(leaves_of(table))
        for key in (key for key in exclusion if key not in keys):
            said = f'no axis sets "{key}"{nearest(key, keys)}; known here: {", ".join(keys)}'
            raise file.refusal(("exclude", i), said)
        found = {j for j, each in enumerate(combinations) if _is_meant(exclusion, each)}
        if not found:
            raise file.refusal(("exclude", i), "excludes nothing: no cell has these values")
        gone |= found
    return [each for j, each in enumerate(combinations) if j not in gone]


def _is_meant(exclusion: Setting, combination: Combination) -> bool:
    """Whether a cell has all values of an exclusion, where a list stands for any of its values."""
    leaves = set_by(combination)
    return all(
        key in leaves
        and (leaves[key] == given or (isinstance(given, list) and leaves[key] in given))
        for key, given in exclusion.items()
    )


def _telling(drafts: Sequence[_Draft], labels: Sequence[str]) -> list[str]:
    """Keys of which no two audits have all values alike: those that tell the values of each axis
    apart, and what else it takes, as where a listed cell has a value of an axis."""
    keys = dict.fromkeys(key for d in drafts for key in set_by(d.combination) if key != SEED)
    values = [draft.has(keys) for draft in drafts]
    found = list(labels)
    for key in keys:
        if told_apart(values, [*found, key]) > told_apart(values, found):
            found.append(key)
    return found


def _planned(
    file: BenchmarkFile, drafts: Sequence[_Draft], labels: Sequence[str]
) -> list[PlannedCell]:
    """The cells of combinations, seed by seed. Raises InvalidCells."""
    cells: list[PlannedCell] = []
    refused: list[_Refused] = []
    seen: dict[str, str] = {}  # audits with all defaults, and the cells that are these
    for draft, group in zip(drafts, _groups(drafts, labels), strict=True):
        content = _with_absolute_paths(file, draft.content)
        config, problems = _audit(draft, content)
        if config is None:
            refused.append(_Refused(group, draft.combination, problems))
            continue
        audit = config.model_dump_json()
        if audit in seen:
            other = "one before it" if seen[audit] == group else f'cell "{seen[audit]}"'
            again = ((), f"is the same audit as {other}")
            refused.append(_Refused(group, draft.combination, [again]))
        seen.setdefault(audit, group)
        for seed in _seeds(file, config, draft.combination):
            own = config.model_copy(update={"seed": seed})
            name = f"{group}-seed-{seed}" if group else f"seed-{seed}"
            values = draft.has(labels)
            cells.append(PlannedCell(name, values, group, {**content, "seed": seed}, own))
    if refused:
        raise InvalidCells("\n".join(_said(file, refused, len(drafts))))
    return cells


def _audit(
    draft: _Draft, content: dict[str, Any]
) -> tuple[AuditConfig | None, Sequence[FileProblem]]:
    """The audit of this content, or what is wrong with it, and with what it names."""
    if draft.problems:
        return None, draft.problems
    config, problems = validated(content)
    if config is not None and not problems:
        problems = list(_unknown(config))
    return (None if problems else config), problems


def _unknown(config: AuditConfig) -> Iterator[FileProblem]:
    """Networks and data sets that are not there; no file knows which are."""
    from dpaudit.data.datasets import refuse_unknown_data
    from dpaudit.models.models import refuse_unknown_network

    data = config.data.path or config.data.name or ""
    try:
        if data != SENSORS:
            refuse_unknown_data(data)
    except DataError as error:
        yield ("data", "name" if config.data.path is None else "path"), str(error)
    try:
        if config.model is not None:
            refuse_unknown_network(config.model.name)
    except ConfigError as error:
        yield ("model", "name"), str(error)


def _with_absolute_paths(file: BenchmarkFile, content: Mapping[str, Any]) -> dict[str, Any]:
    """An audit of which no path depends on where the file lies that sets it."""
    return {key: with_absolute_data(key, x, file.path.parent) for key, x in content.items()}


def _seeds(file: BenchmarkFile, config: AuditConfig, parts: Combination) -> Sequence[int]:
    if file.benchmark.seeds and any(SEED in part.setting for part in parts):
        at = next(part.at for part in parts if SEED in part.setting)
        raise file.refusal(at, "sets the seed, and so does seeds; leave one of them out")
    return file.benchmark.seeds or (config.seed,)


def _groups(drafts: Sequence[_Draft], labels: Sequence[str]) -> list[str]:
    """A name for each combination, of those values that it sets; audits that differ in their seed
    alone have the same one, and no others."""
    names: dict[str, str] = {}  # by all values
    taken = set[str]()
    values = [draft.has(labels) for draft in drafts]
    for draft, has in zip(drafts, values, strict=True):
        if repr(has) not in names:
            own = set_by(draft.combination)
            words = (_word(key, has.get(key, own[key])) for key in labels if key in own)
            names[repr(has)] = name = _free("-".join(words), taken)
            taken.add(name.lower())  # as some file systems compare
    return [names[repr(has)] for has in values]


def _free(whole: str, taken: Collection[str]) -> str:
    """A folder's name that is not taken."""
    name = whole
    if len(name) > LONGEST_NAME:
        digest = sha256(whole.encode()).hexdigest()[:8]
        name = f"{whole[: LONGEST_NAME - 9]}-{digest}"
    n, first = 1, name
    while name.lower() in taken:
        n += 1
        name = f"{first}-{n}"
    return name


def _word(key: str, value: Any) -> str:
    """A value as a part of a folder's name; what is no name has its key before it."""
    text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
    own = key.rpartition(".")[2]
    text = text if isinstance(value, str) and own in ("name", "kind") else f"{own}-{text}"
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.") or "value"


def _draft(file: BenchmarkFile, combination: Combination) -> _Draft:
    """The base with what a combination sets."""
    content = deepcopy(file.base)
    problems: list[FileProblem] = []
    for key, value in ordered(combination):
        parts = key.split(".")
        try:
            put(content, parts, deepcopy(value))
        except RunError as error:
            problems.append((tuple(parts), str(error)))
    return _Draft(combination, content, tuple(problems))


def _said(file: BenchmarkFile, refused: Sequence[_Refused], n: int) -> Iterator[str]:
    """A line for each problem, with what set it; those of the base, which all n have, once."""
    every = set.intersection(*({*one.by_base} for one in refused)) if len(refused) == n else set()
    for key, text in (problem for problem in refused[0].by_base if problem in every):
        yield file.base_line(key, text)
    for one in refused:
        for key, text in (problem for problem in one.problems if problem not in every):
            said = f'cell "{one.group}"{": " if key else ""}{dotted(key)}'
            said = f"{said}: {text}" if key else f"{said} {text}"
            part = one.setting(key)
            yield file.base_line((), said) if part is None else file.line(part.at, said)
