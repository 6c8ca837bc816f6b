"""Where in a TOML file a key is written, for error messages; tomllib does not say."""

import re
from functools import lru_cache

_HEADER = re.compile(r"^\s*(\[{1,2})([^\[\]]+)\]{1,2}")
_KEY = re.compile(r"""^\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")


def line_of(text: str, key: tuple[str | int, ...]) -> int | None:
    """The 1-based line of a key such as ("attack", 1, "rounds"), or of the nearest table above it.

    An index counts the tables of an array. None where not even the first part is found.
    """
    lines = _written_keys(text)
    return next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), None)


@lru_cache(maxsize=4)  # a file with many problems is asked about each
def _written_keys(text: str) -> dict[tuple[str | int, ...], int]:
    """The line of each full key, of a table header or an assignment, where it is first written."""
    found: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    counts: dict[tuple[str | int, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _opened(_parts(header[2]), header[1] == "[[", counts)
            found.setdefault(table, number)
        elif assignment := _KEY.match(line):
            found.setdefault((*table, *_parts(assignment[1])), number)
    return found


def _opened(
    names: tuple[str, ...], is_array: bool, counts: dict[tuple[str | int, ...], int]
) -> tuple[str | int, ...]:
    """The full key of a header: each array on the way stands for its latest table."""
    key: tuple[str | int, ...] = ()
    for depth, name in enumerate(names, start=1):
        key = (*key, name)
        if is_array and depth == len(names):
            counts[key] = counts.get(key, -1) + 1
        if key in counts:
            key = (*key, counts[key])
    return key


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
