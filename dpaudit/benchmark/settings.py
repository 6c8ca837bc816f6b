"""What a value of an axis, or a listed cell, sets in an audit, by the paths of keys."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpaudit.errors import RunError
from dpaudit.files.benchmark_file import Setting
from dpaudit.files.file_problems import FileKey, dotted


@dataclass(frozen=True)
class AxisValue:
    """What one value of an axis, or one listed cell, sets, and where it is written."""

    setting: Setting
    at: FileKey
    labels: tuple[str, ...]  # the keys whose values say which one it is

    @property
    def leaves(self) -> dict[str, Any]:
        return dict(leaves_of(self.setting))


Combination = tuple[AxisValue, ...]


def parts_of(settings: Sequence[Setting], at: FileKey) -> list[AxisValue]:
    """The values of an axis, with the first keys that tell them apart."""
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


def on_the_way(path: str, key: FileKey) -> bool:
    """Whether what is set at a path holds a key, or lies inside it."""
    return all(a == str(b) for a, b in zip(path.split("."), key, strict=False))
