"""TOML and JSON as they are read from files: whole, small and shallow enough, and of plain values.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

TOML_BYTES = 2**20  # written by hand
JSON_BYTES = 2**28  # written by an audit: series of many rounds
DEEPEST = 40  # tables and arrays in one another
_BETWEEN_KEYS = re.compile(r"[\n,={}\[\]]")


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
        raise ValueError(f"more than {DEEPEST} dots in one key")  # which tomllib takes hours for
    return _plain(tomllib.loads, text)


def json_from(text: str) -> Any:
    """The content of a JSON file, in which no key is written twice. Raises ValueError."""
    return _plain(_json, text)


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


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_table, parse_constant=_no_constant)


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
        for value in level:
            _refuse_unfit(value)
        level = [child for value in level for child in _inside(value)]
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
    return content


def _inside(value: Any) -> Iterator[Any]:
    """The values of a table or an array, and the keys of a table."""
    if isinstance(value, dict):
        yield from value.keys()
    if isinstance(value, dict | list):
        yield from value.values() if isinstance(value, dict) else value


def _refuse_unfit(value: Any) -> None:
    """Numbers that overflow, and text that no file name and no report can hold."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer has more than 64 bits")
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("a number is infinite or too large")
    if isinstance(value, str) and ("\0" in value or not _encodes(value)):
        raise ValueError(f"a text has a NUL character or half of a surrogate pair: {value[:40]!r}")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
