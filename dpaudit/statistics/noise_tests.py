"""Tests of noise: independent of one scale, whatever its distribution; white; or of a given law.

Every test of scale and independence holds its level if the coordinates of a row are independent,
symmetric and of one distribution; none asks which. Sums of independent signs are bounded by
Hoeffding's inequality. Tests of white noise have an exact level.

``law_p_value`` compares the law of vectors, up to location and scale, with that of independent
Gaussian or Laplace numbers. Its p-values are conservative: distances of empirical distributions are
bounded by the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart (1990), for two samples by
that of Wei and Dudley (2012), and taking mean and covariance from the sample itself only makes
distances smaller. A joint law may differ where no coordinate does: of the shortest of several
Gaussian vectors every coordinate is nearly Gaussian, and the norm is not that of a Gaussian vector.
So norms and the sum are tested beside the coordinates.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.special import betainc, chdtr, chdtrc, gammaincc, gammaincinv, ndtr

from dpaudit.accounting.privacy_loss import Array, NoiseFamily, laplace_cdf

PARALLEL = 1e-5  # sine of the angle between two vectors that are multiples of one another
SILENT = 1e-9  # directions with less variance, relative to the largest, have no noise
POOLED = 400_000  # numbers of all coordinates together
BINS = 400  # bins of a density
WIDEST = 6.0  # standard deviations that a density is estimated over
RESOLVED = 1e-12  # relative: bins about a number are as wide at least
SMOOTH = 1.5  # bins
MARGIN = 0.1  # standard deviations beyond all that was drawn: shifts are estimated


def scale_p_values(sizes: Array) -> tuple[Array, Array]:
    """By coordinate of sizes [n, d]: p-values of its being too small, and too large, [d] each.

    Among exchangeable coordinates the rank of one is uniform; the ranks of n independent rows are
    combined as by Fisher, whose statistic is then at most chi^2 with 2 n degrees of freedom.
    """
    n, d = sizes.shape
    low, high = _ranks(sizes) / d, _ranks(-sizes) / d
    smaller, larger = (gammaincc(n, -np.log(p).sum(axis=0)) for p in (low, high))
    return smaller, larger


def _ranks(rows: Array) -> Array:
    """How many entries of its row [n, d] are at most as large as each."""
    return np.array([np.searchsorted(np.sort(row), row, side="right") for row in rows])


def sign_p_value(total: Array, n: Array | int) -> Array:
    """Two-sided p-value of a sum of n independent signs."""
    return np.minimum(1.0, 2 * np.exp(-np.square(total) / (2 * np.maximum(n, 1))))


def lag_p_values(noise: Array) -> Array:
    """By lag 1, 2, ...: p-values of agreeing signs of coordinates that far apart, of [n, d].

    The products of the signs at one lag are independent, since no two lead round in a circle.
    """
    n, d = noise.shape
    spectra = np.fft.rfft(np.sign(noise), 2 * d, axis=1)
    sums = np.fft.irfft(np.square(np.abs(spectra)).sum(axis=0), 2 * d)[1:d]
    return sign_p_value(sums, n * (d - np.arange(1, d)))


def parallel_pairs(vectors: Array, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Pairs of rows of [m, n] that are multiples of one another, neighbours in a random order.

    Of independent continuous rows with n >= 8 none is, but with probability below 1e-20 m^2.
    """
    lengths = np.linalg.norm(vectors, axis=1)
    there = np.flatnonzero(lengths > 0)
    unit = vectors[there] / lengths[there, None]
    unit *= np.sign(unit[:, :1]) + (unit[:, :1] == 0)
    order = np.argsort(unit @ rng.standard_normal(vectors.shape[1]))
    gaps = np.linalg.norm(np.diff(unit[order], axis=0), axis=1)
    near = np.flatnonzero(gaps < PARALLEL)
    return [(int(there[order[i]]), int(there[order[i + 1]])) for i in near]


def size_of_draws(
    total: float, n: int, family: NoiseFamily, level: float
) -> tuple[float, float, float]:
    """The scale of n draws in units of what was asked, and its interval at a level, exactly.

    Args:
        total: the sum of squares of Gaussian draws, of absolute values of Laplace draws; the one is
            chi^2 with n degrees of freedom, the other Gamma(n).
    """
    power = 1.0 if family == "laplace" else 0.5
    shape, size = (float(n), total) if family == "laplace" else (n / 2, total / 2)
    low, high = (float((size / gammaincinv(shape, p)) ** power) for p in (1 - level / 2, level / 2))
    return (total / n) ** power, low, high


def white_noise_test(sample: Array) -> tuple[str, float]:
    """The most striking departure of columns [n, m] from N(0, I), and a p-value for it.

    The smallest of all p-values counts as often as there are tests, so that white noise has one
    below p with probability p at most.
    """
    return striking(white_noise_p_values(sample))


def white_noise_p_values(sample: Array) -> dict[str, Array]:
    """By test: p-values, each uniform if the columns [n, m] are N(0, I).

    Sums of squares are chi^2 with as many degrees of freedom, sums of n numbers are N(0, n), and
    the squared cosine of two columns is Beta(1/2, (n - 1)/2), all exactly.
    """
    n, m = sample.shape
    squares = np.square(sample).sum(axis=0)
    unit = sample / np.sqrt(np.where(squares > 0, squares, 1.0))
    cosine = np.clip((unit.T @ unit)[np.triu_indices(m, 1)], -1.0, 1.0)
    return {
        "its size": size_p_values(squares.sum(keepdims=True), n * m),
        "the size of a column": size_p_values(squares, n),
        "the mean of a column": 2 * ndtr(-np.abs(sample.sum(axis=0)) / np.sqrt(n)),
        "correlation of two columns": betainc((n - 1) / 2, 0.5, 1 - np.square(cosine)),
    }


def size_p_values(squares: Array, n: Array | int) -> Array:
    """Two-sided p-values of sums of n squares of standard normal numbers."""
    return 2 * np.minimum(chdtr(n, squares), chdtrc(n, squares))


def striking(p_values: Mapping[str, Array]) -> tuple[str, float]:
    """The test with the smallest p-value, which counts as often as there are p-values in all."""
    count = sum(p.size for p in p_values.values())
    smallest = {test: float(p.min(initial=1.0)) for test, p in p_values.items()}
    test = min(smallest, key=lambda name: smallest[name])
    return test, min(1.0, count * smallest[test])


Score = Callable[[Array], Array]  # vectors [n, d] -> a number each


def law_p_value(sample: Array, family: NoiseFamily, rng: np.random.Generator) -> tuple[float, str]:
    """A p-value of ``sample`` [n, d] being independent rows of one law, and what differs most.

    That law is of independent coordinates of the family at any location and scale; of the Gaussian
    family at any covariance. Coordinates without noise are left out.
    """
    scaled, joint = _standardised(sample), _whitened(sample, family)
    n, d = scaled.shape
    if d == 0:
        return 1.0, ""
    other = _whitened(_draws(family, (n, d), rng), family)
    each = _dkw(_distances(np.sort(scaled, axis=0), family), n)
    pooled = scaled.ravel()[:POOLED, None]
    found = {
        "a coordinate": d * float(each.min()),
        "all coordinates": float(_dkw(_distances(np.sort(pooled, axis=0), family), len(pooled))[0]),
    }
    for (what, ours), (_, theirs) in zip(_statistics(joint), _statistics(other), strict=True):
        found[what] = float(_dkw(_distance_of_two(ours, theirs), n / 2))
    what = min(found, key=lambda name: found[name])
    return min(1.0, len(found) * found[what]), what


def scores_of_a_shift(silent: Array, shifts: tuple[Array, Array]) -> Iterator[Score]:
    """Scores that separate the second of two ``shifts`` [d] of the law of ``silent`` [n, d].

    Log likelihood ratios of Gaussian noise, of noise with spherical symmetry, and of noise with
    independent coordinates, the latter two by densities that are estimated. Whether one is right
    is for the runs to say that are scored by it.
    """
    mean, whiten = silent.mean(axis=0), _whitening(silent)
    y = (silent - mean) @ whiten
    before, after = (shift @ whiten for shift in shifts)

    def linear(x: Array) -> Array:
        return np.asarray((x - mean) @ whiten @ (after - before))

    def radial(x: Array) -> Array:
        y = (x - mean) @ whiten
        return log_g(y - after) - log_g(y - before)

    def by_coordinate(x: Array) -> Array:
        total = np.zeros(len(x))
        for j, log_density in densities:
            total += log_density(x[:, j] - shifts[1][j]) - log_density(x[:, j] - shifts[0][j])
        return total

    log_g = _log_spherical(y)
    moved = np.abs(shifts[1] - shifts[0])
    there = np.flatnonzero((moved > 1e-3 * moved.max(initial=0.0)) & (silent.std(axis=0) > 0))
    densities = [(j, _log_density(silent[:, j])) for j in there]
    yield from (linear, radial, by_coordinate)


def score_of_edges(silent: Array, shifts: tuple[Array, Array]) -> Score:
    """How many coordinates are where the second of two shifts puts some, and the first none.

    Noise that is cut off puts many there, Gaussian noise few. Fewer those where the first puts some
    alone.
    """
    margin = MARGIN * silent.std(axis=0)
    low, high = silent.min(axis=0) - margin, silent.max(axis=0) + margin

    def outside(x: Array) -> Array:
        first, second = (((x < low + s) | (x > high + s)).sum(axis=1) for s in shifts)
        return np.asarray(first - second, dtype=float)

    return outside


def _log_spherical(y: Array) -> Score:
    """The logarithm of the density g(|y|), which that of the norm gives: f(r) = g(r) r^(d - 1)."""
    d = y.shape[1]
    log_density = _log_density(np.linalg.norm(y, axis=1))

    def log_g(y: Array) -> Array:
        r = np.linalg.norm(y, axis=1)
        return log_density(r) - (d - 1) * np.log(np.maximum(r, 1e-12))

    return log_g


def _log_density(values: Array) -> Score:
    """By a smoothed histogram, with atoms left sharp, and never -inf."""
    centre, width = float(np.median(values)), float(values.std())
    width = max(width or 1.0, RESOLVED * abs(centre))
    edges = centre + np.linspace(-WIDEST, WIDEST, BINS + 1) * width
    counts = np.histogram(values, edges)[0].astype(float)
    smooth = gaussian_filter1d(counts, SMOOTH, mode="nearest")
    is_atom = counts > 3 * smooth / (SMOOTH * 1.5) + 30
    log = np.log(np.where(is_atom, counts, smooth) + 0.5)
    first, step = edges[0], edges[1] - edges[0]

    def log_density(x: Array) -> Array:
        i = np.clip((x - first) / step, 0, BINS - 1).astype(int)
        return np.asarray(log[i])

    return log_density


def _draws(family: NoiseFamily, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    return rng.standard_normal(shape) if family == "gaussian" else rng.laplace(size=shape)


def _standardised(sample: Array) -> Array:
    """By coordinate, without those that have no noise."""
    centred = sample - sample.mean(axis=0)
    std = centred.std(axis=0)
    there = std**2 > SILENT * np.square(std).max(initial=0.0)
    return centred[:, there] / std[there]


def _whitened(sample: Array, family: NoiseFamily) -> Array:
    if family == "laplace":
        return _standardised(sample)
    return (sample - sample.mean(axis=0)) @ _whitening(sample)


def _whitening(sample: Array) -> Array:
    """[d, rank], which makes the sample's covariance the identity."""
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(sample, rowvar=False)))
    there = values > SILENT * values.max(initial=0.0)
    return np.asarray(vectors[:, there] / np.sqrt(values[there]))


def _statistics(y: Array) -> Iterator[tuple[str, Array]]:
    yield "the norm", np.square(y).sum(axis=1)
    yield "the largest coordinate", np.abs(y).max(axis=1)
    yield "the sum of sizes", np.abs(y).sum(axis=1)
    yield "the sum", y.sum(axis=1)


def _distances(ordered: Array, family: NoiseFamily) -> Array:
    """Kolmogorov's distance of each sorted column [n, d] from the law with variance 1."""
    n = len(ordered)
    law = ndtr(ordered) if family == "gaussian" else laplace_cdf(ordered * np.sqrt(2))
    ranks = np.arange(n + 1)[:, None] / n
    return np.asarray(np.maximum(ranks[1:] - law, law - ranks[:-1]).max(axis=0))


def _distance_of_two(one: Array, other: Array) -> Array:
    """Kolmogorov's distance of two samples."""
    every = np.concatenate([one, other])
    shares = (np.searchsorted(np.sort(s), every, side="right") / len(s) for s in (one, other))
    return np.abs(np.subtract(*shares)).max()


def _dkw(distance: Array, n: float) -> Array:
    return np.minimum(1.0, 2 * np.exp(-2 * n * np.square(distance)))
