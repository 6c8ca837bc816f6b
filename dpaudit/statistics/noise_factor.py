"""A declared mechanism, with all of its noise scaled by one factor, as a family to bound.

Error rates that a mechanism of the declared shape could only allow with less noise say how much
less at least: a bound on what is really released that uses the whole of the declaration (sampling,
composition, families) but the amount of noise.
"""

from typing import NamedTuple

import numpy as np

from dpaudit.accounting.releases import (
    Mechanism,
    RecordAdjacency,
    Release,
    epsilon,
    false_negative_rate,
)

from .bounds import clopper_pearson, smallest_alpha

LEAST, MOST = 2.0**-6, 2.0**10  # factors considered
PRECISION = 1e-3  # relative


class NoiseFactorBound(NamedTuple):
    """The noise is below ``noise_factor`` times the declared one, and epsilon at least this."""

    noise_factor: float  # below 1: the declaration is refuted; infinite: nothing is
    epsilon: float


def noise_factor_bound(
    fp: int,
    fn: int,
    n0: int,
    n1: int,
    delta: float,
    alpha: float,
    mechanism: Mechanism,
    adjacency: RecordAdjacency = "add-remove",
) -> NoiseFactorBound:
    """Bound the noise of a mechanism of the declared shape, and its epsilon at delta.

    The counts are as in ``bounds``, for a threshold fixed before they were seen. Wrong with
    probability alpha at most. The epsilon is proven for mechanisms of this shape alone.
    """
    fpr, fnr = clopper_pearson(fp, n0, alpha / 2), clopper_pearson(fn, n1, alpha / 2)

    def refuted(factor: float) -> bool:
        return bool(false_negative_rate(with_noise_times(mechanism, factor), fpr, adjacency) > fnr)

    low, high = LEAST, MOST
    if not refuted(high):
        return NoiseFactorBound(np.inf, 0.0)
    while high > (1 + PRECISION) * low:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return NoiseFactorBound(high, epsilon(with_noise_times(mechanism, high), delta, adjacency).low)


def noise_p_value(
    fp: int,
    fn: int,
    n0: int,
    n1: int,
    mechanism: Mechanism,
    adjacency: RecordAdjacency = "add-remove",
) -> float:
    """The smallest alpha at which the counts refute that the declared noise is drawn."""

    def refuted(alpha: float) -> bool:
        fpr, fnr = clopper_pearson(fp, n0, alpha / 2), clopper_pearson(fn, n1, alpha / 2)
        return bool(false_negative_rate(mechanism, fpr, adjacency) > fnr)

    return smallest_alpha(refuted)


def with_noise_times(mechanism: Mechanism, factor: float) -> list[Release]:
    """The same releases with ``factor`` times the noise."""
    return [
        r.model_copy(update={"noise_multiplier": factor * r.noise_multiplier}) for r in mechanism
    ]
