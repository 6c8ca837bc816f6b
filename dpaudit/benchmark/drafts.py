"""The audits that combinations make of the base, what tells them apart, and how they are called."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from dpaudit.errors import ConfigError, DataError, RunError
from dpaudit.files.benchmark_file import BenchmarkFile, with_absolute_data
from dpaudit.files.config import SENSORS, AuditConfig, validated
from dpaudit.files.file_problems import FileProblem

from .settings import Combination, Groups, leaves_of, ordered, put, set_by, value_at

LONGEST_NAME = 100  # characters of a folder
SEED = "seed"


@dataclass(frozen=True)
class Draft:
    """What a combination makes of the base."""

    combination: Combination
    content: dict[str, Any]  # as the files have it
    audit: dict[str, Any]  # the same, with absolute paths
    config: AuditConfig | None  # None with some problems
    problems: Sequence[FileProblem]

    @cached_property
    def _complete(self) -> dict[str, Any]:
        """With all defaults."""
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
