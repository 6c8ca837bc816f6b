"""Scores in a .npy file, which may be anybody's: read as numbers or refused in one line."""

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit.errors import DataError

from .documents import reason

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST = 2
MOST = 10**8  # scores of a file
LEAST_BYTES = 4  # least size of a float: many float16 scores would tie
MOST_BYTES = 8  # a larger one may be beyond what a float64 holds
BEGINNINGS = b"\x93NUMPY", b"PK", b"\x80"  # first bytes of .npy, .npz and pickles


def read_scores(path: Path) -> "NDArray[np.float64]":
    """The scores [n] of a file; infinities are scores.

    Nothing in it is executed, and no more is read than the file holds, whatever its header says.

    Raises:
        DataError: the file cannot be read, or holds something else than one list of numbers.
    """
    import numpy as np

    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device could have no end
            raise ValueError("not a regular file")
        _refuse_other_formats(path)
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError("DPA007", f"{path}: {reason(error)}") from None
    except Exception as error:  # numpy parses the header as Python, which fails in many ways
        said = reason(error) if isinstance(error, ValueError) else "its header is damaged"
        if "pickle" in said.lower() or "object" in said.lower():
            said = "it holds Python objects, which are not loaded"
        raise DataError("DPA030", f"{path}: not a .npy file of numbers: {said}", SAVE) from None
    if not isinstance(stored, np.ndarray):
        stored.close()
        raise DataError("DPA030", f"{path}: expected one array, found an archive of several", SAVE)
    _refuse(path, stored)
    scores = stored.astype(np.float64)
    if missing := int(np.isnan(scores).sum()):
        raise DataError("DPA072", f"{path}: {missing:,} of {len(scores):,} scores are NaN")
    return scores


SAVE = 'save scores with numpy.save("scores.npy", numpy.asarray(scores, "float64"))'


def _refuse_other_formats(path: Path) -> None:
    """Raises ValueError for a file, such as a text, that does not begin as NumPy's do."""
    with path.open("rb") as file:
        begins = file.read(6)
    if begins and not begins.startswith(BEGINNINGS):
        raise ValueError("it does not begin as one")


def _refuse(path: Path, stored: "NDArray[np.generic]") -> None:
    """Raises DataError: the array is no list of numbers of this many."""
    kind, size = stored.dtype.kind, stored.dtype.itemsize
    if kind not in "fiu" or (kind == "f" and not LEAST_BYTES <= size <= MOST_BYTES):
        said = f"expected float32, float64 or integers, got {stored.dtype}"
        raise DataError("DPA030", f"{path}: {said}", SAVE)
    if stored.ndim != 1:
        said = f"expected one list of scores [n], got shape {list(stored.shape)}"
        raise DataError("DPA030", f"{path}: {said}", SAVE)
    if not FEWEST <= len(stored) <= MOST:
        said = f"expected {FEWEST} to {MOST:,} scores, got {len(stored):,}"
        raise DataError("DPA072", f"{path}: {said}")
