"""How far an estimate of information may be off, and what chance alone would make of it."""

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from .neighbours import Counts, Floats


def permutation_p_value(observed: float, shuffled: Floats) -> float:
    """(1 + number of shuffled values that reach the observed one) / (1 + number of shuffles).

    At most u with probability at most u where nothing leaks (Phipson and Smyth 2010); NaN
    without shuffles.
    """
    if not len(shuffled):
        return float("nan")
    return float(1 + (shuffled >= observed).sum()) / (1 + len(shuffled))


class Intervals(NamedTuple):
    """One interval for each round, all of which hold together with the stated confidence."""

    low: Floats  # bits, [n_rounds], as all fields
    high: Floats
    standard_error: Floats
    drift: Floats


def intervals(bits: Floats, halves: Floats, dims: Counts, confidence: float) -> Intervals:
    """Simultaneous intervals for the information of each round, from estimates on halves.

    Two halves of the trials are independent, so half the squared difference of their estimates
    is unbiased for the variance of an estimate at n / 2, and a quarter of it, by the 1/n law, at n.
    The mean over S random splits of the same trials counts as S / 2 degrees of freedom, which is
    conservative (its spread over fresh samples is that of about S). A bootstrap would not do: it
    repeats samples, and a repeated sample is its own nearest neighbour.

    The bias is taken to fall like n^-a with a = min(1, 2 / dims), the rate for densities with two
    derivatives, so the drift D from full size to half extrapolates to ``bits - D / (2^a - 1)``.
    The interval reaches from the lower of the estimate and its extrapolation to the higher, and
    beyond by Student's quantile at (1 - confidence) / (2 n_rounds) (Bonferroni). Where all hold,
    the largest true information lies between the largest lower and the largest upper end.

    Args:
        bits: [n_rounds].
        halves: [n_rounds, S, 2], the estimates on the two halves of each split.
        dims: [n_rounds], dimension of the private variable and the view together.
        confidence: of all intervals together.

    Source: Holmes and Nemenman 2019 for the variance from parts of the sample, arXiv:1903.09280;
    Berrett, Samworth and Yuan 2019 for the rate, that of nearest-neighbour entropies,
    arXiv:1606.00304.
    """
    n_rounds, n_splits, _ = halves.shape
    if n_splits == 0:
        return Intervals(*np.full((4, n_rounds), np.nan))
    standard_error = np.sqrt(((halves[..., 0] - halves[..., 1]) ** 2).mean(axis=1) / 4)
    drift = halves.mean(axis=(1, 2)) - bits
    extrapolated = bits - drift / (2 ** np.minimum(1, 2 / dims) - 1)
    reach = -stdtrit(n_splits / 2, (1 - confidence) / (2 * n_rounds)) * standard_error
    low, high = np.minimum(bits, extrapolated) - reach, np.maximum(bits, extrapolated) + reach
    return Intervals(low, high, standard_error, drift)
