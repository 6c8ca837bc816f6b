"""The best that simple regressions make of a view: estimates of a private quantity, held out."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 999  # resamples of the held-out trials, for the interval


class BestEstimate(NamedTuple):
    """The private value of trials that no regression was fitted to, and its estimate."""

    private: Floats  # [n]
    estimate: Floats  # [n]
    method: str
    explained: float  # share of the variance, 1 - MSE / variance; below 0: worse than the mean
    low: float  # its 95% interval over held-out trials
    high: float


def best_estimate(private: Floats, view: Floats, rng: np.random.Generator) -> BestEstimate:
    """A linear and a nearest-neighbour regression; the better of the two is tried on new trials.

    A third of the trials fits them, a third chooses, and the last third is what is returned, so
    that neither fit nor choice flatters the result.

    Args:
        private: [n], n >= 12 trials.
        view: [n, dims], no constant column.
    """
    fit, choose, test = np.array_split(rng.permutation(len(private)), 3)
    scaled = (view - view[fit].mean(axis=0)) / np.where(
        view[fit].std(axis=0) > 0, view[fit].std(axis=0), 1
    )
    with_ones = np.hstack([scaled[fit], np.ones((len(fit), 1))])
    weights, *_ = np.linalg.lstsq(with_ones, private[fit], rcond=None)
    guesses = {
        "linear regression": scaled @ weights[:-1] + weights[-1],
        "nearest neighbours": _nearest(scaled[fit], private[fit], scaled),
    }
    errors = {name: ((g - private)[choose] ** 2).mean() for name, g in guesses.items()}
    method = min(errors, key=lambda name: errors[name])
    truth, estimate = private[test], guesses[method][test]
    again = rng.integers(len(test), size=(RESAMPLES, len(test)))
    low, high = np.quantile(_explained(truth[again], estimate[again]), [0.025, 0.975])
    explained = _explained(truth, estimate)
    return BestEstimate(truth, estimate, method, float(explained), float(low), float(high))


def _nearest(view: Floats, private: Floats, everywhere: Floats) -> Floats:
    from sklearn.neighbors import KNeighborsRegressor

    k = max(1, round(len(view) ** 0.5))
    estimate: Floats = KNeighborsRegressor(k).fit(view, private).predict(everywhere)
    return estimate


def _explained(private: Floats, estimate: Floats) -> Floats:
    """[...] of [..., n]; 0 where the private values do not differ."""
    error = ((private - estimate) ** 2).mean(axis=-1)
    variance = private.var(axis=-1)
    explained: Floats = 1 - np.divide(error, variance, out=np.ones_like(error), where=variance > 0)
    return explained
