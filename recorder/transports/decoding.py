"""The arrays that bytes hold: npy, npz and safetensors, also inside of other bytes.

Nothing is unpickled. Bytes that hold no array are one content, as uint8.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from typing import TYPE_CHECKING, Any

from ..log import Content
from ..tensor_file import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

NPY = b"\x93NUMPY"
MOST_BYTES = 2**31  # that an archive may be unpacked to
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


def contents_in(data: bytes, name: str = "0") -> list[Content]:
    """What the bytes of one message hold."""
    try:
        found = list(_arrays_in(data, name))
    except (ValueError, KeyError, SyntaxError, zipfile.BadZipFile, RecursionError):
        found = []
    return found or [Content(name, (len(data),), "uint8", data)]


def _arrays_in(data: bytes, name: str) -> Iterator[Content]:
    if data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(one.file_size for one in archive.infolist()) > MOST_BYTES:
                raise ValueError("an archive of too many bytes")
            for member in archive.namelist():
                yield from _arrays_in(archive.read(member), f"{name}.{member[:-4]}")
    elif data[8:10] in (b'{"', b"{ ", b"{\n") and int.from_bytes(data[:8], "little") < len(data):
        yield from _of_safetensors(data, name)
    else:
        for i, found in enumerate(re.finditer(re.escape(NPY), data)):
            yield _npy_at(data, found.start(), f"{name}.{i}" if i else name)


def _of_safetensors(data: bytes, name: str) -> Iterator[Content]:
    begin = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:begin])
    for key, about in header.items():
        if key != "__metadata__":
            at, end = about["data_offsets"]
            held = data[begin + at : begin + end]
            yield Content(f"{name}.{key}", tuple(about["shape"]), DTYPES[about["dtype"]], held)


def _npy_at(data: bytes, at: int, name: str) -> Content:
    """The array whose file begins at a place: numpy.lib.format describes it."""
    wide = 2 if data[at + 6] == 1 else 4
    begin = at + 8 + wide
    n = int.from_bytes(data[at + 8 : begin], "little")
    about = ast.literal_eval(data[begin : begin + n].decode("latin1"))
    order, kind, size = about["descr"][0], about["descr"][1], int(about["descr"][2:])
    dtype = "bool" if kind == "b" else f"{_KINDS[kind]}{8 * size}"
    if order == ">" or about["fortran_order"]:
        raise ValueError("an array in another order")
    shape, items = tuple(about["shape"]), 1
    for length in shape:
        items *= length
    held = data[begin + n : begin + n + items * size]
    if len(held) != items * size:
        raise ValueError("an array that ends early")
    return Content(name, shape, dtype, held)
