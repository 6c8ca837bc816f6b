"""The keys that an audit file can have, by their paths."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_origin

from dpaudit.errors import nearest

from .config import AuditConfig, Plugin
from .file_problems import models_in

_IN_BRACKETS = re.compile(r"\[([1-9][0-9]{0,3})\]")
_BEHIND_A_DOT = re.compile(r"\.([0-9]+)(?=\.|$)")

Options = Mapping[str, Iterable[str]]  # of the plug-ins at "defense" and "attack"; none: any


def path_of(key: str) -> str:
    """The path of a key, in which tables count from 0: "claim.0.epsilon" of "claim[1].epsilon"."""
    return _IN_BRACKETS.sub(lambda table: f".{int(table[1]) - 1}", key)


def called(path: str) -> str:
    """How errors call the key of a path; the inverse of ``path_of``."""
    return _BEHIND_A_DOT.sub(lambda table: f"[{int(table[1]) + 1}]", path)


def unknown_key(path: str, options: Options, suggest: bool = True) -> str | None:
    """Why no audit has a key of this path; None if one can have it.

    Args:
        path: such as "defense.epsilon" or "claim.0.epsilon".
        options: the names of the options that the plug-ins at hand have.
        suggest: whether the nearest key is looked for, which takes long for many paths.
    """
    annotation: Any = AuditConfig
    parts = path.split(".")
    for i, part in enumerate(parts):
        before = ".".join(parts[:i])
        if get_origin(annotation) is tuple and models_in(annotation):
            if not (part.isascii() and part.isdigit()):
                return f'"{called(path)}": expected {before}[1], {before}[2], ... for its tables'
            annotation = models_in(annotation)[0]
            continue
        known = _inside(annotation, options.get(parts[0], ()))
        if known is None:
            return None
        if part not in known:
            paths = [called(f"{before}.{name}".lstrip(".")) for name in known]
            own = called(".".join(parts[: i + 1]))
            said = f'an audit has no key "{own}"{nearest(own, paths) if suggest else ""}'
            return f"{said}; known here: {', '.join(known)}" if known else said
        annotation = known[part]
    return None


def _inside(annotation: Any, options: Iterable[str]) -> dict[str, Any] | None:
    """The keys of a table and what each holds; None where any is possible."""
    models = models_in(annotation)
    if Plugin in models:
        named = dict.fromkeys(options, Any)
        return {"name": str, **named} if named else None
    if annotation is Any:
        return None
    return {name: field.annotation for m in models for name, field in m.model_fields.items()}
