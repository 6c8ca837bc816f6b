"""The contents of messages as safetensors files, each content once for each process."""

import json
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from dpaudit.files.recorded import TRANSCRIPT, SentTensor
from dpaudit.files.whole import writing

MOST_TENSORS, MOST_BYTES = 10_000, 2**29  # of one file
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}  # of others the bytes are stored


class Place(NamedTuple):
    """A tensor in the file that a process wrote, as its log has it."""

    name: str
    shape: list[int]
    dtype: str
    at: int
    size: int


class TranscriptFiles:
    """Writes the transcript of a capture. Raises RunError where it cannot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def contents_of(self, process: int, path: Path) -> Iterator["Contents"]:
        """What a process sent, to be stored; when the block ends, the files are written."""
        with writing(self._folder / TRANSCRIPT), open(path, "rb") as file:
            (self._folder / TRANSCRIPT).mkdir(parents=True, exist_ok=True)
            size = path.stat().st_size
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
            contents = Contents(process, memoryview(held) if held else memoryview(b""))
            yield contents
            contents.write(self._folder)


class Contents:
    """What one process sent: every content has a key, and a file of the transcript."""

    def __init__(self, process: int, raw: memoryview) -> None:
        self._process, self._raw = process, raw
        self._known: dict[tuple[str, str], tuple[str, str]] = {}  # to file and key
        self._files: dict[str, list[tuple[str, Place]]] = {}
        self._room = 0

    def checksum(self, listed: Sequence[object]) -> int:
        """The CRC-32, as receivers know it."""
        place = Place(*listed)  # type: ignore[arg-type]
        return crc32(self._raw[place.at : place.at + place.size])

    def store(self, listed: Sequence[object]) -> SentTensor:
        """Where its content will be."""
        place = Place(*listed)  # type: ignore[arg-type]
        digest = sha256(self._raw[place.at : place.at + place.size]).hexdigest()
        if (digest, place.dtype) not in self._known:
            self._known[digest, place.dtype] = self._add(place)
        file, key = self._known[digest, place.dtype]
        return SentTensor(
            name=place.name,
            shape=tuple(place.shape),
            dtype=place.dtype,
            file=file,
            key=key,
            sha256=digest,
        )

    def _add(self, place: Place) -> tuple[str, str]:
        last = list(self._files.values())[-1] if self._files else []
        if not last or len(last) == MOST_TENSORS or self._room + place.size > MOST_BYTES:
            name = f"{TRANSCRIPT}/process-{self._process:04}-{len(self._files):04}.safetensors"
            last, self._room = self._files.setdefault(name, []), 0
        key = str(len(self._known))
        last.append((key, place))
        self._room += place.size
        return next(reversed(self._files)), key

    def write(self, folder: Path) -> None:
        for name, listed in self._files.items():
            header, end = {}, 0
            for key, place in listed:
                dtype = DTYPES.get(place.dtype, "U8")
                shape = place.shape if place.dtype in DTYPES else [place.size]
                header[key] = {
                    "dtype": dtype,
                    "shape": shape,
                    "data_offsets": [end, end + place.size],
                }
                end += place.size
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            with open(folder / name, "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for _, place in listed:
                    file.write(self._raw[place.at : place.at + place.size])
