"""Intervals against an independent reference: the contour integral of the moments, at any epsilon.

With M the logarithm of the total loss's moment generating function and any c > 0,

    delta(epsilon) = 1 / (2 pi i) * integral of e^(M(z) - z epsilon) / (z (z + 1)) over Re z = c,

since (1 - e^(epsilon - l))+ is the inverse Laplace transform of e^(z l) / (z (z + 1)). No grid of
losses, no rounding of them and no wrapping around; the quadrature is good to about 1e-4.
"""

from itertools import product

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.integrate import trapezoid
from scipy.optimize import brentq

from dpaudit.accounting.releases import RecordAdjacency, Release, delta, epsilon

COMPLEX = np.ndarray  # of points in the plane, or of a function there
TARGET = 1e-5


def release(noise: float, rate: float, count: int, sampling: str = "poisson") -> Release:
    return Release(
        family="gaussian",
        noise_multiplier=noise,
        sampling=sampling,  # type: ignore[arg-type]
        sampling_rate=rate,
        count=count,
    )


def log_moment(noise: float, rate: float, adjacency: RecordAdjacency, z: COMPLEX) -> COMPLEX:
    """ln E e^(z loss) of one round, by the trapezoid rule along the line; z has one real part."""
    c = float(z[0].real)
    x = np.linspace(-13 * noise - 1, 1 + c + 13 * noise, 4000)

    def log_ratio(shift: int) -> np.ndarray:
        log_shifted = np.log(rate) + (shift * x - 0.5) / noise**2
        return np.logaddexp(np.log1p(-rate), log_shifted)

    loss = log_ratio(1) - (log_ratio(-1) if adjacency == "replace-one" else 0.0)
    log_weight = -0.5 * (x / noise) ** 2 + np.log((x[1] - x[0]) / noise / np.sqrt(2 * np.pi))
    log_weight += log_ratio(1) + c * loss
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    turns = (np.exp(1j * part[:, None] * loss) @ weight for part in np.array_split(z.imag, 16))
    return top + np.log(np.concatenate(list(turns)))


def reference(
    noise: float, rate: float, count: int, adjacency: RecordAdjacency, near: float
) -> float:
    def total(z: COMPLEX) -> COMPLEX:
        return count * log_moment(noise, rate, adjacency, z)

    candidates = np.geomspace(0.02, 60, 50)
    bound = [float(total(np.array([c + 0j]))[0].real) for c in candidates]
    c = candidates[np.argmin(bound - candidates * near - np.log(candidates * (candidates + 1)))]
    around = [float(total(np.array([c * f + 0j]))[0].real) for f in (0.98, 1, 1.02)]
    deviation = np.sqrt(around[0] - 2 * around[1] + around[2]) / (0.02 * c)
    t = 2 / deviation * np.sinh(np.linspace(0, np.arcsinh(400), 4000))
    z = c + 1j * t[t <= max(25 / deviation, 2000 / near)]
    moments = total(z)

    def off(e: float) -> float:
        inside = np.exp(moments - z * e) / (z * (z + 1))
        return float(trapezoid(inside.real, z.imag) / np.pi / TARGET - 1)

    return float(brentq(off, 0.9 * near, 1.1 * near))


ONCE_LOST = [  # where the grid is wider than the sampling rate, or losses are large
    (0.25, 1 / 2500, 5000, "add-remove"),
    (0.25, 0.001, 1000, "add-remove"),
    (0.3, 0.001, 5000, "add-remove"),
    (0.25, 0.01, 5000, "add-remove"),
    (0.25, 0.1, 5000, "add-remove"),  # above 600
    (0.25, 0.1, 1000, "replace-one"),
]
NOISE, RATES, ROUNDS = (0.25, 0.3, 0.5, 0.7, 1, 2), (1 / 2500, 0.001, 0.01, 0.1), (100, 1000, 5000)
CELLS = [*product(NOISE, RATES, ROUNDS, ("add-remove", "replace-one"))]
TOO_RARE = [*product((0.5, 0.7), (1 / 2500,), (100,), ("add-remove", "replace-one"))]  # no saddle


@pytest.mark.parametrize(
    "noise, rate, count, adjacency",
    [
        *ONCE_LOST,
        *(
            pytest.param(*cell, marks=pytest.mark.slow)
            for cell in CELLS
            if cell not in [*ONCE_LOST, *TOO_RARE]
        ),
    ],
)
def test_intervals_hold_the_reference_closely(
    noise: float, rate: float, count: int, adjacency: RecordAdjacency
) -> None:
    low, high = epsilon([release(noise, rate, count)], TARGET, adjacency)
    assert 0 < high * (1 - 1.5e-4) < low <= high
    exact = reference(noise, rate, count, adjacency, high)
    assert low * (1 - 1e-4) <= exact <= high * (1 + 1e-4)


def test_fixed_batches_agree_with_sampling_at_half_the_noise() -> None:
    """One record of 2500 in each of 5000 rounds, with the noise of Dyn-D2P for a claimed 0.7."""
    low, high = epsilon([release(0.4882, 1 / 2500, 5000, "fixed")], 1e-4, "replace-one")
    least, most = epsilon([release(0.2441, 1 / 2500, 5000)], 1e-4, "add-remove")
    assert low == pytest.approx(least) == pytest.approx(32.03, abs=0.02)
    assert most == pytest.approx(32.03, abs=0.02)
    assert high == pytest.approx(33.03, abs=0.02)  # where the other records adapt


@pytest.mark.parametrize(
    "noise, rate, count, grid",
    [
        (0.25, 0.001, 1000, 1e-3),
        pytest.param(0.5, 1 / 2500, 100, 1e-4, marks=pytest.mark.slow),
        pytest.param(0.7, 1 / 2500, 100, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_another_accountant_agrees(noise: float, rate: float, count: int, grid: float) -> None:
    loss = pld.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=grid
    )
    theirs = loss.self_compose(count).get_epsilon_for_delta(TARGET)
    low, high = epsilon([release(noise, rate, count)], TARGET)
    assert low * (1 - 1e-4) <= theirs <= high * (1 + 1e-3)


def test_simulated_losses_have_the_delta_of_the_tail() -> None:
    """Importance sampling: the record is drawn more often and further out, weighted by how likely."""
    noise, rate, count, drawn, shift, target = 0.25, 0.001, 1000, 0.005, 0.3, 32.0
    rng = np.random.default_rng(3)
    sampled = rng.random((6_000, count)) < drawn
    x = rng.normal(scale=noise, size=sampled.shape) + sampled * (1 + shift)
    loss = np.log1p(rate * np.expm1((x - 0.5) / noise**2)).sum(axis=1)
    log_weight = np.where(
        sampled,
        np.log(rate / drawn) - shift * (x - 1 - shift / 2) / noise**2,
        np.log1p(-rate) - np.log1p(-drawn),
    ).sum(axis=1)
    found = np.exp(log_weight) * -np.expm1(np.minimum(target - loss, 0.0))
    error = found.std() / np.sqrt(len(found))
    low, high = delta([release(noise, rate, count)], target)
    assert error < 0.06 * found.mean()
    assert low - 4 * error < found.mean() < high + 4 * error
    assert high * 0.99 < low
