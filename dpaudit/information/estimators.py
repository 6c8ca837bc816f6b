"""Mutual information of continuous samples in bits: the k-nearest-neighbour estimators.

All of them take the samples exactly as they are: no noise is added, nothing is rescaled. The
estimates of Kraskov, Stögbauer and Grassberger depend on the scale of each column and need points
that differ; ``reduction`` prepares both, and ``mnmi`` adds what a report needs.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma

from dpaudit.errors import ConfigError, DataError

from .neighbours import Counts, Floats, counts_within, kth_distances

NEIGHBOURS = 3  # k, as in NPEET
INSIDE = 1e-15  # taken off each radius, as in NPEET: the k-th neighbour itself is not counted
LN2 = float(np.log(2))


def ksg(x: ArrayLike, y: ArrayLike, k: int = NEIGHBOURS) -> float:
    """I(X; Y) in bits by the first estimator of Kraskov, Stögbauer and Grassberger.

    With r_i the max-norm distance of (x_i, y_i) to its k-th neighbour, and n_x(i) and n_y(i) the
    points, i itself included, that are nearer than r_i in each space,

        I = psi(k) + psi(n) - <psi(n_x) + psi(n_y)>.

    Args:
        x, y: [n] or [n, dims], finite, no constant column, no k + 1 identical points.
        k: 1 <= k < n.

    Returns:
        Bits; below zero by chance where there is little information.

    Raises:
        ConfigError: k out of range.
        DataError: samples that are not as above.

    Source: Kraskov et al. 2004, eq. (8), arXiv:cond-mat/0305641. NPEET's ``mi`` is the same
    function of the samples once it has added its tie-breaking noise.
    """
    x, y = paired_samples(k, x=x, y=y)
    return ksg_of_samples(x, y, k)


def ksg_of_samples(x: Floats, y: Floats, k: int) -> float:
    """``ksg`` for samples [n, dims] that have been checked."""
    inside = _radii(np.hstack([x, y]), k) - INSIDE
    psi = _digamma_table(len(x))
    counted = psi[counts_within(x, inside)] + psi[counts_within(y, inside)]
    return float(psi[k] + psi[len(x)] - counted.mean()) / LN2


def conditional_ksg(x: ArrayLike, y: ArrayLike, z: ArrayLike, k: int = NEIGHBOURS) -> float:
    """I(X; Y | Z) in bits: what y reveals about x to somebody who knows z already.

    With the counts n_xz, n_yz and n_z within the distance to the k-th neighbour of (x, y, z),
    I = psi(k) + <psi(n_z) - psi(n_xz) - psi(n_yz)>. Shapes and errors as in ``ksg``.

    Source: Frenzel and Pompe 2007, doi:10.1103/PhysRevLett.99.204101.
    """
    x, y, z = paired_samples(k, x=x, y=y, z=z)
    inside = _radii(np.hstack([x, y, z]), k) - INSIDE
    psi = _digamma_table(len(x))
    known, both = psi[counts_within(z, inside)], np.zeros(len(x))
    for side in (x, y):
        both += psi[counts_within(np.hstack([side, z]), inside)]
    return float(psi[k] + (known - both).mean()) / LN2


def entropy(x: ArrayLike, k: int = NEIGHBOURS) -> float:
    """Differential entropy of X in bits; it changes with the unit of x, and can be negative.

    With r_i the max-norm distance to the k-th neighbour in d dimensions,
    H = psi(n) - psi(k) + d <ln(2 r)>. Shapes and errors as in ``ksg``.

    Source: Kozachenko and Leonenko 1987; Kraskov et al. 2004, eq. (20).
    """
    (x,) = paired_samples(k, x=x)
    n, d = x.shape
    return float(digamma(n) - digamma(k) + d * np.log(2 * _radii(x, k)).mean()) / LN2


def gaussian_information(x: ArrayLike, y: ArrayLike) -> float:
    """I(X; Y) in bits if the samples were jointly Gaussian: a cross-check that needs no neighbours.

    -1/2 sum log2(1 - rho^2) over the canonical correlations rho of the samples; infinite where one
    side is a linear function of the other. Blind to dependence that is not linear.

    Args:
        x, y: [n] or [n, dims], finite, no constant column, more samples than columns.

    Source: Gelfand and Yaglom 1957; Cover and Thomas, Elements of Information Theory, 8.5.
    """
    x, y = paired_samples(1, x=x, y=y)
    if x.shape[1] + y.shape[1] >= len(x):
        dims = x.shape[1] + y.shape[1]
        raise DataError(
            "DPA073", f"{len(x)} samples of {dims} columns in all; expected more samples"
        )
    canonical = np.linalg.svd(_orthonormal(x).T @ _orthonormal(y), compute_uv=False)
    unexplained = 1 - np.minimum(canonical, 1) ** 2
    if unexplained.min() < 1e-12:
        return float("inf")
    return float(-0.5 * np.log2(unexplained).sum())


def gaussian_channel(signal_covariance: ArrayLike, noise_covariance: ArrayLike) -> float:
    """I(S; S + N) in bits for independent Gaussian S and N: 1/2 log2 det(I + Q^-1 K).

    Args:
        signal_covariance: K, [d, d], or the variance of one dimension.
        noise_covariance: Q, likewise, positive definite.

    Source: Cover and Thomas, section 9.4.
    """
    signal = np.atleast_2d(np.asarray(signal_covariance, dtype=float))
    noise = np.atleast_2d(np.asarray(noise_covariance, dtype=float))
    if signal.shape != noise.shape or np.linalg.eigvalsh(noise).min() <= 0:
        raise DataError(
            "DPA073",
            f"covariances of shapes {signal.shape} and {noise.shape}; expected the same "
            "shape, and a positive definite one for the noise",
        )
    return (
        float(np.linalg.slogdet(np.eye(len(noise)) + np.linalg.solve(noise, signal))[1]) / 2 / LN2
    )


def self_information(n: int, k: int = NEIGHBOURS) -> float:
    """NPEET's value of I(V; V) in bits for n distinct values: (psi(n) - psi(k + 1)) / ln 2.

    The true value is infinite. NPEET perturbs the two copies apart; the k-th neighbour then lies on
    the edge of the radius in one copy (k points inside) and just within it in the other (k + 1), so
    I = psi(k) + psi(n) - psi(k) - psi(k + 1), whatever the distribution or dimension of V, as long
    as its values are far apart beside the noise and of a size near 1.
    """
    return float(digamma(n) - digamma(k + 1)) / LN2


def information_correlation(bits: float) -> float:
    """Linfoot's coefficient sqrt(1 - 2^(-2 I)), from 0 (nothing) to 1 (everything).

    Of two Gaussian variables it is |rho|. It grows with I alone and does not depend on the sample
    size. Its square bounds what the view explains: no estimate of a private variable of entropy
    power N from the view has a mean squared error below 2^(-2 I) N.

    Source: Linfoot 1957, doi:10.1016/S0019-9958(57)90116-X; the bound: Cover and Thomas,
    theorem 8.6.6.
    """
    return float(np.sqrt(1 - 2 ** (-2 * max(bits, 0.0))))


def npeet(x: ArrayLike, y: ArrayLike, z: ArrayLike | None = None, k: int = NEIGHBOURS) -> float:
    """The reference: NPEET's own estimate in bits, with the tie-breaking noise it draws itself."""
    from npeet_plus import mi

    return float(mi(x, y, z=z, k=k, base=2))


def paired_samples(k: int, **samples: ArrayLike) -> list[Floats]:
    """The named samples as float64 [n, dims], checked.

    Raises:
        ConfigError: k is not within 1 <= k < n.
        DataError: another shape, different n, a value that is not finite, a constant column.
    """
    arrays = [as_samples(name, values) for name, values in samples.items()]
    lengths = {name: len(array) for name, array in zip(samples, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise DataError("DPA073", f"samples of different lengths {lengths}; expected pairs")
    check_neighbours(k, len(arrays[0]))
    for name, array in zip(samples, arrays, strict=True):
        check_varies(name, array)
    return arrays


def as_samples(name: str, values: ArrayLike) -> Floats:
    """The values as float64 [n, dims]; [n] becomes [n, 1]."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(
            "DPA073", f"{name}: samples of different dimensions; expected [n, dims]"
        ) from None
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or 0 in array.shape:
        raise DataError(
            "DPA073",
            f"{name}: {array.dtype} values of shape {list(array.shape)}; "
            "expected real numbers of shape [n] or [n, dims]",
        )
    array = array.astype(np.float64, copy=False).reshape(len(array), -1)
    if not np.isfinite(array).all():
        bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
        raise DataError(
            "DPA073",
            f"{name}: {bad.size} of {len(array)} samples hold NaN or infinite values, "
            f"the first is sample {bad[0]}; expected finite values",
        )
    return array


def check_neighbours(k: int, n: int) -> None:
    """Refuse a number of neighbours that n samples cannot have."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise ConfigError("DPA071", f"k = {k!r} neighbours; expected a whole number of at least 1")
    if n < k + 1:
        raise DataError("DPA073", f"{n} samples; k = {k} neighbours need at least k + 1 = {k + 1}")


def varying(array: Floats) -> NDArray[np.bool_]:
    """Which columns of [n, dims] are not constant, nor so but for a few roundings."""
    columns = np.ascontiguousarray(array.T)  # reductions along memory are several times faster
    low, high = columns.min(axis=1), columns.max(axis=1)
    resolution = 64 * np.finfo(float).eps * np.maximum(-low, high)
    mask: NDArray[np.bool_] = ~(high - low <= resolution)  # NaN is another matter
    return mask


def check_varies(name: str, array: Floats) -> None:
    """Refuse a column that is constant, or is so but for a few roundings."""
    constant = np.flatnonzero(~varying(array))
    if constant.size:
        raise DataError(
            "DPA073",
            f"{name}: column {constant[0]} is constant ({array[0, constant[0]] + 0.0:.6g}); "
            "drop it, a constant carries no information",
        )


def _radii(points: Floats, k: int) -> Floats:
    radii = kth_distances(points, k)
    if radii.min() <= INSIDE:
        where = int(radii.argmin())
        raise DataError(
            "DPA073",
            f"sample {where} coincides with {k} others or more; expected a continuous sample, "
            "or a little tie-breaking noise (dpaudit.information.reduction adds it)",
        )
    return radii


@lru_cache(maxsize=16)
def _digamma_table(n: int) -> Floats:
    """psi(0), ..., psi(n)."""
    counts: Counts = np.arange(n + 1)
    return digamma(counts.astype(float))


def _orthonormal(samples: Floats) -> Floats:
    """An orthonormal basis [n, rank] of the centred and scaled columns."""
    scaled = (samples - samples.mean(axis=0)) / samples.std(axis=0)
    basis, size, _ = np.linalg.svd(scaled, full_matrices=False)
    return basis[:, size > 1e-10 * size[0]]
