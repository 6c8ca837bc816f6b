"""Arrays of an .npz archive, none of which is larger than what is really in the file."""

import math
import os
import stat
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import DataError

MOST_EXPANSION = 200  # times; pixels and one-hot features expand less
SMALL = 2**26  # bytes that an array may take whatever it expands from
_VERSIONS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BROKEN = (  # what reading a damaged archive raises
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    TypeError,
    SyntaxError,
    OverflowError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


class Archive:
    """An open .npz archive. Nothing is unpickled, and a header is compared with the file's bytes.

    Raises:
        DataError: it is missing, or no archive.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise ValueError("not a regular file")
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except FileNotFoundError:
            raise DataError("DPA007", f"{path}: no such file") from None
        except _BROKEN as error:
            raise self._unreadable(error) from None
        self._members = {info.filename.removesuffix(".npy"): info for info in members}

    @property
    def names(self) -> Collection[str]:
        return self._members.keys()

    def array(self, name: str) -> NDArray[Any]:
        """One array. Raises DataError if it is damaged, or of objects, or larger than the file."""
        info = self._members[name]
        try:
            if info.file_size > SMALL + MOST_EXPANSION * info.compress_size:
                raise ValueError(
                    f"{name} expands from {info.compress_size} to {info.file_size} bytes"
                )
            with zipfile.ZipFile(self._path) as archive:
                with archive.open(info) as stream:
                    _refuse_untrue_header(name, stream, info.file_size)
                with archive.open(info) as stream:
                    return np.lib.format.read_array(stream, allow_pickle=False)
        except _BROKEN as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: BaseException) -> DataError:
        what = " ".join(str(error).split()) or type(error).__name__
        return DataError("DPA029", f"{self._path}: not a readable .npz of plain arrays: {what}")


def _refuse_untrue_header(name: str, stream: IO[bytes], n_bytes: int) -> None:
    """Raises ValueError unless the array that a header announces has the bytes that follow it."""
    version = np.lib.format.read_magic(stream)
    if version not in _VERSIONS:
        raise ValueError(f"{name} is of the unknown version {version}")
    shape, _, dtype = _VERSIONS[version](stream)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{name} is an array of {dtype}; expected numbers or text")
    announced, there = math.prod(shape) * dtype.itemsize, n_bytes - stream.tell()
    if announced != there or any(length < 0 for length in shape):
        raise ValueError(f"{name} announces {announced} bytes of data, and has {there}")
