"""Bytes of numbers alone, that do not say of which kind: those of ``struct`` and of ``tobytes``.

A program has made them of numbers that are known here. The last ones are kept until they are
sent, alone or inside of others.
"""

from __future__ import annotations

import functools
import threading
from array import array
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..values import is_array, library

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT, MOST_KEPT = 256, 2**28  # last buffers kept, and their total of bytes
LEAST, LEAST_ALONE = 16, 4  # bytes: shorter ones occur by chance within others, or at all
HEADER, MOST_AROUND = 2**10, 2**16  # bytes that are of no numbers
_FLOATS = frozenset("efd")  # codes of struct
_OF_ARRAYS = {**dict.fromkeys("fd", ""), **dict.fromkeys("hilqHIL", "q")}  # typecode -> kind
_METHODS = ("tobytes", "tostring")  # the second one in older versions


class Latest:
    """The last bytes, with what each of them was made of: so many, and ``MOST_KEPT`` in all."""

    def __init__(self, most: int) -> None:
        self._all: deque[tuple[bytes, Any]] = deque()
        self._most, self._size = most, 0
        self._lock = threading.RLock()

    def keep(self, data: bytes, parts: Any) -> None:
        with self._lock:
            self._all.append((data, parts))
            self._size += len(data)
            while len(self._all) > self._most or (self._size > MOST_KEPT and len(self._all) > 1):
                self._size -= len(self._all.popleft()[0])

    def of(self, data: bytes) -> Any | None:
        """What equal bytes were made of, the last ones; None: not known."""
        with self._lock:
            return next((parts for one, parts in reversed(self._all) if one == data), None)

    def within(self, length: int) -> dict[bytes, Any]:
        """Bytes that may be inside of ``length`` bytes; of equal ones the last."""
        with self._lock:
            return dict(one for one in self._all if len(one[0]) <= length)


_latest = Latest(KEPT)


def hook_packing(struct: Any) -> None:
    """See what ``struct`` packs, where it packs numbers with fractions."""
    own, own_into = struct.pack, struct.pack_into

    @functools.wraps(own)
    def pack(form: Any, *values: Any) -> Any:
        data = own(form, *values)
        _keep_packed(struct, form, data)
        return data

    @functools.wraps(own_into)
    def pack_into(form: Any, buffer: Any, offset: int, *values: Any) -> None:
        own_into(form, buffer, offset, *values)
        _keep_packed(struct, form, _written(buffer, offset, struct.calcsize(form)))

    class Struct(struct.Struct):
        def pack(self, *values: Any) -> Any:
            data = super().pack(*values)
            _keep_packed(struct, self.format, data)
            return data

        def pack_into(self, buffer: Any, offset: int, *values: Any) -> None:
            super().pack_into(buffer, offset, *values)
            _keep_packed(struct, self.format, _written(buffer, offset, self.size))

    Struct.__module__, Struct.__qualname__ = struct.Struct.__module__, "Struct"
    Struct.__doc__ = struct.Struct.__doc__
    struct.pack, struct.pack_into, struct.Struct = pack, pack_into, Struct


def _written(buffer: Any, offset: int, size: int) -> bytes:
    held = memoryview(buffer).cast("B")
    begin = offset + len(held) if offset < 0 else offset
    return bytes(held[begin : begin + size])


def _keep_packed(struct: Any, form: Any, data: bytes) -> None:
    codes = _FLOATS.intersection(form if isinstance(form, str) else form.decode("ascii"))
    if codes and len(data) >= LEAST_ALONE:
        _latest.keep(data, _by_kind(struct.unpack(form, data), codes))


def _by_kind(values: tuple[Any, ...], codes: frozenset[str]) -> dict[str, Any]:
    """The numbers with fractions of what was packed, as they were rounded, and all else."""
    floats = [value for value in values if isinstance(value, float)]
    others = [value for value in values if not isinstance(value, float)]
    found: dict[str, Any] = {"0": array("d" if "d" in codes else "f", floats)}
    return {**found, **{str(i): other for i, other in enumerate(others, 1)}}


def hook_numpy(numpy: Any) -> None:
    """See of which arrays and scalars of NumPy bytes are made."""
    for kind in (numpy.ndarray, numpy.generic):
        for name in _METHODS:
            replace_method(kind, name, _keep_of_numpy)


def hook_arrays(array_module: Any) -> None:
    """The same of arrays of Python's ``array``."""
    for name in _METHODS:
        replace_method(array_module.array, name, _keep_of_array)


def copied(sent: Any) -> bytes:
    """The bytes of what is sent, which may be an array itself, or a view of one."""
    if isinstance(sent, bytes):
        return sent
    view = memoryview(sent)
    data = bytes(view)
    held: Any = view.obj
    if isinstance(held, array) and len(held) * held.itemsize == len(data):
        _keep_of_array(held, data)
    elif is_array(held) and held.nbytes == len(data):
        _keep_of_numpy(held, data)
    return data


def _keep_of_numpy(value: Any, data: bytes, *order: Any, **named: Any) -> None:
    kind = value.dtype.kind
    if kind in "fic" or (kind == "u" and value.dtype.itemsize > 1):  # uint8 is of bytes
        flat = library("numpy").frombuffer(data, value.dtype)
        _latest.keep(data, {"0": flat if order or named else flat.reshape(value.shape)})


def _keep_of_array(value: Any, data: bytes) -> None:
    if value.typecode in _OF_ARRAYS:
        code = _OF_ARRAYS[value.typecode]
        with suppress(OverflowError):
            _latest.keep(data, {"0": array(code, value) if code else value[:]})


def replace_method(kind: type, name: str, keep: Callable[..., None]) -> None:
    """Call something with what a method takes, and returns, of a class that is written in C.

    Such a class lets no attribute be set, so that its dictionary is written to. Where an
    interpreter has no access to that, the method stays as it is, and its bytes are not known.
    """
    own = kind.__dict__.get(name)
    if own is None:
        return

    @functools.wraps(own)
    def method(self: Any, *given: Any, **named: Any) -> Any:
        data = own(self, *given, **named)
        if isinstance(data, bytes) and len(data) >= LEAST_ALONE:
            keep(self, data, *given, **named)
        return data

    with suppress(ImportError, AttributeError, ValueError):
        set_method(kind, name, method)


def set_method(kind: type, name: str, method: Any) -> None:
    """Set an attribute of a class that is written in C."""
    import ctypes
    import gc

    [attributes] = [one for one in gc.get_referents(kind.__dict__) if isinstance(one, dict)]
    attributes[name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def raw_in(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The numbers that some bytes were made of, in their order, and all other bytes.

    None: they are not known, or most of the bytes are others.
    """
    whole = _latest.of(data)
    if whole is not None:
        return whole, b""
    known = _latest.within(len(data))
    found, gaps = _long_ones(known, data)
    rest = b""
    for begin, end in gaps:
        between = data[begin:end]
        if found and between in known:
            found[begin] = between
        else:
            rest += between
    if not found or len(rest) > min(MOST_AROUND, max(HEADER, len(data) - len(rest))):
        return None
    named: dict[str, Any] = {}
    for i, at in enumerate(sorted(found)):
        number = f"{i}." if i else ""
        named.update({f"{number}{name}": part for name, part in known[found[at]].items()})
    return named, rest


def _long_ones(
    known: dict[bytes, dict[str, Any]], data: bytes
) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
    """Where which of them are, the longest first, and what is left, from and to where."""
    found: dict[int, bytes] = {}
    gaps = [(0, len(data))]
    for one in sorted((one for one in known if len(one) >= LEAST), key=len, reverse=True):
        left = []
        for begin, end in gaps:
            while (at := data.find(one, begin, end)) >= 0:
                found[at] = one
                left.append((begin, at))
                begin = at + len(one)
            left.append((begin, end))
        gaps = [(begin, end) for begin, end in left if begin < end]
    return found, gaps
