"""What an epsilon means for reconstruction: the most that any attacker can succeed.

An attacker knows all but one record Z, drawn from a prior, and sees the output o of a mechanism. It
succeeds where its guess R(o) is near enough to Z. Let P_z be the law of o if the record is z and Q
one fixed law, the same for all z: that of the data without the record where a claim is of adding
or removing one, that with some other fixed record where it is of replacing one. Either way P_z
and Q come from data sets that are adjacent as the claim means it. With kappa the success of the
best guess that sees nothing, Q(R is near z) averaged over z is kappa at most, since R(o), o ~ Q,
is independent of Z. So the success is the power of a test between P and Q at level kappa, and

    gamma(kappa) = sup{P(E): Q(E) <= kappa} = 1 - f(kappa)

for the trade-off function f of the pair, which is concave in kappa: averaging over z is allowed.
kappa must be of the prior given all that the attacker knows beforehand, such as the label.

Sources: Balle, Cherubin and Hayes 2022, arXiv:2201.04845; Hayes, Mahloujifar and Balle 2023,
arXiv:2302.07225; Kaissis et al. 2023, arXiv:2307.03928. The derivation above is ours.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import trapezoid
from scipy.special import ndtr, ndtri

from .families import GAUSSIAN
from .privacy_loss import Array
from .releases import Mechanism, true_positive_rate

_NORMAL = np.linspace(-9, 9, 721)  # normal quantiles of the rates that are integrated over


def under_epsilon(kappa: ArrayLike, epsilon: float, delta: float) -> Array:
    """gamma under (epsilon, delta)-DP: min(e^eps kappa + delta, 1 - e^-eps (1 - delta - kappa)).

    With delta = 0 that of pure epsilon-DP, which randomised response attains.
    """
    blind = np.asarray(kappa, float)
    with np.errstate(over="ignore"):
        odds = np.exp(min(epsilon, 700.0)) * blind + delta
    return np.clip(np.minimum(odds, 1 - np.exp(-epsilon) * (1 - delta - blind)), 0.0, 1.0)


def under_mu(kappa: ArrayLike, mu: float) -> Array:
    """gamma under mu-GDP: Phi(mu + Phi^-1(kappa))."""
    return np.asarray(1 - GAUSSIAN.false_negative_rate(mu, np.asarray(kappa, float)))


def accounted(kappa: ArrayLike, mechanism: Mechanism) -> Array:
    """An upper bound on gamma of what was released, from its privacy loss distribution.

    Q is the law without the record, whatever the adjacency of a claim.
    """
    return true_positive_rate(mechanism, kappa)


def least_epsilon(success: float, kappa: float, delta: float) -> float:
    """The least epsilon whose gamma at a kappa above 0 reaches a success; 0 where any does."""
    with np.errstate(divide="ignore"):
        odds = np.log(max(success - delta, 0.0)) - np.log(kappa)
        missed = np.log(max(1 - delta - kappa, 0.0)) - np.log(1 - success)
    return max(0.0, float(odds), float(missed))


def least_mu(success: float, kappa: float) -> float:
    """The least mu whose gamma at kappa reaches a success; 0 where any does."""
    return max(0.0, float(ndtri(success) - ndtri(kappa)))


def matching_success(power: Callable[[Array], Array], candidates: int) -> float:
    """How often the record scores highest among candidates that each move a view of its own.

    Say in orthogonal directions, or in runs apart. If u is the rate at which scores without the
    record exceed the record's, that beats all others with probability (1 - u)^(M - 1), and u is at
    most v with probability power(v). Integrated by parts. gamma(1 / M) is at least as large.

    Args:
        power: rates of false positives [n] to rates of true ones, of the score.
        candidates: M >= 2.
    """
    rates = ndtr(_NORMAL)
    beaten = (candidates - 1) * (1 - rates) ** (candidates - 2) * power(rates)
    return float(trapezoid(beaten * np.exp(-(_NORMAL**2) / 2), _NORMAL) / np.sqrt(2 * np.pi))
