"""mu of a linear view y = A r + B z of a record's uses r, from its matrices.

mu of a use a, a column of A, is the least |w| with B w = a for white noise z, and a computed w is
off by |a - B w| / s at most, with s the least singular value of B. mu^2 of the uses of an inclusion
is at least the sum of the Gram matrix of their w, at most that of its absolute values.
"""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

from .accountant import Array

LARGEST = 10**8  # bytes of matrices
RANK = 1e-9  # singular values below this share of the largest are zero
NOISELESS = 1e-6  # share of a use that counts as nothing if no noise hides it


def mus(file: Path) -> list[tuple[float, float]]:
    """mu of each inclusion of the record, from below and above, in order."""
    if file.stat().st_size > LARGEST or not file.is_file():
        raise ValueError("too large, or no regular file")
    content = file.read_bytes()
    sizes = [part.file_size for part in zipfile.ZipFile(io.BytesIO(content)).infolist()]
    if hashlib.sha256(content).hexdigest() not in file.name or sum(sizes) > LARGEST:
        raise ValueError("not what its name says, or too large")
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = {key: np.asarray(stored[key], float) for key in stored.files}
    A, found = arrays["record"], []
    w, error = whitened(A, arrays["noise"]) if "noise" in arrays else (A, np.zeros(A.shape[1]))
    for at in (arrays["inclusion"] == j for j in np.unique(arrays["inclusion"])):
        gram, off = w[:, at].T @ w[:, at], float(error[at].sum())
        more = off * (2 * np.linalg.norm(w[:, at], axis=0).sum() + off)
        low = np.sqrt(max(0.0, gram.sum())) - off if off < np.inf else np.inf
        found.append((float(low), float(np.sqrt(np.abs(gram).sum() + more))))
    return sorted(found)


def whitened(A: Array, B: Array) -> tuple[Array, Array]:
    """The least w with B w = a for each column a of A, and how far it may be off."""
    U, S, V = np.linalg.svd(B, full_matrices=False)
    rank = int((RANK * S.max(initial=0.0) < S).sum())
    w = V[:rank].T @ ((U[:, :rank].T @ A) / S[:rank, None])
    rest = np.linalg.norm(A - B @ w, axis=0)
    shown = rest > NOISELESS * np.abs(A).max(axis=0, initial=0.0)
    return w, np.where(shown, np.inf, rest / S[:rank].min(initial=np.inf))
