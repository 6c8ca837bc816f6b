"""Objects that a program has just turned into bytes, so that these need not be unpickled.

The last ones are kept until their bytes are sent, alone or inside of others.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from types import ModuleType
from typing import Any

from ..values import bytes_of, in_memory, is_array, is_numbers, is_tensor
from .raw_bytes import Latest

ENCODERS = {  # module -> function that makes bytes of its first argument
    "pickle": "dumps",
    "cloudpickle.cloudpickle": "dumps",
    "msgpack": "packb",
    "nvflare.fuel.utils.fobs.lobs": "dump_to_bytes",
}
KEPT = 32  # number of last objects
LEAST, MOST_AROUND = 16, 2**16  # bytes: shorter ones occur by chance; what frames them is short
MOST_PARTS = 10_000  # limit per object, which may hold all that its program has
_last: deque[tuple[bytes, dict[str, Any]]] = deque(maxlen=KEPT)
_texts = Latest(1024)  # base64 texts, such as those of a message's layers
_collective: deque[tuple[bytes, dict[str, Any]]] = deque(maxlen=KEPT)  # torch.distributed
_inside = threading.local()  # a framework's encoder calls pickle's


def hook_encoder(module: Any) -> None:
    """See what an encoder makes bytes of."""
    name = ENCODERS[module.__name__]
    own = getattr(module, name)

    @functools.wraps(own)
    def encode(value: Any, *given: Any, **named: Any) -> Any:
        if getattr(_inside, "is_encoding", False):
            return own(value, *given, **named)
        _inside.is_encoding = True
        try:
            data = own(value, *given, **named)
        finally:
            _inside.is_encoding = False
        keep(value, data)
        return data

    setattr(module, name, encode)


def hook_saving(torch: Any) -> None:
    """The same of ``torch.save`` into memory."""
    own = torch.save

    @functools.wraps(own)
    def save(value: Any, file: Any, *given: Any, **named: Any) -> Any:
        _inside.is_encoding = True
        try:
            own(value, file, *given, **named)
        finally:
            _inside.is_encoding = False
        if hasattr(file, "getvalue"):
            keep(value, file.getvalue())

    torch.save = save


def hook_base64(base64: Any) -> None:
    """Remember which bytes or array a text of base64 holds."""
    for name in ("b64encode", "standard_b64encode", "urlsafe_b64encode"):
        setattr(base64, name, _to_text(getattr(base64, name)))


def _to_text(own: Any) -> Any:
    @functools.wraps(own)
    def encode(value: Any, *given: Any, **named: Any) -> Any:
        text = own(value, *given, **named)
        if len(text) >= LEAST:
            held = value.copy() if is_array(value) else bytes(value)
            _texts.keep(text, held)
        return text

    return encode


def in_base64(text: str | bytes) -> Any | None:
    """The bytes or the array that the program has just made this text of; None: not known."""
    if isinstance(text, bytes):
        return _texts.of(text)
    return _texts.of(text.encode("ascii")) if text.isascii() else None


def hook_collectives(c10d: Any) -> None:
    """The same of ``all_gather_object`` and its like, whose bytes are a tensor."""
    own = getattr(c10d, "_object_to_tensor", None)
    if own is None:
        return

    @functools.wraps(own)
    def to_tensor(value: Any, *given: Any, **named: Any) -> Any:
        result = own(value, *given, **named)
        data = bytes(bytes_of(in_memory(result[0])))
        _collective.append((data, {name: _copied(part) for name, part in _flat(value).items()}))
        return result

    c10d._object_to_tensor = to_tensor


def collective_in(data: bytes, most: int) -> tuple[list[tuple[bytes, dict[str, Any]]], bytes]:
    """The objects, so many at most, whose bytes these begin with, each with its parts, and what
    comes after them."""
    found: list[tuple[bytes, dict[str, Any]]] = []
    while data and len(found) < most:
        one = next((one for one in reversed(tuple(_collective)) if data.startswith(one[0])), None)
        if one is None:
            break
        found.append(one)
        data = data[len(one[0]) :]
    return found, data


def keep(value: Any, data: Any) -> None:
    """Remember what bytes were made of, as it is now: the program may write to its arrays."""
    if isinstance(data, list):  # a list of buffers
        data = b"".join(map(bytes, data))
    if not isinstance(data, bytes) or len(data) < LEAST:
        return
    parts = _flat(value)
    if any(map(_may_be_sent, parts.values())):
        _last.append((data, {name: _copied(part) for name, part in parts.items()}))


def known_in(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The parts of the object that some bytes were made of, and all others; None: not known."""
    for encoded, parts in reversed(tuple(_last)):  # threads add to it
        if 0 <= len(data) - len(encoded) <= MOST_AROUND and encoded in data:
            before, _, after = data.partition(encoded)
            return parts, before + after
    return None


def _may_be_sent(part: Any) -> bool:
    return is_tensor(part) or is_array(part) or is_numbers(part) or isinstance(part, bytes)


def _flat(value: Any) -> dict[str, Any]:
    """What an object holds, also in its attributes, by name; nothing if that is too much."""
    found: dict[str, Any] = {}
    waiting, seen = [("", value)], set()
    while waiting and len(found) + len(waiting) <= MOST_PARTS:
        name, part = waiting.pop()
        held = _held_by(part)
        if held is None:
            found[name or "0"] = part
        elif id(part) not in seen:  # objects may hold those that hold them
            seen.add(id(part))
            below = [(f"{name}.{key}" if name else str(key), one) for key, one in held]
            waiting += reversed(below)
    return {} if waiting else found


def _held_by(part: Any) -> list[tuple[Any, Any]] | None:
    """The parts of a dict, list or object, by their keys; None of anything else."""
    if isinstance(part, (list, tuple)):
        return None if is_numbers(part) else list(enumerate(part))
    if isinstance(part, dict):
        return list(part.items())
    attributes = getattr(part, "__dict__", None)
    if attributes and not (
        is_tensor(part) or is_array(part) or isinstance(part, (type, ModuleType))
    ):
        return list(attributes.items())
    return None


def _copied(part: Any) -> Any:
    if is_tensor(part):
        return part.detach().clone()
    return part.copy() if (is_array(part) or is_numbers(part)) and hasattr(part, "copy") else part
