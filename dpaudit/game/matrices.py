"""Linear algebra of the filter, of dense matrices and of sparse ones that fall into small blocks.

The rows and columns of a sparse matrix are the two sides of a graph whose edges are its entries.
Connected parts of it share nothing: a singular value decomposition of the whole is those of the
parts, and parts of one shape are decomposed in one call. A dense matrix is one part.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

MOST = 4000  # rows or columns of a block, of which the smaller number counts; it takes their square
ENTRIES = 3 * 10**7  # entries of a block: 240 MB
SMALL = 64  # rows of a block that is compressed even where that saves none
RANK = 1e-9  # singular values below this share of the largest of all blocks are zero

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
Matrix: TypeAlias = sparse.csr_array  # or an Array; scipy has no types


class NotLocal(Exception):
    """A step, or a view of it, that has no small parts; the reason is its text."""


def times(values: Tensor, matrix: Matrix) -> Tensor:
    """``values`` [(trials,) n] times the matrix [n, m], in their dtype and on their device."""
    if isinstance(matrix, np.ndarray):
        return values @ torch.from_numpy(matrix).to(values)
    rows = values.cpu().numpy()
    return torch.from_numpy(rows @ matrix.astype(rows.dtype)).to(values.device)


class Factors(NamedTuple):
    """A = V' S U' of A [n_rows, n_columns], without singular values that are rounding."""

    V: Matrix  # [rank, n_rows]
    S: Array  # [rank]
    U: Matrix  # [n_columns, rank]
    block: Indices  # [rank]: which part each is of


class _Block(NamedTuple):
    """All parts of one shape."""

    parts: Indices  # [m]: their numbers
    rows: Indices  # [m, n_rows]
    columns: Indices  # [m, n_columns]
    dense: Array  # [m, n_rows, n_columns]


def factors(A: Matrix, rank: float = RANK) -> Factors:
    """The singular value decomposition of A, up to values below ``rank`` times the largest.

    Raises:
        NotLocal: a part is too large.
    """
    if isinstance(A, np.ndarray):
        left, sizes, right = _svd(A.T)
        n = int((rank * sizes.max(initial=0.0) < sizes).sum())
        return Factors(right[:n], sizes[:n], left[:, :n], np.zeros(n, dtype=np.int64))
    found = [(block, *np.linalg.svd(block.dense, full_matrices=False)) for block in blocks(A)]
    cut = rank * max((float(S.max()) for _, _, S, _ in found if S.size), default=0.0)
    V, U, parts, kept, n = [], [], [], [], 0
    for block, left, S, right in found:
        which, j = np.nonzero(cut < S)
        number = n + np.arange(len(which))
        V.append(_entries(number, block.rows[which], left[which, :, j]))
        U.append(_entries(number, block.columns[which], right[which, j]))
        parts.append(block.parts[which])
        kept.append(S[which, j])
        n += len(which)
    return Factors(
        _matrix(V, (n, A.shape[0])),
        np.concatenate([np.zeros(0), *kept]),
        sparse.csr_array(_matrix(U, (n, A.shape[1])).T),
        np.concatenate([np.zeros(0, dtype=np.int64), *parts]),
    )


def compressed(factor: Matrix, least: float) -> Matrix:
    """Rows with the same Gram matrix: no more of them in a part than it has columns, none zero.

    Args:
        least: entries (of dense factors, columns) and singular values up to this are rounding.

    Raises:
        NotLocal: a part is too large.
    """
    if isinstance(factor, np.ndarray):
        _, S, V = _svd(factor * (np.linalg.norm(factor, axis=0) > least))
        return S[least < S, None] * V[least < S]
    factor = sparse.csr_array(factor)
    factor.data[np.abs(factor.data) <= least] = 0.0
    factor.eliminate_zeros()
    parts = _Parts.of(factor)
    few = (parts.n_rows > 1) & (parts.n_rows <= SMALL) & (parts.n_columns <= SMALL**2)
    chosen = (parts.n_columns < parts.n_rows) | few
    in_chosen = chosen[parts.of_row]
    kept, n = [], 0
    for block in blocks(factor[in_chosen]):
        _, S, right = np.linalg.svd(block.dense, full_matrices=False)
        which, j = np.nonzero(least < S)
        rows = S[which, j, None] * right[which, j]
        kept.append(_entries(n + np.arange(len(which)), block.columns[which], rows))
        n += len(which)
    others = factor[~in_chosen & (np.diff(factor.indptr) > 0)]
    return sparse.csr_array(sparse.vstack([others, _matrix(kept, (n, factor.shape[1]))]))


def factor_with(R: Array, block: Array) -> Array:
    """R1 [*, m1] with R1'R1 = block'block + R'R, as rows are added to a tall matrix with factor R.

    Args:
        R: [*, m], in the first columns of ``block``; the others of it are new.
        block: [n, m1].
    """
    first = np.pad(R, ((0, 0), (0, block.shape[1] - R.shape[1])))
    return torch.linalg.qr(torch.from_numpy(np.concatenate([first, block])), mode="r").R.numpy()


def _svd(A: Array) -> tuple[Array, Array, Array]:
    U, S, V = torch.linalg.svd(torch.from_numpy(A), full_matrices=False)
    return U.numpy(), S.numpy(), V.numpy()


def column_norms(A: Matrix) -> Array:
    """[n_columns]."""
    squares = A**2 if isinstance(A, np.ndarray) else A.power(2)
    return np.asarray(np.sqrt(squares.sum(0)))


def scaled(A: Matrix, by: Array) -> Matrix:
    """Multiply each column by a number of ``by`` [n_columns]."""
    return A * by if isinstance(A, np.ndarray) else sparse.csr_array(A * by)


def largest(A: Matrix) -> float:
    """The size of the largest entry; 0 of none."""
    return float(abs(A).max()) if min(A.shape) else 0.0


class _Parts(NamedTuple):
    """The connected parts of a matrix; a row or a column without entries is one of its own."""

    of_row: Indices  # [n_rows]
    of_column: Indices  # [n_columns]
    n_rows: Indices  # [n_parts]
    n_columns: Indices  # [n_parts]

    @classmethod
    def of(cls, A: Matrix) -> "_Parts":
        both = sparse.block_array([[None, A], [A.T, None]], format="csr")
        n, labels = connected_components(both, directed=False)
        rows, columns = np.split(labels.astype(np.int64), [A.shape[0]])
        return cls(rows, columns, np.bincount(rows, minlength=n), np.bincount(columns, minlength=n))


def blocks(A: Matrix) -> Iterator[_Block]:
    """The parts of a matrix that have entries, those of one shape together.

    Raises:
        NotLocal: a part is too large.
    """
    if not A.nnz:
        return
    parts = _Parts.of(A)
    rows, columns = _Members.by(parts.of_row), _Members.by(parts.of_column)
    listed = A.tocoo()
    i, j = listed.coords
    shapes = np.stack([parts.n_rows, parts.n_columns], axis=1)
    kinds, kind = np.unique(shapes, axis=0, return_inverse=True)
    for k, (n_rows, n_columns) in enumerate(kinds.tolist()):
        if not n_rows or not n_columns:
            continue
        if min(n_rows, n_columns) > MOST or n_rows * n_columns > ENTRIES:
            raise NotLocal(f"{n_rows} noises and {n_columns} numbers hang together")
        numbers = np.flatnonzero(kind == k)
        place = np.full(len(shapes), -1)
        place[numbers] = np.arange(len(numbers))
        at = place[parts.of_row[i]]
        here = at >= 0
        dense = np.zeros((len(numbers), n_rows, n_columns))
        dense[at[here], rows.place[i[here]], columns.place[j[here]]] = listed.data[here]
        yield _Block(numbers, rows.of(numbers, n_rows), columns.of(numbers, n_columns), dense)


class _Members(NamedTuple):
    """The rows, or the columns, of each part."""

    order: Indices  # members sorted by part
    first: Indices  # [n_parts], of each part in that order
    place: Indices  # place of each member within its part

    @classmethod
    def by(cls, labels: Indices) -> "_Members":
        order = np.argsort(labels, kind="stable")
        first = np.searchsorted(labels[order], np.arange(int(labels.max(initial=0)) + 2))
        place = np.empty_like(order)
        place[order] = np.arange(len(order)) - first[labels[order]]
        return cls(order, first, place)

    def of(self, parts: Indices, size: int) -> Indices:
        """Members of parts of equal size, [m, size]."""
        return self.order[self.first[parts][:, None] + np.arange(size)]


def _entries(rows: Indices, columns: Indices, values: Array) -> tuple[Indices, Indices, Array]:
    """Row, column and value of each entry of rows [m] with values [m, n] at columns [m, n]."""
    return np.repeat(rows, columns.shape[1]), columns.ravel(), values.ravel()


def _matrix(entries: list[tuple[Indices, Indices, Array]], shape: tuple[int, int]) -> Matrix:
    if not entries:
        return sparse.csr_array(shape)
    rows, columns, values = (np.concatenate(of) for of in zip(*entries, strict=True))
    return sparse.csr_array((values, (rows, columns)), shape=shape)
