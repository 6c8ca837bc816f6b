"""How scores of two worlds are distributed, if their density ratio is exponential in the score.

Of a log likelihood ratio s the densities have the ratio e^s; of a linear map of it, as the linear
discriminant of Gaussian worlds, e^(a + b s). Then the scores of either world say how those of the
other are distributed: every score of the two together has probability mass in both, and a tail that
one world seldom reaches is known from the other. That is far more than each world's own counts
say, and what a threshold is chosen by. No bound rests on it.

Source: Qin and Zhang 1997, Biometrika 84(3), for the maximum likelihood estimate.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from dpaudit.accounting.privacy_loss import Array

MOST_STEPS = 100  # iterations of Newton's method, which needs about 10
PRECISION = 1e-9  # size of the last step, in standard deviations of the scores
RIDGE = 1e-3  # keeps the slope finite if no scores of the two worlds overlap


class FittedWorlds(NamedTuple):
    """Distribution functions of both worlds at the scores of both."""

    ordered: Array  # [m], scores of both worlds
    below0: Array  # [m + 1], probability in H0 of being among the first i of these
    below1: Array  # [m + 1], likewise in H1

    def rates(self, thresholds: Array, above: bool) -> tuple[Array, Array]:
        """False positive and negative rates of calling scores on that side positive."""
        i = np.searchsorted(self.ordered, thresholds, side="right" if above else "left")
        if above:
            return 1 - self.below0[i], self.below1[i]
        return self.below0[i], 1 - self.below1[i]


def fit(scores0: Array, scores1: Array) -> FittedWorlds | None:
    """The maximum likelihood estimate, by logistic regression of the world on the score.

    None: a score is infinite, or all are equal.
    """
    scores = np.concatenate([scores0, scores1])
    order = np.argsort(scores, kind="stable")
    with np.errstate(over="ignore"):  # then it is infinite
        scale = np.std(scores) if np.isfinite(scores).all() else 0.0
    if not 0 < scale < np.inf:
        return None
    is_present = (order >= len(scores0)).astype(float)
    ordered = scores[order]
    present = expit(_log_odds((ordered - ordered.mean()) / scale, is_present))
    below = [np.concatenate([[0.0], np.cumsum(mass)]) for mass in (1 - present, present)]
    return FittedWorlds(ordered, *(np.minimum(cdf / cdf[-1], 1.0) for cdf in below))


def _log_odds(scores: Array, is_present: Array) -> Array:
    """The fitted a + b s of every score, by Newton's method with halved steps."""
    features = np.stack([np.ones_like(scores), scores])

    def loss(at: Array) -> float:
        odds = at @ features
        return float(np.logaddexp(0, odds).sum() - odds @ is_present + RIDGE * at @ at / 2)

    found = np.zeros(2)
    for _ in range(MOST_STEPS):
        chance = expit(found @ features)
        gradient = features @ (chance - is_present) + RIDGE * found
        curvature = (features * chance * (1 - chance)) @ features.T + RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        before = loss(found)
        while loss(found - step) > before and np.abs(step).max() > PRECISION:
            step /= 2
        found = found - step
        if np.abs(step).max() <= PRECISION:
            break
    return np.asarray(found @ features)
