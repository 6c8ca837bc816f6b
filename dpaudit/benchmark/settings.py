"""What a value of an axis, or a listed cell, sets in an audit, by the paths of keys."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpaudit.errors import RunError
from dpaudit.files.benchmark_file import Setting
from dpaudit.files.file_problems import FileKey, dotted


@dataclass(frozen=True)
class Part:
    """What one value of an axis, or one listed cell, sets, and where it is written."""

    setting: Setting
    at: FileKey
    labels: tuple[str, ...]  # the keys whose values say which one it is

    @property
    def leaves(self) -> dict[str, Any]:
        return dict(leaves_of(self.setting))


Combination = tuple[Part, ...]


def parts_of(settings: Sequence[Setting], at: FileKey) -> list[Part]:
    """The values of an axis, with the first keys that tell them apart."""
    leaves = [dict(leaves_of(setting)) for setting in settings]
    labels: list[str] = []
    for key in dict.fromkeys(key for each in leaves for key in each):
        if told_apart(leaves, [*labels, key]) > told_apart(leaves, labels) or not labels:
            labels.append(key)
    for each in leaves:  # every one has a label
        labels += [] if {*labels} & {*each} else [next(iter(each))]
    return [
        Part(setting, (*at, j), tuple(label for label in labels if label in each))
        for j, (setting, each) in enumerate(zip(settings, leaves, strict=True))
    ]


def told_apart(leaves: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """How many of them differ in these keys."""
    return len({repr([(key in each, each.get(key)) for key in keys]) for each in leaves})


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
            raise RunError(f"there is no {table}; the audit has {len(content)} of {there}")
        if not isinstance(content, dict | list):
            raise RunError(f'"{".".join(parts[:i])}" is no table')
        if i == len(parts) - 1:
            content[place] = value
        elif isinstance(content, dict):
            content = content.setdefault(place, [] if parts[i + 1].isdigit() else {})
        else:
            content = content[place]


def on_the_way(path: str, key: FileKey) -> bool:
    """Whether what is set at a path holds a key, or lies inside it."""
    return all(a == str(b) for a, b in zip(path.split("."), key, strict=False))
