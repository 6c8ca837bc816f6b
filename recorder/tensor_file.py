"""Reads files of tensors, in the format safetensors, with the standard library alone.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os

from .errors import RecorderError
from .log import Content

DTYPES = {"BF16": "bfloat16", "BOOL": "bool"}
for _bits in (8, 16, 32, 64):
    DTYPES[f"I{_bits}"], DTYPES[f"U{_bits}"] = f"int{_bits}", f"uint{_bits}"
    if _bits > 8:
        DTYPES[f"F{_bits}"] = f"float{_bits}"
MOST_OF_HEADER = 100_000_000  # bytes, as safetensors itself has it


class TensorFile:
    """A file of tensors, whose contents are read when they are asked for.

    Raises RecorderError for a file that is none.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            with open(path, "rb") as file:
                n = int.from_bytes(file.read(8), "little")
                if n > MOST_OF_HEADER:
                    raise ValueError(f"a header of {n} bytes")
                self._header, self._begin = json.loads(file.read(n)), 8 + n
        except (OSError, ValueError) as error:
            raise RecorderError("DPA066", f"{path}: {error}") from None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a content; None if there is no such content."""
        found = self._header.get(name)
        return None if found is None else tuple(found["shape"])

    def content(self, name: str) -> Content:
        """Raises KeyError."""
        about = self._header[name]
        at, end = about["data_offsets"]
        with open(self._path, "rb") as file:
            file.seek(self._begin + at, os.SEEK_SET)
            data = file.read(end - at)
        return Content(name, tuple(about["shape"]), DTYPES[about["dtype"]], data)
