"""The numbers that bytes hold: npy, npz, safetensors, Arrow and JSON, also packed by gzip or zlib.

Arrays of npy are found inside of other bytes too, as in protocol buffers. What the program itself
has just pickled is known as the object that it was: nothing is unpickled. Bytes that hold no
numbers are one content, as uint8.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import RecorderError
from ..log import Content
from ..tensor_file import DTYPES
from ..values import content_of, library, parts_of
from . import encoders
from .raw_bytes import raw_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NPY = b"\x93NUMPY"
MOST_BYTES = 2**31  # largest size to which an archive is unpacked
OF_LENGTHS = (4, 8)  # bytes
MOST_OF_JSON = 2**26  # bytes that are read as such
_PACKED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")  # gzip, zlib
_END_OF_ZIP = b"PK\x05\x06"  # marks the last 22 bytes of an archive
_XZ = b"\xfd7zXZ\x00"
_MARKED = (b"PK\x03\x04", b"ARROW1", NPY, _XZ)  # nothing else begins with these
_tell: list[Callable[[str], None]] = []  # whom texts and bytes beside numbers are told
_heads: set[str] = set()  # lines of heads of HTTP that were told
_VARYING = ("host:", "date:", "content-length:", "content-type: multipart")  # vary by run
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


def tell_beside(tell: Callable[[str], None]) -> None:
    """Call something with each text, and with the identity of the bytes, beside numbers."""
    _tell[:] = [tell]


def _beside(texts: Iterable[str]) -> None:
    for text in texts:
        if text and _tell:
            _tell[0](text)


def tell_head(lines: Iterable[str]) -> None:
    """The first line and the headers of a request or a reply of HTTP are texts beside its body.

    Each is told once: how often a client asks whether something is there depends on the time.
    """
    new = {line for line in lines if not line.lower().startswith(_VARYING)} - _heads
    _heads.update(new)
    _beside(sorted(new))


def contents_in(data: bytes, name: str = "0") -> list[Content]:
    """What the bytes of one message hold, which may begin with their length."""
    try:
        own = _without_length(data)
        held = encoders.in_base64(own.strip())
        found = _arrays_in(own, name) if held is None else numbers_in({name: held})
    except Exception:  # leave what a decoder does not understand as it is
        found = []
    return found or [Content(name, (len(data),), "uint8", data)]


def _without_length(data: bytes) -> bytes:
    """What follows, where the first 4 or 8 bytes are the length of that."""
    for size in OF_LENGTHS:
        if len(data) > size and is_length(data[:size], len(data) - size):
            return data[size:]
    return data


def is_length(data: bytes, n: int) -> bool:
    """Whether some bytes are a number of bytes, as they are sent before these."""
    ends = int.from_bytes(data, "big"), int.from_bytes(data, "little")
    return len(data) in OF_LENGTHS and n > 0 and n in ends


def _tell_rest(name: str, rest: bytes) -> None:
    """Bytes beside those of numbers."""
    if rest:
        _beside([f"{name}: {len(rest)} bytes {zlib.crc32(rest):08x}"])


def numbers_in(value: Any, name: str = "") -> list[Content]:
    """The numbers that an object holds; none if it holds more than these and texts."""
    found, texts = [], []
    for within, part in parts_of(value):
        key = f"{name}.{within}" if name else within
        if isinstance(part, str):
            held = encoders.in_base64(part)
            part = part if held is None else held
        if isinstance(part, (str, type(None))):
            texts.append(f"{key}: {part}")
            continue
        try:
            is_encoded = isinstance(part, bytes)
            found += contents_in(part, key) if is_encoded else [content_of(part, key)]
        except RecorderError:
            return []
    if found:
        _beside(texts)
    return found


def collective_in(data: bytes, name: str, is_filled: bool) -> list[Content]:
    """The numbers of objects as ``torch.distributed`` sends them; none where they hold none, or
    where one is not known any more.

    Args:
        is_filled: there is one object, which torch fills up to the length of the longest of all
            ranks with whatever is in the memory, as the bytes of another one. Else the bytes of
            several objects follow each other.
    """
    objects, rest = encoders.collective_in(data, 1 if is_filled else len(data))
    if not objects or (rest and not is_filled):
        return []
    found, unnumbered = [], []
    for i, (encoded, parts) in enumerate(objects):
        numbers = numbers_in(parts, f"{name}.{i}" if i else name)
        found += numbers
        unnumbered += [] if numbers else [(f"{name}.{i}", encoded)]
    if found:  # else all of it is recorded as bytes
        for told in unnumbered:
            _tell_rest(*told)
    return found


def _arrays_in(data: bytes, name: str) -> list[Content]:
    """What bytes hold that describe themselves, or else what the program made them of."""
    encoded = encoders.known_in(data)
    if encoded is None and data.startswith(_MARKED):
        return list(_described_in(data, name))
    if encoded is None:
        with suppress(Exception):  # numbers alone may begin like anything
            if found := list(_described_in(data, name)):
                return found
        encoded = raw_in(data)
    if encoded is None:
        return []
    parts, rest = encoded
    _tell_rest(name, rest)
    return numbers_in(parts, name)


def _described_in(data: bytes, name: str) -> Iterator[Content]:
    if data[:4] == b"PK\x03\x04":
        _tell_rest(name, data[data.rfind(_END_OF_ZIP) + 22 :])
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(one.file_size for one in archive.infolist()) > MOST_BYTES:
                raise ValueError("an archive of too many bytes")
            for member in archive.namelist():
                yield from _arrays_in(archive.read(member), f"{name}.{member[:-4]}")
    elif data[:2] in _PACKED or data[:6] == _XZ:
        whole, rest = _unpacked(data)
        _tell_rest(name, rest)
        yield from _arrays_in(whole, name)
    elif data[:4] == b"\xff\xff\xff\xff" or data[:6] == b"ARROW1":
        yield from _of_arrow(data, name)
    elif data[8:10] in (b'{"', b"{ ", b"{\n") and int.from_bytes(data[:8], "little") < len(data):
        yield from _of_safetensors(data, name)
    elif data[:1] in (b"[", b"{") and len(data) < MOST_OF_JSON:
        yield from numbers_in(json.loads(data), name)
    else:
        yield from _npys_in(data, name)


def _npys_in(data: bytes, name: str) -> Iterator[Content]:
    """The arrays inside of other bytes, which are told apart from them."""
    end, rest = 0, b""
    for i, found in enumerate(re.finditer(re.escape(NPY), data)):
        if found.start() < end:
            continue  # inside of an array
        content, after = _npy_at(data, found.start(), f"{name}.{i}" if i else name)
        rest, end = rest + data[end : found.start()], after
        yield content
    rest += data[end:]
    if end:
        _tell_rest(name, rest)


def _unpacked(data: bytes) -> tuple[bytes, bytes]:
    """What was packed, and what follows it. Raises ValueError for what is larger than may be."""
    if data[:6] == _XZ:
        import lzma

        unpack: Any = lzma.LZMADecompressor()
    else:
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
    whole: bytes = unpack.decompress(data, MOST_BYTES)
    if not unpack.eof:
        raise ValueError("an archive of too many bytes, or one that ends early")
    return whole, unpack.unused_data


def _of_arrow(data: bytes, name: str) -> Iterator[Content]:
    """A table or a tensor, read where the program has pyarrow; its columns of numbers."""
    arrow = library("pyarrow")
    if arrow is None:
        return
    from importlib import import_module

    ipc = import_module("pyarrow.ipc")
    is_file = data[:1] == b"A"
    if not is_file and ipc.read_message(data).type == "tensor":
        yield content_of(ipc.read_tensor(arrow.BufferReader(data)).to_numpy(), name)
        return
    table = (ipc.open_file if is_file else ipc.open_stream)(data).read_all()
    _beside(f"{name}: {key!r} {text!r}" for key, text in (table.schema.metadata or {}).items())
    for field, column in zip(table.schema.names, table.columns):
        if arrow.types.is_primitive(column.type):
            yield content_of(column.to_numpy(), f"{name}.{field}")
        elif hasattr(column.type, "value_type"):  # lists
            yield content_of(column.combine_chunks().flatten().to_numpy(False), f"{name}.{field}")
        else:
            _beside([f"{name}.{field}: {column.to_pylist()}"])


def _of_safetensors(data: bytes, name: str) -> Iterator[Content]:
    begin = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:begin])
    ends = [about["data_offsets"][1] for key, about in header.items() if key != "__metadata__"]
    _tell_rest(name, data[begin + max(ends, default=0) :])
    for key, about in header.items():
        if key == "__metadata__":
            _beside(f"{name}.{one}: {text}" for one, text in about.items())
        else:
            at, end = about["data_offsets"]
            held = data[begin + at : begin + end]
            yield Content(f"{name}.{key}", tuple(about["shape"]), DTYPES[about["dtype"]], held)


def _npy_at(data: bytes, at: int, name: str) -> tuple[Content, int]:
    """The array whose file begins at a place, and where it ends: see numpy.lib.format."""
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
    return Content(name, shape, dtype, held), begin + n + len(held)
