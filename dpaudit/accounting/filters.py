"""Privacy filters: what releases may add up to if their noise is chosen from earlier ones.

``releases`` composes noise that is fixed before the first release. If the noise or the sampling
rate of a release depends on what was released before, the loss of the whole has no fixed law, and
that sum is no bound. Two sums are one, if they are stopped before they exceed what was fixed:

- of mu^2, for Gaussian noise that is not sampled: the whole is mu-GDP, and mu gives epsilon exactly
  (Smith and Thakurta 2022, arXiv:2210.17520). In short: fill up to the budget with a last release.
  The loss is then mu^2 / 2 + S with S = sum mu_i z_i, where mu_i may depend on earlier z. Because
  E exp(t mu_i z_i) = exp(t^2 mu_i^2 / 2) whatever came before, E exp(t S) = exp(t^2 mu^2 / 2) for
  all t, so S is normal, as in one release.
- of the Renyi divergences of one order that is fixed (Feldman and Zrnic 2021, arXiv:2008.11193,
  Theorem 3.1): exp((a - 1) (loss - divergence so far)) is a supermartingale under the first world.

For any noise and delta = 0 the sum of epsilons is one (Rogers et al. 2016, arXiv:1605.08294), which
``releases`` gives. Whitehouse et al. 2023, arXiv:2203.05481, bound the whole by fewer premises.
"""

from math import inf, log, log1p
from typing import NamedTuple

import numpy as np

from dpaudit.release import Release

from .privacy_loss import Array, Pairs, above, reach
from .releases import RecordAdjacency, worst_pairs

ORDERS = (
    1.25,
    1.5,
    2,
    2.5,
    3,
    4,
    5,
    6,
    7,
    8,
    10,
    12,
    14,
    16,
    20,
    24,
    28,
    32,
    40,
    48,
    64,
    96,
    128,
    256,
    512,
)
SIZES = np.geomspace(1e-9, 1, 6_000)  # of losses, as shares of the largest
RESERVED = 1e-3  # of delta, for losses that count as infinite


class RenyiCost(NamedTuple):
    """What one release adds: a divergence, and the probability of a loss that it leaves out."""

    divergence: float
    left_out: float


def gaussian_cost(release: Release, adjacency: RecordAdjacency) -> float:
    """The mu^2 of Gaussian releases; infinite for others, and where batches are drawn by chance."""
    if release.family != "gaussian" or release.sampling_rate < 1 or not release.noise_multiplier:
        return inf
    (pairs,) = worst_pairs(release, adjacency)
    return release.count * float(pairs.scale[0, 0]) ** -2


def renyi_cost(release: Release, adjacency: RecordAdjacency, order: float) -> RenyiCost:
    """At least the divergence of any neighbours, at an order above 1, of all ``count`` releases."""
    if release.noise_multiplier == 0:
        return RenyiCost(inf, 0.0)
    costs = [_divergence(pairs, order) for pairs in worst_pairs(release, adjacency)]
    return RenyiCost(*(release.count * max(part) for part in zip(*costs, strict=True)))


def _divergence(pairs: Pairs, order: float) -> RenyiCost:
    """ln E exp((a - 1) loss) / (a - 1) under P, from a distribution that dominates the pair."""
    if pairs.family == "gaussian" and pairs.rate[0, 0] == 1:
        return RenyiCost(order / (2 * float(pairs.scale[0, 0]) ** 2), 0.0)
    low, high = reach(pairs)
    losses: Array = np.unique(
        np.clip(np.concatenate([-SIZES, [0.0], SIZES]) * max(-low, high), low, high)
    )
    masses, infinite = above(pairs, losses)
    exponents = (order - 1) * losses
    top = exponents.max()
    moment = float(masses[0] @ np.exp(exponents - top))
    return RenyiCost(max((log(moment) + float(top)) / (order - 1), 0.0), float(infinite[0]))


def renyi_cost_of_epsilon(epsilon: float, order: float) -> float:
    """The divergence of any release that is epsilon-DP: at most that of randomised response.

    Source: Kairouz, Oh and Viswanath 2015, arXiv:1311.0776, Theorem 3.3.
    """
    lie = -float(np.logaddexp(0.0, epsilon))  # ln of its probability
    truth = lie + epsilon
    a = order
    if epsilon == 0:
        return 0.0
    moment = np.logaddexp(a * truth + (1 - a) * lie, a * lie + (1 - a) * truth)
    return max(0.0, float(moment) / (a - 1))


def renyi_epsilon(divergence: float, delta: float, order: float) -> float:
    """Epsilon at delta > 0: Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Prop. 12."""
    return max(0.0, divergence + _loss_of_order(delta, order))


def renyi_budget(epsilon: float, delta: float, order: float) -> float:
    """The largest divergence of an order that is (epsilon, delta)-DP; below 0 if none is."""
    return epsilon - _loss_of_order(delta, order)


def best_order(epsilon: float, delta: float, release: Release, adjacency: RecordAdjacency) -> float:
    """The order at which a budget holds the most releases of one kind."""

    def most(order: float) -> float:
        cost = renyi_cost(release, adjacency, order).divergence
        return renyi_budget(epsilon, delta, order) / max(cost, 1e-300)

    return float(max(ORDERS, key=most))


def _loss_of_order(delta: float, order: float) -> float:
    return log1p(-1 / order) - log(order * delta) / (order - 1)
