"""The audits that combinations of values make of the base, what distinguishes them, their names."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from dpaudit.errors import ConfigError, DataError, RunError
from dpaudit.files.benchmark_file import BenchmarkFile, Setting, with_absolute_data
from dpaudit.files.config import SENSORS, AuditConfig, validated
from dpaudit.files.file_problems import FileKey, FileProblem, dotted

LONGEST_NAME = 100  # characters of a folder
SEED = "seed"


@dataclass(frozen=True)
class AxisValue:
    """What one value of an axis, or one listed cell, sets, and where it is written."""

    setting: Setting
    at: FileKey
    labels: tuple[str, ...]  # the keys whose values say which one it is


Combination = tuple[AxisValue, ...]


def parts_of(settings: Sequence[Setting], at: FileKey) -> list[AxisValue]:
    """The values of an axis, with the first keys that distinguish them."""
    leaves = [dict(leaves_of(setting)) for setting in settings]
    labels: dict[str, int] = {}  # each with its place
    groups = Groups(leaves)
    for key in groups.keys:
        if groups.split(key) or not labels:
            labels[key] = len(labels)
    for each in leaves:  # every one has a label
        if not labels.keys() & each.keys():
            labels[next(iter(each))] = len(labels)
    return [
        AxisValue(
            setting, (*at, j), tuple(sorted(labels.keys() & each.keys(), key=labels.__getitem__))
        )
        for j, (setting, each) in enumerate(zip(settings, leaves, strict=True))
    ]


class Groups:
    """Settings in groups that are alike in the keys they were split by: at first all in one.

    To split by every key takes as many steps as there are values in all settings together.
    """

    def __init__(self, leaves: Sequence[Mapping[str, Any]]) -> None:
        self._having: dict[str, list[tuple[int, str]]] = {}  # which have a key, and what there
        for i, each in enumerate(leaves):
            for key, value in each.items():
                self._having.setdefault(key, []).append((i, repr(value)))
        self._group = [0] * len(leaves)
        self._size = {0: len(leaves)}

    @property
    def keys(self) -> list[str]:
        """All keys, in the order in which they come first."""
        return list(self._having)

    def split(self, key: str) -> bool:
        """Part those that differ at a key, or of which only some have it. Whether any did."""
        parts: dict[tuple[int, str], list[int]] = {}
        for i, value in self._having.get(key, ()):
            parts.setdefault((self._group[i], value), []).append(i)
        before = len(self._size)
        for (group, _), members in parts.items():
            if len(members) == self._size[group]:
                continue  # what is left of a group keeps its number
            self._size[group] -= len(members)
            new = len(self._size)
            self._size[new] = len(members)
            for i in members:
                self._group[i] = new
        return len(self._size) > before


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no table, by the path of its key."""
    tables = isinstance(value, list) and value and all(isinstance(part, dict) for part in value)
    if (isinstance(value, dict) and value) or tables:
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in inside:
            yield from leaves_of(part, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def ordered(combination: Combination) -> list[tuple[str, Any]]:
    """What is set, whole tables before keys inside them."""
    settings = (item for part in combination for item in part.setting.items())
    return sorted(settings, key=lambda item: item[0].count("."))


def set_by(combination: Combination) -> dict[str, Any]:
    """Every value that is set, by the path of its key."""
    return {key: x for path, value in ordered(combination) for key, x in leaves_of(value, path)}


def value_at(content: Any, path: str) -> Any:
    """Raises KeyError, IndexError, TypeError or ValueError: nothing is there."""
    for part in path.split("."):
        content = content[int(part) if isinstance(content, list) else part]
    return content


def put(content: Any, parts: Sequence[str], value: Any) -> None:
    """Put a value where a path leads; tables on the way are made, those of arrays are not.

    Raises:
        RunError: the path leads through what is no table, or an array that has no such one.
    """
    for i, part in enumerate(parts):
        place: Any = int(part) if isinstance(content, list) and part.isdigit() else part
        if isinstance(content, list) and (not isinstance(place, int) or place >= len(content)):
            there = dotted(tuple(parts[:i]))
            table = f"{there}[{place + 1}]" if isinstance(place, int) else f"{there}.{part}"
            raise RunError(
                "DPA006", f"there is no {table}; the audit has {len(content)} of {there}"
            )
        if not isinstance(content, dict | list):
            raise RunError("DPA006", f'"{".".join(parts[:i])}" is no table')
        if i == len(parts) - 1:
            content[place] = value
        elif isinstance(content, dict):
            content = content.setdefault(place, [] if parts[i + 1].isdigit() else {})
        else:
            content = content[place]


@dataclass(frozen=True)
class Draft:
    """What a combination makes of the base."""

    combination: Combination
    content: dict[str, Any]  # as the files have it
    audit: dict[str, Any]  # the same, with absolute paths
    config: AuditConfig | None  # None with some problems
    problems: Sequence[FileProblem]

    def setter(self, key: FileKey) -> AxisValue | None:
        """The part that sets what is at a key, or something inside it; of no key, the last one."""

        def sets(path: str) -> bool:
            return all(a == str(b) for a, b in zip(path.split("."), key, strict=False))

        own = [part for part in self.combination if any(map(sets, part.setting))]
        return own[-1] if own else None

    @cached_property
    def _complete(self) -> dict[str, Any]:
        """The whole config, with all defaults."""
        return {} if self.config is None else self.config.model_dump(mode="json")

    def has(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values at some keys, where there is one: as the files have it, or a default."""
        found = {}
        for key in keys:
            for content in (self._complete, self.content):
                with suppress(KeyError, IndexError, TypeError, ValueError):
                    found[key] = value_at(content, key)
        return {key: value for key, value in found.items() if value is not None}


def draft_of(file: BenchmarkFile, combination: Combination) -> Draft:
    """The base with what a combination sets."""
    content = deepcopy(file.base)
    problems: list[FileProblem] = []
    for key, value in ordered(combination):
        parts = key.split(".")
        try:
            put(content, parts, deepcopy(value))
        except RunError as error:
            at = tuple(int(part) if part.isdigit() else part for part in parts)
            problems.append((at, error.problems[0]))
    audit = {key: with_absolute_data(key, x, file.path.parent) for key, x in content.items()}
    config, found = (None, problems) if problems else validated(audit)
    if config is not None and not found:
        found = list(_unknown(config))
    return Draft(combination, content, audit, None if found else config, found)


def _unknown(config: AuditConfig) -> Iterator[FileProblem]:
    """Networks and data sets that are not there; no file knows which are."""
    from dpaudit.data.datasets import refuse_unknown_data
    from dpaudit.models.models import refuse_unknown_network

    data = config.data.path or config.data.name or ""
    try:
        if data != SENSORS:
            refuse_unknown_data(data)
    except DataError as error:
        yield ("data", "name" if config.data.path is None else "path"), error.problems[0]
    try:
        if config.model is not None:
            refuse_unknown_network(config.model.name)
    except ConfigError as error:
        yield ("model", "name"), error.problems[0]


def telling(drafts: Sequence[Draft], first: Iterable[str]) -> list[str]:
    """Keys of which no two audits have all values alike, but that they differ in their seed.

    Args:
        first: keys that are among them.
    """
    own = (key for draft in drafts for key in set_by(draft.combination))
    whole = (key for draft in drafts for key, _ in leaves_of(draft.content))
    keys = [key for key in dict.fromkeys([*own, *whole]) if key != SEED]
    values = [draft.has(keys) for draft in drafts]
    groups = Groups(values)
    found = [key for key in first if key != SEED]
    for key in found:
        groups.split(key)
    return [*found, *(key for key in keys if groups.split(key))]


def names_of(drafts: Sequence[Draft], labels: Sequence[str]) -> list[str]:
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
