"""Losses of one release, and of several together: by integrals over densities, beside the code."""

from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import laplace, norm

from dpaudit.verify import accountant
from dpaudit.verify.accountant import (
    LossPair,
    LossSum,
    _between,
    _loss,
    _window,
    composed,
    counted,
    epsilon,
    epsilon_of,
    gaussian_epsilon,
    outcomes,
    scaled,
    total_mu,
    worst_pair,
)

LAWS = {"gaussian": norm, "laplace": laplace}
KINDS = ("remove", "add", "replace")
PAIRS = [
    LossPair(family, scale, rate, kind)
    for family, scale in (("gaussian", 0.8), ("gaussian", 3.0), ("laplace", 0.7))
    for rate in (0.3, 1.0)
    for kind in KINDS
]


def worlds(pair: LossPair, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The densities of both, at x."""
    absent, there, opposite = (LAWS[pair.family].pdf(x, at, pair.scale) for at in (0, 1, -1))
    p, q = ((1 - pair.rate) * absent + pair.rate * m for m in (there, opposite))
    return {"remove": (p, absent), "add": (absent, p), "replace": (p, q)}[pair.kind]


def hockey_stick(pair: LossPair, e: float) -> float:
    x = np.linspace(-40, 41, 40_501)
    p, q = worlds(pair, x)
    return float(np.maximum(0.0, p - exp(e) * q).sum() * 2e-3)


def delta_of(losses: np.ndarray, masses: np.ndarray, infinite: float, e: float) -> float:
    return infinite + float((masses * np.maximum(0.0, -np.expm1(e - losses))).sum())


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_losses_are_those_of_densities(pair: LossPair) -> None:
    x = np.array([-2.0, -0.5, 0.0, 0.3, 1.0, 1.7])
    for side in (1, -1):
        absent, there, other = (LAWS[pair.family].pdf(x, m, pair.scale) for m in (0, side, -1))
        p, q = ((1 - pair.rate) * absent + pair.rate * m for m in (there, other))
        expected = np.log(p / (q if pair.kind == "replace" else absent))
        assert _loss(pair, x, side) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
@pytest.mark.parametrize("shift", [0, 1, -1])
def test_masses_between_places_are_those_of_the_law(family: str, shift: int) -> None:
    edges = np.array([-inf, -30.0, -2.0, 0.1, 0.9, 2.5, 30.0, inf])
    found = _between(LossPair(family, 1.3, 1.0, "remove"), shift, edges)
    law = LAWS[family](shift, 1.3)
    assert found == pytest.approx(np.diff(law.cdf(edges)), rel=1e-9, abs=1e-15)
    assert found[-1] == pytest.approx(law.sf(30.0), rel=1e-9)  # far tails are exact
    assert found[0] == pytest.approx(law.cdf(-30.0), rel=1e-9)
    assert found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("places", [201, 4001])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_outcomes_dominate_a_release(pair: LossPair, places: int) -> None:
    """All of P and of Q is there, and delta at each epsilon is as large or a little larger."""
    losses, masses, infinite = outcomes(pair, places)
    assert (np.diff(losses) > -1e-12).all()
    assert (masses >= 0).all()
    assert masses.sum() + infinite == pytest.approx(1.0)
    assert masses @ np.exp(-losses) == pytest.approx(1.0, abs=1e-9)
    for e in (-0.5, 0.0, 0.2, 0.8):
        exact = hockey_stick(pair, e)
        found = delta_of(losses, masses, infinite, e)
        assert exact - 4e-6 <= found <= exact + 60 / places**2 + 4e-6


def test_a_switch_has_gains_of_one_world_and_falls_of_the_other() -> None:
    pair = LossPair("gaussian", 1.0, 0.3, "switch")
    losses, masses, infinite = outcomes(pair, 2001)
    assert masses.sum() + infinite == pytest.approx(1.0)
    assert (np.diff(losses) > 0).all()
    gains, falls = (outcomes(pair._replace(kind=kind), 2001) for kind in ("remove", "add"))
    for e in (0.1, 0.7):
        assert delta_of(losses, masses, infinite, e) == pytest.approx(delta_of(*gains, e))
    below = losses < 0
    assert masses[below].sum() == pytest.approx(falls[1][falls[0] < 0].sum())
    assert losses[below].min() == falls[0].min()
    assert (losses == 0).sum() == 1


def release(**of: Any) -> dict[str, Any]:
    plain = {"family": "gaussian", "noise_multiplier": 2.0, "sampling": "none"}
    return plain | {"sampling_rate": 1.0, "clipped": "records", "count": 1} | of


POISSON = {"sampling": "poisson", "sampling_rate": 0.5}
FIXED = {"sampling": "fixed", "sampling_rate": 0.5}
WHOLE = {"clipped": "whole"}


@pytest.mark.parametrize(
    ("of", "adjacency", "side", "scale", "kind"),
    [
        ({}, "add-remove", "add", 2.0, "remove"),
        ({}, "replace-one", "add", 1.0, "remove"),
        (WHOLE, "replace-one", "add", 2.0, "remove"),
        (POISSON, "add-remove", "add", 2.0, "add"),
        (POISSON, "add-remove", "remove", 2.0, "remove"),
        (POISSON, "replace-one", "add", 2.0, "replace"),
        (POISSON, "replace-one", "least", 2.0, "replace"),
        (POISSON | WHOLE, "replace-one", "add", 2.0, "switch"),
        (POISSON | WHOLE, "replace-one", "least", 2.0, "remove"),
        (POISSON | WHOLE, "add-remove", "add", 2.0, "add"),
        (FIXED, "replace-one", "add", 1.0, "switch"),
        (FIXED, "add-remove", "add", 1.0, "add"),
        (FIXED | WHOLE, "add-remove", "least", 2.0, "remove"),
        ({"sampling": "fixed"}, "add-remove", "add", 2.0, "remove"),
    ],
)
def test_the_worst_worlds_of_a_release(of: Any, adjacency: str, side: str, scale, kind) -> None:
    one = release(**of)
    assert worst_pair(one, adjacency, side) == ("gaussian", scale, one["sampling_rate"], kind)


def test_a_rate_is_a_probability() -> None:
    for rate in (-0.1, 1.1):
        with pytest.raises(ValueError, match="is no probability"):
            worst_pair(release(sampling_rate=rate), "add-remove", "add")
    assert worst_pair(release(sampling_rate=0.0), "add-remove", "add").rate == 0.0


def test_releases_are_counted_and_scaled() -> None:
    some = [release(), release(count=3), release(noise_multiplier=4.0, **POISSON)]
    pairs = counted(some, "add-remove", "add")
    one, other = LossPair("gaussian", 2.0, 1.0, "remove"), LossPair("gaussian", 4.0, 0.5, "add")
    assert pairs == ((one, 4), (other, 1))
    assert scaled(pairs, 2.0, 1.5) == (
        (one._replace(scale=4.0), 4),
        (other._replace(scale=8.0, rate=0.75), 1),
    )
    assert scaled(pairs, 1.0, 3.0)[1][0].rate == 1.0
    assert scaled(pairs, 1.0) == pairs


def test_mu_is_that_of_gaussian_releases_without_sampling() -> None:
    gaussian = LossPair("gaussian", 2.0, 1.0, "remove")
    assert total_mu(((gaussian, 4), (gaussian._replace(scale=1.0), 2))) == pytest.approx(sqrt(3))
    assert total_mu(()) == 0.0
    assert total_mu(((gaussian._replace(scale=0.0, rate=0.5), 1),)) == inf
    for other in ({"rate": 0.5}, {"family": "laplace"}):
        assert total_mu(((gaussian, 1), (gaussian._replace(**other), 1))) is None


def test_epsilon_of_laplace_noise_is_at_most_pure() -> None:
    one = LossPair("laplace", 2.0, 1.0, "remove")
    sampled = one._replace(rate=0.25)
    pure = 3 * 0.5 + 2 * log(0.75 + 0.25 * exp(0.5))
    pairs = (one, 3), (sampled, 2)
    assert epsilon_of(pairs, 0.0) == pytest.approx(pure)
    assert 0.5 * pure < epsilon_of(pairs, 1e-3) < pure
    assert epsilon_of(((one, 1),), 1e-9) == pytest.approx(0.5, rel=1e-3)
    both = (one._replace(rate=0.25, kind="replace"), 1)
    exact = log(0.75 + 0.25 * exp(0.5)) - log(0.75 + 0.25 * exp(-0.5))
    assert epsilon_of((both,), 0.0) == pytest.approx(exact)
    assert epsilon_of(((LossPair("gaussian", 2.0, 0.5, "remove"), 1), (one, 1)), 0.0) == inf
    assert epsilon_of((), 1e-5) == epsilon_of((), 0.0) == 0.0


def test_the_worse_side_counts() -> None:
    some = [release(**POISSON, noise_multiplier=1.0)]
    sides = [epsilon_of(counted(some, "add-remove", s), 1e-5) for s in ("remove", "add")]
    assert epsilon(some, 1e-5, "add-remove") == max(sides)
    assert epsilon(some, 1e-5, "add-remove", ("add",)) == sides[1] < sides[0]


@pytest.mark.parametrize("pair", [PAIRS[0], PAIRS[2], PAIRS[12]], ids=str)
def test_one_release_alone_has_its_own_delta(pair: LossPair) -> None:
    found = composed(((pair, 1),), 1e-3)
    for e in (0.1, 0.6):
        assert found.delta(e) == pytest.approx(hockey_stick(pair, e), rel=1e-3, abs=1e-6)


def test_two_gaussian_releases_are_one_of_a_larger_mu() -> None:
    """On the grid of losses, which their closed form does not need."""
    pair = LossPair("gaussian", 2.0, 1.0, "remove")
    for n, delta in ((1, 1e-5), (4, 1e-5), (4, 1e-9)):
        found = composed(((pair, n),), delta).epsilon(delta)
        exact = gaussian_epsilon(delta, sqrt(n) / 2)
        assert exact <= found <= exact * 1.001
    many = composed(((pair._replace(scale=20.0), 400),), 1e-5).epsilon(1e-5)
    assert 1 <= many / gaussian_epsilon(1e-5, 1.0) <= 1.001  # each is put on the grid alike
    parts = composed(((pair, 1), (pair._replace(scale=1.0), 1)), 1e-5).epsilon(1e-5)
    assert parts == pytest.approx(gaussian_epsilon(1e-5, sqrt(1.25)), rel=1e-3)


def test_losses_and_their_masses_give_delta() -> None:
    """Losses 1 and 2 of mass 0.2 and 0.1, and 0.01 that may have been lost."""
    sums, masses = np.array([1.0, 2.0]), np.array([0.2, 0.1])
    tilted = masses * np.exp(-sums)
    above = [np.append(np.cumsum(x[::-1])[::-1], 0.0) for x in (masses, tilted)]
    found = LossSum(sums, *above, 0.01)
    assert found.delta(1.5) == pytest.approx(0.01 + 0.1 * (1 - exp(-0.5)))
    assert found.delta(0.5) == pytest.approx(0.01 + 0.2 * (1 - exp(-0.5)) + 0.1 * (1 - exp(-1.5)))
    assert found.delta(2.0) == found.delta(9.0) == found.delta(800.0) == 0.01
    assert found.delta(1.0) == pytest.approx(0.01 + 0.1 * (1 - exp(-1.0)))
    assert found.epsilon(found.delta(1.5)) == pytest.approx(1.5)
    assert found.epsilon(0.009) == inf
    assert found.epsilon(0.5) == 0.0
    assert found.epsilon(found.delta(0.0)) == 0.0
    assert found.epsilon(found.delta(0.0) - 1e-6) > 0


@pytest.mark.parametrize("false", [0.01, 0.1, 0.3])
def test_errors_are_allowed_by_all_epsilons(false: float) -> None:
    """mu = 1 allows FNR down to Phi(1 - isf(FPR)) alone."""
    found = composed(((LossPair("gaussian", 1.0, 1.0, "remove"), 1),), 1e-9)
    least = float(norm.cdf(norm.isf(false) - 1))
    assert found.allows(false, least + 1e-4)
    assert not found.allows(false, least - 1e-3)


def test_a_window_holds_all_but_its_tail() -> None:
    pair = LossPair("gaussian", 2.0, 1.0, "remove")
    for n, tail in ((1, 1e-6), (16, 1e-6), (16, 1e-12)):
        low, high = _window(((pair, n),), tail)
        mu = sqrt(n) / 2
        mean, bound = mu**2 / 2, mu * sqrt(2 * log(1 / tail))  # Chernoff's, which is this
        assert mean + bound <= high <= mean + bound * 1.05
        assert mean - bound * 1.05 <= low <= mean - bound
        assert norm.sf((high - mean) / mu) < tail
    assert accountant.WORST == ("remove", "add")
