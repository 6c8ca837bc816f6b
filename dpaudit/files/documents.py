"""TOML and JSON of files: read whole, small and shallow enough, of plain values; located; written.

Every file that a user or a stranger may have written is read here, so that whatever is in it is a
value or one line that says why not.
"""

import errno
import json
import math
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NoReturn

TOML_BYTES = 2**20  # written by hand
JSON_BYTES = 2**28  # written by an audit: series of many rounds
DEEPEST = 40  # tables and arrays in one another
_BETWEEN_KEYS = re.compile(r"[\n,={}\[\]]")
_HEADER = re.compile(r"^\s*(\[{1,2})([^\[\]]+)\]{1,2}")
_SET = re.compile(r"""^\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""")
_NO_TEXT = re.compile("[\\0\ud800-\udfff]")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def text_of(path: Path, most_bytes: int = TOML_BYTES) -> str:
    """The text of a file, without a byte order mark and with line ends of one kind.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, which could have no end, or too large, or not UTF-8.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise ValueError("not a regular file")
    with open(path, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes / 2**20:g} MiB")
    return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def toml_from(text: str) -> dict[str, Any]:
    """The content of a TOML file. Raises ValueError."""
    if any(part.count(".") > DEEPEST for part in _BETWEEN_KEYS.split(text)):
        raise ValueError(f"more than {DEEPEST} dots in one key")  # tomllib would take hours
    return _plain(tomllib.loads, text)


def json_from(text: str) -> Any:
    """The content of a JSON file, in which no key is written twice. Raises ValueError."""
    return _plain(partial(json.loads, object_pairs_hook=_table, parse_constant=_no_constant), text)


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. Raises OSError and ValueError."""
    content = json_from(text_of(path, JSON_BYTES))
    if not isinstance(content, dict):
        raise ValueError(f"expected an object, found {type(content).__name__}")
    return content


def reason(error: OSError | ValueError) -> str:
    """What went wrong, without the path, in one line."""
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return " ".join(text.split())


def broken(text: str, error: ValueError) -> str:
    """What is wrong with the JSON of this text, to follow what the file is: cut off, or damaged."""
    at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip()) - 1
    is_cut_off = at_end or not text.rstrip().endswith("}")
    how = f"is cut off after {len(text.encode()):,} bytes" if is_cut_off else "is damaged"
    return f"that {how} ({reason(error)})"


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        times = Counter(key for key, _ in pairs)
        twice = next(key for key, n in times.items() if n > 1)
        raise ValueError(f'key "{twice}" is written twice')
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _plain(parse: Callable[[str], Any], text: str) -> Any:
    try:
        content = parse(text)
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} deep") from None
    level, depth = [content], 0
    while level:
        inside: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inside += value
                inside += value.values()
            elif isinstance(value, list):
                inside += value
            else:
                _refuse_unfit(value)
        level = inside
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
    return content


def _refuse_unfit(value: Any) -> None:
    """Numbers that overflow, and text that no file name and no report can hold."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer has more than 64 bits")
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("a number is infinite or too large")
    if isinstance(value, str) and _NO_TEXT.search(value):
        raise ValueError(f"a text has a NUL character or half of a surrogate pair: {value[:40]!r}")


def line_of(text: str, key: tuple[str | int, ...]) -> int | None:
    """The 1-based line of a key such as ("attack", 1, "rounds"), or of the nearest table above it.

    tomllib does not say. An index counts the tables of an array. None where not even the first
    part is found.
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
        elif assignment := _SET.match(line):
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


def toml_text(content: Mapping[str, Any]) -> str:
    """A file with this content; keys whose value is None are left out."""
    lines = [f"{_key(k)} = {toml_value(v)}" for k, v in _given(content) if not _has_section(v)]
    for key, value in _given(content):
        if _has_section(value):
            head = f"[{_key(key)}]" if isinstance(value, Mapping) else f"[[{_key(key)}]]"
            for table in [value] if isinstance(value, Mapping) else value:
                lines += ["", head]
                lines += [f"{_key(k)} = {toml_value(v)}" for k, v in _given(table)]
    return "\n".join(lines).lstrip("\n") + "\n"


def toml_value(value: Any) -> str:
    """A value in one line: tables inline, without keys whose value is None."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in _given(value))
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else _quoted(str(value))


def _given(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in table.items() if value is not None)


def _has_section(value: Any) -> bool:
    tables = isinstance(value, Sequence) and not isinstance(value, str) and bool(value)
    return isinstance(value, Mapping) or (tables and all(isinstance(v, Mapping) for v in value))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
