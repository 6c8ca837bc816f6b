"""Mechanisms that add noise to a value: Gaussian, Laplace, and others on the real line."""

from collections.abc import Callable, Iterator
from math import exp, inf, log, sqrt

import numpy as np
import torch

from dpaudit.accounting.families import gaussian_epsilon, gaussian_mu
from dpaudit.accounting.privacy_loss import Array

from .entries import BOX, N, ZooEntry, clipped

DELTA = 1e-5
GAUSSIAN = "Gaussian"
LIST = {"shape": ((8,), (8,))}
TORCH = {"shape": (N,), "library": "torch", "dtype": "float32"}
APART = {"shape": (N,), "sensitivity": 1.0, "norm": "l1"}
ONE = {"shape": (1,), "sensitivity": 1.0, "norm": "l1"}


def classical(epsilon: float, sensitivity: float) -> float:
    """The standard deviation of Dwork and Roth 2014, Theorem A.1, proven for epsilon below 1."""
    return sensitivity * sqrt(2 * log(1.25 / DELTA)) / epsilon


def analytic(epsilon: float, sensitivity: float) -> float:
    """The standard deviation of Balle and Wang 2018: the least that is enough."""
    return sensitivity / gaussian_mu(epsilon, DELTA)


def of_gaussian(distance: float, scale: float) -> float:
    return gaussian_epsilon(DELTA, distance / scale)


def gaussian(scale: float) -> Callable[[Array], Array]:
    return lambda x: clipped(x) + np.random.normal(0, scale, x.shape)


def gaussian_entries() -> Iterator[ZooEntry]:
    """Values that are clipped to L2 norm 1, of which two are at most 2 apart."""
    for epsilon in (0.9, 3.0):
        for distance, mistake in ((2.0, ""), (1.0, "noise for the clip norm, not twice that")):
            for name, scale_of in (("analytic", analytic), ("classical", classical)):
                scale = scale_of(epsilon, distance)
                known = of_gaussian(2.0, scale)
                yield ZooEntry(
                    f"{GAUSSIAN}, {name}", mistake, gaussian(scale), epsilon, known, DELTA
                )
    scale = classical(15.0, 2.0)
    known = of_gaussian(2.0, scale)
    mistake = "the classical formula where it is not proven"
    yield ZooEntry("Gaussian, classical", mistake, gaussian(scale), 15.0, known, DELTA)
    yield ZooEntry(
        "Gaussian, absent value",
        "",
        gaussian(analytic(2.0, 1.0)),
        2.0,
        2.0,
        DELTA,
        BOX,
        "add-remove",
    )
    scale = analytic(2.0, 0.2)
    yield ZooEntry(
        "Gaussian, small",
        "the variance for the deviation",
        lambda x: clipped(x, 0.1) + np.random.normal(0, scale**2, x.shape),
        2.0,
        of_gaussian(0.2, scale**2),
        DELTA,
    )
    yield from _repeated(analytic(2.0, 2.0))


def _repeated(scale: float) -> Iterator[ZooEntry]:
    """Noise for epsilon 2, and more calls than one."""
    known = of_gaussian(2.0 * sqrt(4), scale)
    calls = {**BOX, "calls": 4}
    mistake = "fresh noise for each of 4 recipients"
    yield ZooEntry("Gaussian, four calls", mistake, gaussian(scale), 2.0, known, DELTA, calls)
    yield ZooEntry("Gaussian, four calls", "", gaussian(2 * scale), 2.0, 2.0, DELTA, calls)
    yield from _clips(scale)
    yield from _kinds_of_noise(scale)
    yield from _libraries(scale)


def _clips(scale: float) -> Iterator[ZooEntry]:
    """Noise for epsilon 2 between values of norm 1, and clips that do not give that."""

    def entry(mistake: str, clip: Callable[[Array], Array], distance: float) -> ZooEntry:
        known = of_gaussian(distance, scale) if distance < inf else inf
        return ZooEntry(
            "Gaussian, clip",
            mistake,
            lambda x: clip(x) + np.random.normal(0, scale, x.shape),
            2.0,
            known,
            DELTA,
        )

    yield entry("no clip", lambda x: x, inf)
    yield entry("each number clipped alone", lambda x: np.clip(x, -1, 1), 2 * sqrt(N))
    yield entry("clip from norm 3 on", lambda x: x if np.linalg.norm(x) < 3 else clipped(x), 6.0)
    yield entry("", lambda x: x / max(1.0, np.abs(x).sum()), 2.0)  # shorter in L2, too
    yield entry("clip by the largest number", lambda x: x / max(1.0, np.abs(x).max()), 2 * sqrt(N))
    yield entry("negative numbers not clipped", lambda x: np.minimum(x, 1 / sqrt(N)), inf)
    layers = [1.0, 1 / sqrt(2)]
    for norm, mistake in zip(layers, ("each tensor clipped to the bound of all", ""), strict=True):
        yield ZooEntry(
            "Gaussian, tensors",
            mistake,
            lambda x, c=norm: [clipped(t, c) + np.random.normal(0, scale, t.shape) for t in x],
            2.0,
            of_gaussian(2 * sqrt(2) * norm, scale),
            DELTA,
            LIST,
        )
    yield ZooEntry(
        "Gaussian, tensors",
        "the last tensor without noise",
        lambda x: [clipped(x[0]) + np.random.normal(0, scale, x[0].shape), x[1]],
        2.0,
        inf,
        DELTA,
        LIST,
    )


def _kinds_of_noise(scale: float) -> Iterator[ZooEntry]:
    """Noise for epsilon 2 that is not independent, not always there, or depends on the value."""
    pool = np.random.default_rng(0).normal(0, scale, (500, N))

    def entry(mistake: str, function: Callable[[Array], Array]) -> ZooEntry:
        return ZooEntry("Gaussian, noise", mistake, function, 2.0, inf, DELTA)

    yield entry("one draw for all numbers", lambda x: clipped(x) + np.random.normal(0, scale))
    yield entry("from a pool", lambda x: clipped(x) + pool[np.random.randint(len(pool))])
    yield entry(
        "scaled by the norm of the value",
        lambda x: clipped(x) + np.linalg.norm(clipped(x)) * np.random.normal(0, scale, x.shape),
    )
    yield entry(
        "left out in 2% of calls",
        lambda x: x + 0 if np.random.random() < 0.02 else gaussian(scale)(x),
    )
    yield entry(
        "of half of the numbers",
        lambda x: clipped(x) + np.random.normal(0, scale, N) * (np.arange(N) < N // 2),
    )
    yield entry(
        "beside the sign of the largest number",
        lambda x: np.where(np.arange(N) == 0, np.sign(x[np.abs(x).argmax()]), gaussian(scale)(x)),
    )
    yield entry(
        "of the numbers that are not 0",
        lambda x: clipped(x) + np.random.normal(0, scale, N) * (x != 0),
    )


def _libraries(scale: float) -> Iterator[ZooEntry]:
    yield ZooEntry(
        "Gaussian, generator",
        "",
        lambda x, rng: clipped(x) + rng.normal(0, scale, x.shape),
        2.0,
        2.0,
        DELTA,
    )
    for factor, mistake in ((1.0, ""), (0.5, "half of the noise")):
        yield ZooEntry(
            "Gaussian, torch",
            mistake,
            lambda x, f=factor: x / x.norm().clamp(min=1.0) + f * scale * torch.randn_like(x),
            2.0,
            of_gaussian(2.0, factor * scale),
            DELTA,
            TORCH,
        )
    yield ZooEntry(
        "Gaussian, rounded",
        "",
        lambda x: np.round(gaussian(scale)(x), 3),
        2.0,
        2.0,
        DELTA,
    )


def laplace_entries() -> Iterator[ZooEntry]:
    """Values with a distance of 1 in L1, or that are clipped."""

    def laplace(scale: float) -> Callable[[Array], Array]:
        return lambda x: x + np.random.laplace(0, scale, x.shape)

    yield ZooEntry("Laplace", "", laplace(1.0), 1.0, 1.0, options=APART)
    yield ZooEntry(
        "Laplace", "the deviation for the scale", laplace(1 / sqrt(2)), 1.0, sqrt(2), options=APART
    )
    yield ZooEntry("Laplace", "epsilon for the scale", laplace(0.5), 0.5, 2.0, options=APART)
    yield ZooEntry(
        "Laplace, L1 clip",
        "",
        lambda x: laplace(2.0)(x / max(1.0, np.abs(x).sum())),
        1.0,
        1.0,
    )
    yield ZooEntry(
        "Laplace, L2 clip",
        "noise of the L1 distance for a clip in L2",
        lambda x: laplace(2.0)(clipped(x)),
        1.0,
        sqrt(N),
    )
    yield ZooEntry("Laplace, L2 clip", "", lambda x: laplace(2 * sqrt(N))(clipped(x)), 1.0, 1.0)
    yield ZooEntry(
        "exponential noise",
        "noise to one side",
        lambda x: x + np.random.exponential(1.0, x.shape),
        1.0,
        inf,
        options=ONE,
    )
    yield ZooEntry(
        "Laplace, cut off",
        "noise without tails",
        lambda x: x + np.clip(np.random.laplace(0, 1.0, x.shape), -2, 2),
        1.0,
        inf,
        options=ONE,
    )
    yield ZooEntry(
        "uniform noise", "", lambda x: x + np.random.uniform(-10, 10, x.shape), 0.01, 0.0, 0.05, ONE
    )
    yield ZooEntry(
        "uniform noise",
        "claimed with a small delta",
        lambda x: x + np.random.uniform(-10, 10, x.shape),
        0.5,
        inf,
        DELTA,
        ONE,
    )
    yield from _snapping()
    yield from _staircase()


def _snapping() -> Iterator[ZooEntry]:
    """Mironov 2012: clamp, add Laplace noise, round to a grid of a power of 2, clamp."""

    def snap(scale: float, grid: float, bound: float = 20.0) -> Callable[[Array], Array]:
        def snapped(x: Array) -> Array:
            noisy = np.clip(x, -bound, bound) + np.random.laplace(0, scale, x.shape)
            return np.asarray(np.clip(np.round(noisy / grid) * grid, -bound, bound))

        return snapped

    yield ZooEntry("snapping", "", snap(1.0, 1.0), 1.01, 1.0, options=ONE)
    yield ZooEntry("snapping", "a third of the noise", snap(1 / 3, 0.5), 1.01, 3.0, options=ONE)
    yield ZooEntry(
        "snapping",
        "the noise rounded, not the sum",
        lambda x: x + np.round(np.random.laplace(0, 1.0, x.shape)),
        1.01,
        inf,
        options={**ONE, "sensitivity": 0.5},
    )


def _staircase() -> Iterator[ZooEntry]:
    """Geng and Viswanath 2014, at distance 1: steps of height e^-epsilon, at gamma within each."""
    epsilon, b = 1.0, exp(-1.0)
    gamma = 1 / (1 + exp(epsilon / 2))

    def staircase(width: float) -> Callable[[Array], Array]:
        def noised(x: Array) -> Array:
            sign = np.random.choice([-1, 1], x.shape)
            step = np.random.geometric(1 - b, x.shape) - 1
            far = np.random.random(x.shape) < (1 - gamma) * b / (gamma + (1 - gamma) * b)
            u = np.random.random(x.shape)
            size = np.where(far, step + gamma + (1 - gamma) * u, step + gamma * u)
            return np.asarray(x + width * sign * size)

        return noised

    yield ZooEntry("staircase", "", staircase(1.0), epsilon, epsilon, options=ONE)
    yield ZooEntry(
        "staircase", "steps half as wide", staircase(0.5), epsilon, 2 * epsilon, options=ONE
    )


def additive() -> list[ZooEntry]:
    return [*gaussian_entries(), *laplace_entries()]
