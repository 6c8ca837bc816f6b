"""The loss of one release: its discretisations bracket the exact one; the pairs are the worst."""

from typing import get_args

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import laplace, norm

from dpaudit.accounting import privacy_loss
from dpaudit.accounting.privacy_loss import (
    NoiseFamily,
    PairKind,
    Pairs,
    above,
    beneath,
    least_outcome,
    reach,
)

NOISE = {"gaussian": norm, "laplace": laplace}


def pairs(family: NoiseFamily, kind: PairKind, scale: float, rate: float) -> Pairs:
    return Pairs(family, kind, np.array([[scale]]), np.array([[rate]]))


def hockey_stick(
    family: NoiseFamily, kind: PairKind, scale: float, rate: float, epsilon: float
) -> float:
    """H of the pair at e^epsilon, from its definition: a root and two distribution functions."""
    if kind == "switch":
        return hockey_stick(family, "remove" if epsilon > 0 else "add", scale, rate, epsilon)
    noise = NOISE[family](scale=scale)
    weights = {-1: 0.0, 0: 1.0, 1: 0.0}
    sampled = {-1: 0.0, 0: 1 - rate, 1: rate}
    p = weights if kind == "add" else sampled
    q = {"add": sampled, "remove": weights, "replace": {-s: w for s, w in sampled.items()}}[kind]

    def excess(x: float) -> float:  # of P's log density over Q's, relative to epsilon
        log_p, log_q = (
            np.logaddexp.reduce(
                [np.log(max(w, 1e-300)) + noise.logpdf(x - s) for s, w in m.items()]
            )
            for m in (p, q)
        )
        return log_p - log_q - epsilon

    sign = -1 if kind == "add" else 1  # in which direction the loss rises
    low, high = -60 * scale - 1, 60 * scale + 1
    if sign * excess(low) > 0 and sign * excess(high) > 0:
        return float(1 - np.exp(epsilon)) if sign > 0 else 0.0
    if excess(low) < 0 and excess(high) < 0:
        return 0.0
    if excess(low) > 0 and excess(high) > 0:
        return float(1 - np.exp(epsilon))
    root = brentq(excess, low, high, xtol=1e-14)
    tail = noise.cdf if sign < 0 else noise.sf
    masses = [sum(w * tail(root - s) for s, w in m.items()) for m in (p, q)]
    return float(masses[0] - np.exp(epsilon) * masses[1])


def delta_of(losses: np.ndarray, masses: np.ndarray, infinite: float, epsilon: float) -> float:
    return float(infinite - np.expm1(np.minimum(epsilon - losses, 0)) @ masses)


@pytest.mark.parametrize("family", get_args(NoiseFamily))
@pytest.mark.parametrize("kind", get_args(PairKind))
@pytest.mark.parametrize("scale, rate", [(1.0, 0.3), (0.5, 0.01), (0.7, 0.9)])
def test_discretisations_bracket_the_exact_divergence_closely(
    family: NoiseFamily, kind: PairKind, scale: float, rate: float
) -> None:
    pair = pairs(family, kind, scale, rate)
    low, high = reach(pair)
    step = 0.003
    losses = step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)
    losses[np.argmin(np.abs(losses))] = 0.0
    upper, infinite = above(pair, losses)
    lower = beneath(pair, losses)
    for epsilon in [-0.31, -0.01, 0.0, 0.0041, 0.05, 0.4, 1.3, 2.6]:
        exact = hockey_stick(family, kind, scale, rate, epsilon)
        least = delta_of(losses, lower[0], 0.0, epsilon)
        most = delta_of(losses, upper[0], float(infinite[0]), epsilon)
        assert least <= exact + 1e-12
        assert most >= exact - 1e-12
        assert most - least <= 0.6 * step  # no cell holds more than all mass: h/4 above, h/4 below


@pytest.mark.parametrize("family", get_args(NoiseFamily))
def test_masses_are_probabilities_of_both_worlds(family: NoiseFamily) -> None:
    pair = pairs(family, "remove", 0.8, 0.2)
    losses = 0.01 * np.arange(-60, 2000)
    upper, infinite = above(pair, losses)
    lower = beneath(pair, losses)
    for masses in (upper[0], lower[0]):
        assert masses.min() >= 0
        assert masses.sum() + infinite[0] == pytest.approx(1, abs=1e-9)
        assert masses @ np.exp(-losses) == pytest.approx(1, abs=1e-9)  # of the world without it


def test_a_grid_through_the_least_outcome_keeps_large_losses() -> None:
    pair, step = pairs("gaussian", "remove", 0.25, 0.001), 0.02  # of losses that begin at -0.001
    losses = step * np.arange(-1, 2000)
    moved = losses + least_outcome(pair, step / 2)[0]
    for epsilon, share in ((2.0, 0.9), (4.0, 0.9999)):
        exact = hockey_stick("gaussian", "remove", 0.25, 0.001, epsilon)
        assert delta_of(losses, beneath(pair, losses)[0], 0.0, epsilon) < 1e-9
        least = delta_of(moved, beneath(pair, moved)[0], 0.0, epsilon)
        assert share * exact < least <= exact


@pytest.mark.parametrize("kind", get_args(PairKind))
@pytest.mark.parametrize("family", get_args(NoiseFamily))
def test_pairs_alone_and_together_have_the_same_masses_beneath(family, kind, monkeypatch) -> None:
    n = 9
    many = Pairs(
        family, kind, np.geomspace(0.4, 20, n)[:, None], np.linspace(0.01, 0.9, n)[:, None]
    )
    low, high = reach(many)
    losses = np.linspace(max(low, -5.0), min(high, 5.0), 500)
    alone = beneath(many, losses)
    monkeypatch.setattr(privacy_loss, "ONE_BY_ONE", 0)
    assert np.array_equal(alone, beneath(many, losses))


def test_losses_within_one_step_are_merged_and_not_rounded_down() -> None:
    losses = 1e-3 * np.arange(-2, 3)
    for kind in get_args(PairKind):
        masses = beneath(pairs("laplace", kind, 15.0, 1e-4), losses)[0]
        assert masses[2] == pytest.approx(1, abs=1e-6)
        assert masses[:2].max() < 1e-6


GRID = np.linspace(-14, 14, 1201)


def plane_divergence(
    family: NoiseFamily, rate: float, scale: float, g: np.ndarray, other: np.ndarray, epsilon: float
) -> float:
    """H of (1-q) M(0) + q M(g) from (1-q) M(0) + q M(g') in the plane, by the trapezoid rule."""
    noise = NOISE[family](scale=scale)

    def density(shift: np.ndarray) -> np.ndarray:
        return np.outer(noise.pdf(GRID - shift[0]), noise.pdf(GRID - shift[1]))

    absent = (1 - rate) * density(np.zeros(2))
    p, q = absent + rate * density(g), absent + rate * density(other)
    return float(np.maximum(p - np.exp(epsilon) * q, 0).sum() * (GRID[1] - GRID[0]) ** 2)


@pytest.mark.parametrize("family, order", [("gaussian", 2), ("laplace", 1)])
@pytest.mark.parametrize("epsilon", [-0.2, 0.0, 0.1, 0.5])
def test_opposite_gradients_are_the_worst_under_replacement(
    family: NoiseFamily, order: int, epsilon: float
) -> None:
    rng = np.random.default_rng(20240915)
    rate, scale = 0.4, 1.1
    worst = hockey_stick(family, "replace", scale, rate, epsilon)
    opposite = plane_divergence(
        family, rate, scale, np.array([1.0, 0]), np.array([-1.0, 0]), epsilon
    )
    assert opposite == pytest.approx(worst, abs=2e-4)  # of the quadrature, at Laplace's kinks
    for g, other in rng.normal(size=(6, 2, 2)):
        g, other = g / np.linalg.norm(g, order), other / np.linalg.norm(other, order)
        assert plane_divergence(family, rate, scale, g, other, epsilon) <= worst + 2e-4
