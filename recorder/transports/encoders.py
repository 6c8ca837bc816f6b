"""Objects that a program has just turned into bytes, so that these need not be unpickled.

The last ones are kept until their bytes are sent, alone or inside of others.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from ..values import is_array, is_tensor, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ENCODERS = {  # by module: the function that makes bytes of its first argument
    "pickle": "dumps",
    "cloudpickle.cloudpickle": "dumps",
    "msgpack": "packb",
    "nvflare.fuel.utils.fobs.lobs": "dump_to_bytes",
}
KEPT = 32  # of the last objects
LEAST, MOST_AROUND = 16, 2**16  # bytes: shorter ones occur by chance; what frames them is short
DEEPEST = 20
_last: deque[tuple[bytes, dict[str, Any]]] = deque(maxlen=KEPT)
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


def keep(value: Any, data: Any) -> None:
    """Remember what bytes were made of, as it is now: the program may write to its arrays."""
    if isinstance(data, list):  # of buffers
        data = b"".join(map(bytes, data))
    if not isinstance(data, bytes) or len(data) < LEAST:
        return
    parts = dict(_flat(value, "", DEEPEST))
    if any(is_tensor(one) or is_array(one) or isinstance(one, bytes) for one in parts.values()):
        _last.append((data, {name: _copied(part) for name, part in parts.items()}))


def known_in(data: bytes) -> dict[str, Any] | None:
    """The parts of the object that the bytes, or some of them, were made of; None: not known."""
    for encoded, parts in reversed(_last):
        if 0 <= len(data) - len(encoded) <= MOST_AROUND and encoded in data:
            return parts
    return None


def _flat(value: Any, name: str, deep: int) -> Iterator[tuple[str, Any]]:
    """What an object holds, also in its attributes."""
    for within, part in parts_of(value):
        key = within if not name else f"{name}.{within}"
        attributes = getattr(part, "__dict__", None)
        if attributes and deep and not (is_tensor(part) or is_array(part)):
            yield from _flat(dict(attributes), name if part is value else key, deep - 1)
        else:
            yield key, part


def _copied(part: Any) -> Any:
    if is_tensor(part):
        return part.detach().clone()
    return part.copy() if is_array(part) and hasattr(part, "copy") else part
