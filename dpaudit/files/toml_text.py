"""Tables as the text of a TOML file."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


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
    return repr(value) if isinstance(value, int | float) else _text(str(value))


def _given(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in table.items() if value is not None)


def _has_section(value: Any) -> bool:
    tables = isinstance(value, Sequence) and not isinstance(value, str) and bool(value)
    return isinstance(value, Mapping) or (tables and all(isinstance(v, Mapping) for v in value))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
