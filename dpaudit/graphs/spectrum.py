"""Eigenvalues of mixing matrices: dense for few agents, else by what the graph is made of.

With more than ``DENSE`` agents no dense matrix is made. A circulant matrix, as of rings and of
exponential graphs, has the discrete Fourier transform of its first column as its eigenvalues; of a
tridiagonal one, as of a path, single ones are found by bisection. Others are found by Arnoldi's or
Lanczos' method to a relative ``TOLERANCE``, in which a graph that mixes slowly may not end: then
the second largest is what ``POWERS`` steps of it reach, which is below it, and the smallest is one
less what they reach of I - W, which is above it.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh

DENSE = 1024  # agents of which all eigenvalues are computed
TOLERANCE = 1e-8
POWERS = 2000

Matrix: TypeAlias = sparse.csr_array
Array = NDArray[np.float64]


def second_largest(W: Matrix, symmetric: bool) -> float:
    """The second largest modulus of the eigenvalues of a stochastic W; 0 for a single agent."""
    known = _all(W, symmetric)
    if known is not None:
        moduli = np.sort(np.abs(known))
        return float(moduli[-2]) if len(moduli) > 1 else 0.0
    if symmetric and _is_tridiagonal(W):
        ends = [_of_tridiagonal(W, i) for i in (0, W.shape[0] - 2)]
        return float(np.abs(ends).max())
    return _by_arnoldi(W, symmetric)


def smallest(W: Matrix) -> float:
    """The smallest eigenvalue of a symmetric W."""
    known = _all(W, True)
    if known is not None:
        return float(known.real.min())
    if _is_tridiagonal(W):
        return _of_tridiagonal(W, 0)
    try:
        found = eigsh(W, 1, which="SA", v0=_start(W), tol=TOLERANCE, return_eigenvectors=False)
        return float(found[0])
    except ArpackNoConvergence:
        rest = LinearOperator(W.shape, matvec=lambda x: x - W @ x, dtype=np.float64)
        return 1 - _by_powers(rest, _start(W))


def _all(W: Matrix, symmetric: bool) -> NDArray[np.complex128] | Array | None:
    """All eigenvalues; None where they are too many to compute."""
    if W.shape[0] <= DENSE:
        dense = W.toarray()
        return np.linalg.eigvalsh(dense) if symmetric else np.linalg.eigvals(dense)
    if _is_circulant(W):
        return np.fft.fft(W[:, [0]].toarray().ravel())
    return None


def _is_circulant(W: Matrix) -> bool:
    """Whether each row is the one before it, moved by one."""
    n, rows = W.shape[0], np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    hops = (W.indices - rows) % n
    order = np.lexsort((hops, rows))
    each = len(hops) // n
    if (np.diff(W.indptr) != each).any():
        return False
    hops, weights = (of[order].reshape(n, each) for of in (hops, W.data))
    return bool((hops == hops[0]).all() and (weights == weights[0]).all())


def _is_tridiagonal(W: Matrix) -> bool:
    rows, columns = W.nonzero()
    return bool((np.abs(rows - columns) <= 1).all())


def _of_tridiagonal(W: Matrix, i: int) -> float:
    """The i-th smallest eigenvalue."""
    parts = W.diagonal(), W.diagonal(1)
    return float(eigvalsh_tridiagonal(*parts, select="i", select_range=(i, i))[0])


def _by_arnoldi(W: Matrix, symmetric: bool) -> float:
    """The second largest |eigenvalue| of W, after its part along the eigenvalue 1 is removed.

    Rows or columns of W sum to 1. What is taken away is 1 1'/n, which has the eigenvalue 1 from the
    one side; the others stay as they are (Brauer).
    """
    n = W.shape[0]
    T = W if np.abs(W.sum(0) - 1).max() < np.abs(W.sum(1) - 1).max() else W.T
    rest = LinearOperator((n, n), matvec=lambda x: T.T @ x - x.mean(), dtype=np.float64)
    find = eigsh if symmetric else eigs
    try:
        found = find(rest, 1, which="LM", v0=_start(W), tol=TOLERANCE, return_eigenvectors=False)
        return float(np.abs(found[0]))
    except ArpackNoConvergence:
        return _by_powers(rest, _start(W))


def _by_powers(rest: LinearOperator, x: Array) -> float:
    """How much the last half of the steps shrinks a vector, on average of them."""
    size = 0.0
    for step in range(POWERS):
        x = rest @ x
        length = float(np.linalg.norm(x))
        x = x / length
        size += np.log(length) if step >= POWERS // 2 else 0.0
    return float(np.exp(size / (POWERS - POWERS // 2)))


def _start(W: Matrix) -> Array:
    """A vector that no eigenvector is orthogonal to by its symmetry."""
    return np.random.default_rng(0).standard_normal(W.shape[0])
