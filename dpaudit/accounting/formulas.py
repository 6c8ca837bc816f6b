"""What published tools compute for some noise, to stand beside the exact value.

Each formula is that of its paper, with the tool's defaults. None is a verdict about the tool: it
answers for what it assumes, and ``Formula.words`` says what that is.

Sources: Mironov, Talwar and Zhang 2019, arXiv:1908.10530 (Renyi divergence of sampled Gaussian
noise); Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Proposition 12 (Renyi to epsilon); Gopi,
Lee and Wutschitz 2021, arXiv:2106.02848 (PRV accountant); Dwork and Roth 2014, Theorem A.1.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil, inf, log, sqrt
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import logsumexp

from dpaudit.errors import ConfigError

from .privacy_loss import Array
from .releases import Mechanism, Release, epsilon

Tool = Literal["flower", "nvflare", "opacus", "p2pfl", "tf-privacy"]

TENTHS = [1 + k / 10 for k in range(1, 100)]
OPACUS_ORDERS = (*TENTHS, *map(float, range(12, 64)))
DP_ACCOUNTING_ORDERS = (*TENTHS, *map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0)
PRV_ERROR = 0.01  # of epsilon, that Opacus adds
PRV_SHARE = 1e-3  # of delta, that it takes off
LEAST_NOISE = 0.02  # below which the integral of a divergence has too many points


class Formula(NamedTuple):
    """One figure of a tool, and what it is of."""

    epsilon: float
    words: str  # after "by"


def claimed(tool: Tool, mechanism: Mechanism, delta: float) -> list[Formula]:
    """What the formulas of a tool give for releases, whatever adjacency is asked for.

    Raises:
        ConfigError: the tool has no formula for that noise, that delta, or several releases.
    """
    family: str = "laplace" if tool == "nvflare" else "gaussian"
    families = {"gaussian", "laplace"} if tool == "p2pfl" else {family}
    if strange := {release.family for release in mechanism} - families:
        said = f"{tool} has no formula for {strange.pop().capitalize()} noise"
        raise ConfigError("DPA014", f"--like: {said}")
    if delta == 0 and "gaussian" in {release.family for release in mechanism}:
        raise ConfigError("DPA014", "--like: the formula has no value at delta 0")
    if tool in ("p2pfl", "flower", "tf-privacy") and len(mechanism) > 1:
        raise ConfigError("DPA014", f"--like: {tool} has a formula for one kind of release alone")
    return list(_FORMULAS[tool](mechanism, delta))


def renyi_epsilon(mechanism: Mechanism, delta: float, orders: Sequence[float]) -> float:
    """Epsilon at delta > 0 of Poisson-sampled Gaussian releases, by Renyi divergences.

    The smallest, over the orders a, of R(a) + ln(1 - 1/a) - ln(delta a) / (a - 1).
    """
    a = np.array(orders)
    total = sum(
        release.count * sampled_gaussian_divergence(release, orders) for release in mechanism
    )
    return max(0.0, float(np.min(total + np.log1p(-1 / a) - np.log(delta * a) / (a - 1))))


def sampled_gaussian_divergence(release: Release, orders: Sequence[float]) -> Array:
    """Renyi divergence of (1 - q) N(0, s^2) + q N(1, s^2) from N(0, s^2), at each order above 1.

    ln E r(z)^a / (a - 1) over z ~ N(0, s^2), r = 1 - q + q exp((2z - 1) / 2s^2), by the trapezoidal
    rule. Its error falls exponentially with the step over pi s^2, where ln r has its nearest pole.
    """
    s, q = release.noise_multiplier, release.sampling_rate
    a = np.array(orders)
    if s < LEAST_NOISE:
        return np.full(len(a), inf)
    if q == 1:
        return np.asarray(a / (2 * s**2))
    step = min(s / 8, s**2 / 2)

    def at(order: float) -> float:
        z = np.arange(-12 * s, order + 12 * s, step)
        density = -(z**2) / (2 * s**2) - log(s * sqrt(2 * np.pi)) + log(step)
        ratio = np.logaddexp(np.log1p(-q), log(q) + (2 * z - 1) / (2 * s**2))
        return float(logsumexp(density + order * ratio))

    return np.array([max(at(order), 0.0) for order in a]) / (a - 1)


def _opacus(mechanism: Mechanism, delta: float) -> Iterator[Formula]:
    drawn = [_poisson(release) for release in mechanism]
    assumes = "" if drawn == list(mechanism) else ", as if batches were Poisson samples"
    yield Formula(renyi_epsilon(drawn, delta, OPACUS_ORDERS), f"its RDP accountant{assumes}")
    exact = epsilon(drawn, (1 - PRV_SHARE) * delta).high
    yield Formula(exact + PRV_ERROR, f"its PRV accountant{assumes}")


def _tf_privacy(mechanism: Mechanism, delta: float) -> Iterator[Formula]:
    """Both figures of ``compute_dp_sgd_privacy_statement``, without microbatches and with."""
    (release,) = mechanism
    rate, count = release.sampling_rate, release.count
    once = Release(
        family="gaussian",
        noise_multiplier=release.noise_multiplier,
        count=ceil(round(count * rate, 9)),
    )
    for divisor, batches in ((1, "without microbatches"), (2, "with microbatches, its default")):
        kinds = (once, "each example once per epoch"), (_poisson(release), "Poisson sampling")
        for one, sampling in kinds:
            noise = one.noise_multiplier / divisor
            used = one.model_copy(update={"noise_multiplier": noise})
            found = renyi_epsilon([used], delta, DP_ACCOUNTING_ORDERS)
            yield Formula(found, f"its statement for {sampling}, {batches}")


def _nvflare(mechanism: Mechanism, delta: float) -> Iterator[Formula]:
    """What ``SVTPrivacy`` of NVFlare 2.9 (``svt_privacy.py``) adds to its ledger for its releases.

    A number that is clipped to gamma gets Laplace noise of 2 gamma / noise_var, and the ledger adds
    noise_var for each; its selection costs ``epsilon`` besides, which is no noise of a number.
    """
    total = sum(2 * release.count * _over(release.noise_multiplier) for release in mechanism)
    yield Formula(total, "its ledger at delta 0, without the epsilon of its selections")


def _one_call(mechanism: Mechanism, delta: float) -> Iterator[Formula]:
    """p2pfl 0.4 (``dp_strategy.py``) and Flower 1.x (``localdp_mod``), which do not compose.

    Gaussian noise of C sqrt(2 ln(1.25 / delta)) / epsilon; p2pfl's Laplace noise of C / epsilon.
    """
    (release,) = mechanism
    found = _over(release.noise_multiplier)
    if release.family == "gaussian":
        found *= sqrt(2 * log(1.25 / delta))
    yield Formula(found, "its formula for one call")


_FORMULAS: dict[Tool, Callable[[Mechanism, float], Iterator[Formula]]] = {
    "flower": _one_call,
    "nvflare": _nvflare,
    "opacus": _opacus,
    "p2pfl": _one_call,
    "tf-privacy": _tf_privacy,
}


def _poisson(release: Release) -> Release:
    sampled = release.sampling_rate < 1
    return release.model_copy(update={"sampling": "poisson" if sampled else "none"})


def _over(noise: float) -> float:
    return 1 / noise if noise else inf
