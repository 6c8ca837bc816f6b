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

from dpaudit.errors import ConfigError, RunError, nearest
from dpaudit.files.audit_keys import Options, unknown_key
from dpaudit.files.benchmark_file import BenchmarkFile, Setting, with_absolute_data
from dpaudit.files.config import AuditConfig, validated
from dpaudit.files.file_problems import FileKey, dotted
from dpaudit.registry import PluginFamily, load_plugin

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
class _Part:
    """What one value of an axis, or one listed cell, sets, and where it is written."""

    setting: Setting
    at: FileKey
    labels: tuple[str, ...]  # the keys whose values say which one it is

    @property
    def leaves(self) -> dict[str, Any]:
        return dict(_leaves(self.setting))


_Combination = tuple[_Part, ...]


@dataclass(frozen=True)
class _Draft:
    """What a combination makes of the base; whether that is an audit is not checked."""

    combination: _Combination
    content: dict[str, Any]
    problems: list[tuple[FileKey, str]]

    def has(self, keys: Iterable[str]) -> dict[str, Any]:
        """Those of some keys that are there, with their values."""
        found = {}
        for key in keys:
            with suppress(KeyError, IndexError, TypeError, ValueError):
                found[key] = _value_at(self.content, key)
        return found


def plan_of(file: BenchmarkFile, most: int) -> Plan:
    """The cells of a benchmark file, each a valid audit.

    Args:
        most: cells at most.

    Raises:
        ConfigError: there are more; an axis is over a key that no audit has; an exclusion excludes
            nothing; or cells are no valid audits, with a line for each.
    """
    settings = file.benchmark.axis, file.benchmark.cell
    axes = [_parts(axis.settings, ("axis", i, "values")) for i, axis in enumerate(settings[0])]
    listed = _parts(settings[1], ("cell",))
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


def _parts(settings: Sequence[Setting], at: FileKey) -> list[_Part]:
    """The values of an axis, with the first keys that tell them apart."""
    leaves = [dict(_leaves(setting)) for setting in settings]
    labels: list[str] = []
    for key in dict.fromkeys(key for each in leaves for key in each):
        if _told_apart(leaves, [*labels, key]) > _told_apart(leaves, labels) or not labels:
            labels.append(key)
    for each in leaves:  # every one has a label
        labels += [] if {*labels} & {*each} else [next(iter(each))]
    return [
        _Part(setting, (*at, j), tuple(label for label in labels if label in each))
        for j, (setting, each) in enumerate(zip(settings, leaves, strict=True))
    ]


def _told_apart(leaves: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """How many of them differ in these keys."""
    return len({repr([(key in each, each.get(key)) for key in keys]) for each in leaves})


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no table, by the path of its key."""
    tables = isinstance(value, list) and value and all(isinstance(part, dict) for part in value)
    if (isinstance(value, dict) and value) or tables:
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in inside:
            yield from _leaves(part, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _refuse_unknown_keys(file: BenchmarkFile, parts: Iterable[_Part]) -> None:
    parts = list(parts)
    options = _options(file, parts)
    lines: dict[str, None] = {}  # each once: many values have the same key
    for part in parts:
        for key, value in part.setting.items():
            for path in (key, *(leaf for leaf, _ in _leaves(value, key))):
                said = unknown_key(path, options)
                at = part.at[:2] if part.at[0] == "axis" else part.at
                if said is not None:
                    lines[file.line(at, said)] = None
                    break
    if lines:
        raise ConfigError("\n".join(lines))


def _options(file: BenchmarkFile, parts: Sequence[_Part]) -> Options:
    """The options of every plug-in that the file names; none of one that is not there."""
    leaves = [*_leaves(file.base), *(leaf for part in parts for leaf in part.leaves.items())]
    families: dict[str, PluginFamily] = {"defense": "defenses", "attack": "attacks"}
    found: dict[str, list[str]] = {}
    for key, family in families.items():
        pattern = re.compile(rf"{key}(\.\d+)?\.name")
        for name in dict.fromkeys(str(v) for path, v in leaves if pattern.fullmatch(path)):
            with suppress(ConfigError):  # which is said of the cells that name it
                found.setdefault(key, []).extend(load_plugin(family, name).model_fields)
    return found


def _grid(file: BenchmarkFile, axes: list[list[_Part]], any_listed: bool) -> list[_Combination]:
    """The combinations that are not excluded."""
    whole = math.prod(map(len, axes))
    if whole > MOST_COMBINATIONS:
        raise _too_many(file, whole, MOST_COMBINATIONS)
    combinations = list(product(*axes)) if axes or not any_listed else []
    keys = {key: None for parts in axes for part in parts for key in part.leaves}
    gone = set[int]()
    for i, table in enumerate(file.benchmark.exclude):
        exclusion = dict(_leaves(table))
        for key in (key for key in exclusion if key not in keys):
            said = f'no axis sets "{key}"{nearest(key, keys)}; known here: {", ".join(keys)}'
            raise file.refusal(("exclude", i), said)
        found = {j for j, each in enumerate(combinations) if _is_meant(exclusion, each)}
        if not found:
            raise file.refusal(("exclude", i), "excludes nothing: no cell has these values")
        gone |= found
    return [each for j, each in enumerate(combinations) if j not in gone]


def _is_meant(exclusion: Setting, combination: _Combination) -> bool:
    """Whether a cell has all values of an exclusion, where a list stands for any of its values."""
    leaves = _set_by(combination)
    return all(
        key in leaves
        and (leaves[key] == given or (isinstance(given, list) and leaves[key] in given))
        for key, given in exclusion.items()
    )


def _telling(drafts: Sequence[_Draft], labels: Sequence[str]) -> list[str]:
    """Keys of which no two audits have all values alike: those that tell the values of each axis
    apart, and what else it takes, as where a listed cell has a value of an axis."""
    keys = dict.fromkeys(key for d in drafts for key in _set_by(d.combination) if key != SEED)
    values = [draft.has(keys) for draft in drafts]
    found = list(labels)
    for key in keys:
        if _told_apart(values, [*found, key]) > _told_apart(values, found):
            found.append(key)
    return found


def _planned(
    file: BenchmarkFile, drafts: Sequence[_Draft], labels: Sequence[str]
) -> list[PlannedCell]:
    """The cells of combinations, seed by seed. Raises InvalidCells."""
    cells: list[PlannedCell] = []
    problems: list[str] = []
    seen: dict[str, str] = {}  # audits with all defaults, and the cells that are these
    for draft, group in zip(drafts, _groups(drafts, labels), strict=True):
        content = _with_absolute_paths(file, draft.content)
        config, found = (None, draft.problems) if draft.problems else validated(content)
        if found or config is None:
            problems += _said(file, group, draft.combination, found)
            continue
        audit = config.model_dump_json()
        if audit in seen:
            other = "one before it" if seen[audit] == group else f'cell "{seen[audit]}"'
            said = f'cell "{group}" is the same audit as {other}'
            problems.append(file.line(draft.combination[-1].at, said))
        seen.setdefault(audit, group)
        for seed in _seeds(file, config, draft.combination):
            own = config.model_copy(update={"seed": seed})
            name = f"{group}-seed-{seed}" if group else f"seed-{seed}"
            values = draft.has(labels)
            cells.append(PlannedCell(name, values, group, {**content, "seed": seed}, own))
    if problems:
        raise InvalidCells("\n".join(problems))
    return cells


def _with_absolute_paths(file: BenchmarkFile, content: Mapping[str, Any]) -> dict[str, Any]:
    """An audit of which no path depends on where the file lies that sets it."""
    return {key: with_absolute_data(key, x, file.path.parent) for key, x in content.items()}


def _seeds(file: BenchmarkFile, config: AuditConfig, parts: _Combination) -> Sequence[int]:
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
            own = _set_by(draft.combination)
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


def _ordered(combination: _Combination) -> list[tuple[str, Any]]:
    """What is set, whole tables before keys inside them."""
    settings = (item for part in combination for item in part.setting.items())
    return sorted(settings, key=lambda item: item[0].count("."))


def _set_by(combination: _Combination) -> dict[str, Any]:
    """Every value that is set, by the path of its key."""
    return {key: x for path, value in _ordered(combination) for key, x in _leaves(value, path)}


def _draft(file: BenchmarkFile, combination: _Combination) -> _Draft:
    """The base with what a combination sets."""
    content = deepcopy(file.base)
    problems: list[tuple[FileKey, str]] = []
    for key, value in _ordered(combination):
        parts = key.split(".")
        try:
            _set(content, parts, deepcopy(value))
        except RunError as error:
            problems.append((tuple(parts), str(error)))
    return _Draft(combination, content, problems)


def _value_at(content: Any, path: str) -> Any:
    """Raises KeyError, IndexError, TypeError or ValueError: nothing is there."""
    for part in path.split("."):
        content = content[int(part) if isinstance(content, list) else part]
    return content


def _set(content: Any, parts: Sequence[str], value: Any) -> None:
    """Put a value where a path leads; tables on the way are made, those of arrays are not.

    Raises:
        RunError: the path leads through what is no table, or an array that has no such one.
    """
    for i, part in enumerate(parts):
        place: Any = int(part) if isinstance(content, list) and part.isdigit() else part
        if isinstance(content, list) and (not isinstance(place, int) or place >= len(content)):
            raise RunError(
                f'there is no table {part} in "{".".join(parts[:i])}", which has {len(content)}'
            )
        if not isinstance(content, dict | list):
            raise RunError(f'"{".".join(parts[:i])}" is no table')
        if i == len(parts) - 1:
            content[place] = value
        elif isinstance(content, dict):
            content = content.setdefault(place, [] if parts[i + 1].isdigit() else {})
        else:
            content = content[place]


def _said(
    file: BenchmarkFile,
    name: str,
    combination: _Combination,
    problems: Iterable[tuple[FileKey, str]],
) -> Iterator[str]:
    """A line for each problem of a cell, with the place in the file that set what is wrong."""
    for key, text in problems:
        said = f'cell "{name}": {dotted(key)}: {text}'
        own = [part for part in combination if any(_on_the_way(k, key) for k in part.setting)]
        yield file.line(own[-1].at, said) if own else file.base_line((), said)


def _on_the_way(path: str, key: FileKey) -> bool:
    """Whether what is set at a path holds a key, or lies inside it."""
    return all(a == str(b) for a, b in zip(path.split("."), key, strict=False))
