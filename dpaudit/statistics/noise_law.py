"""Whether noise has a law that is given up to location and scale, and which score tells a shift.

``law_p_value`` compares the law of vectors with that of independent Gaussian or Laplace numbers.
Every p-value is conservative: distances of empirical distributions are bounded by the inequality of
Dvoretzky, Kiefer, Wolfowitz and Massart (1990), for two samples by that of Wei and Dudley (2012),
and taking mean and covariance from the sample itself only makes distances smaller.

A joint law may differ where no coordinate does: of the shortest of several Gaussian vectors every
coordinate is nearly Gaussian, and the norm is not that of a Gaussian vector. So norms and the sum
are tested beside the coordinates.
"""

from collections.abc import Callable, Iterator

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.special import ndtr

from dpaudit.accounting.privacy_loss import Array, NoiseFamily, laplace_cdf

SILENT = 1e-9  # of the largest variance: a direction with less has no noise
POOLED = 400_000  # numbers of all coordinates together
BINS = 400  # of a density
WIDEST = 6.0  # standard deviations that a density is estimated over
SMOOTH = 1.5  # bins

Score = Callable[[Array], Array]  # of vectors [n, d], a number each


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
    """Scores that tell the second of two ``shifts`` [d] of the law of ``silent`` [n, d].

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
