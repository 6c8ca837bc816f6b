"""Mechanisms with few outputs: integer noise, randomised response, and quantisers."""

from collections.abc import Callable, Iterator
from functools import partial
from math import exp, inf, log

import numpy as np
from scipy.special import ndtr

from dpaudit.accounting.privacy_loss import Array

from .entries import N, ZooEntry, discrete_epsilon, integer_noise, randomised_response

DELTA = 1e-5
INTEGER = {"shape": (1,), "dtype": "int64", "sensitivity": 1.0, "norm": "l1"}
BIT = {"shape": (1,), "dtype": "int64", "low": 0.0, "high": 1.0}
BITS = {**BIT, "shape": (N,)}
CHOICE = {**BIT, "high": 7.0}
UNIT = {"shape": (1,), "low": -1.0, "high": 1.0}
UNITS = {**UNIT, "shape": (N,)}


def integer_entries() -> Iterator[ZooEntry]:
    """Noise on integers that are 1 apart: Ghosh et al. 2009; Canonne, Kamath and Steinke 2020."""

    def geometric(alpha: float) -> Callable[[Array], Array]:
        def noised(x: Array) -> Array:
            one, other = np.random.geometric(1 - alpha, (2, *x.shape))
            return np.asarray(x + one - other)

        return noised

    yield ZooEntry("discrete Laplace", "", geometric(exp(-1.0)), 1.0, 1.0, options=INTEGER)
    yield ZooEntry(
        "discrete Laplace",
        "for half of the distance",
        geometric(exp(-2.0)),
        1.0,
        2.0,
        options=INTEGER,
    )
    yield ZooEntry(
        "discrete Laplace",
        "added to an even number alone",
        lambda x: np.where(x % 2 == 0, geometric(exp(-1.0))(x), x),
        1.0,
        inf,
        options=INTEGER,
    )
    yield from _discrete_gaussian(2.0, 2.0, "")
    yield from _discrete_gaussian(1.0, 2.0, "half of the noise")
    rounded = integer_noise(lambda x: _laplace_cells(x, 1.0), 1, 0.0)
    yield ZooEntry(
        "Laplace, rounded to integers",
        "",
        lambda x: x + np.rint(np.random.laplace(0, 1.0, x.shape)).astype("int64"),
        1.0,
        rounded,
        options=INTEGER,
    )
    truncated = integer_noise(lambda x: _truncated_cells(x, 1.0), 1, 0.0)
    yield ZooEntry(
        "Laplace, cut to integers",
        "noise cast to the dtype of the value, towards 0",
        lambda x: x + np.random.laplace(0, 1.0, x.shape).astype("int64"),
        1.0,
        truncated,
        options=INTEGER,
    )
    cut = integer_noise(lambda x: _gaussian_cells(x, 0.5), 1, DELTA)
    yield ZooEntry(
        "Gaussian, cut to integers",
        "noise that the dtype of the value loses",
        lambda x: x + np.random.normal(0, 0.5, x.shape).astype("int64"),
        2.0,
        cut,
        DELTA,
        INTEGER,
    )


def _discrete_gaussian(scale: float, claimed: float, mistake: str) -> Iterator[ZooEntry]:
    """Noise of one scale, claimed with the epsilon of another one."""
    at = np.arange(-60, 61)
    weight = np.exp(-(at**2) / (2 * scale**2))
    epsilon, known = (
        integer_noise(partial(_gaussian_weight, s), 1, DELTA) for s in (claimed, scale)
    )

    def noised(x: Array) -> Array:
        return np.asarray(x + np.random.choice(at, x.shape, p=weight / weight.sum()))

    options = {**INTEGER, "runs": 20_000}
    yield ZooEntry("discrete Gaussian", mistake, noised, epsilon, known, DELTA, options)


def _gaussian_weight(scale: float, x: Array) -> Array:
    return np.asarray(np.exp(-(x**2) / (2 * scale**2)))


def _laplace_cells(x: Array, scale: float) -> Array:
    """Mass of Laplace noise that rounds to each integer."""
    size = np.abs(x)
    tail = np.exp(-(size - 0.5) / scale) - np.exp(-(size + 0.5) / scale)
    return np.where(size == 0, 1 - exp(-0.5 / scale), tail / 2)


def _truncated_cells(x: Array, scale: float) -> Array:
    """The same, cut towards 0."""
    size = np.abs(x)
    tail = np.exp(-size / scale) - np.exp(-(size + 1) / scale)
    return np.where(size == 0, 1 - exp(-1 / scale), tail / 2)


def _gaussian_cells(x: Array, scale: float) -> Array:
    size = np.abs(x) / scale
    tail = ndtr(-size) - ndtr(-size - 1 / scale)
    return np.where(size == 0, 2 * tail, tail)


def response_entries() -> Iterator[ZooEntry]:
    """Randomised response on one bit, several bits, or one of eight answers."""

    def flipped(truth: float) -> Callable[[Array], Array]:
        return lambda x: np.where(np.random.random(x.shape) < truth, x, 1 - x)

    def answered(truth: float) -> Callable[[Array], Array]:
        def answer(x: Array) -> Array:
            other = (x + np.random.randint(1, 8, x.shape)) % 8
            return np.where(np.random.random(x.shape) < truth, x, other)

        return answer

    for epsilon in (1.0, log(3)):
        truth = exp(epsilon) / (1 + exp(epsilon))
        known = randomised_response(truth, 2)
        yield ZooEntry("randomised response", "", flipped(truth), epsilon, known, options=BIT)
    mistake = "two coins: log 3, claimed as log 2"
    yield ZooEntry("randomised response", mistake, flipped(0.75), log(2), log(3), options=BIT)
    mistake = "one answer that is always true"
    yield ZooEntry(
        "randomised response",
        mistake,
        lambda x: np.where(x == 0, x, flipped(0.75)(x)),
        log(3),
        inf,
        options=BIT,
    )
    of_bits = 0.25
    truth = exp(of_bits) / (1 + exp(of_bits))
    yield ZooEntry(
        "randomised response of 16 bits", "", flipped(truth), N * of_bits, N * of_bits, options=BITS
    )
    mistake = "the epsilon of one bit"
    yield ZooEntry(
        "randomised response of 16 bits",
        mistake,
        flipped(truth),
        of_bits,
        N * of_bits,
        options=BITS,
    )
    truth = exp(1.0) / (exp(1.0) + 7)
    known = randomised_response(truth, 8)
    yield ZooEntry("randomised response of 8", "", answered(truth), 1.0, known, options=CHOICE)
    truth = exp(1.0) / (exp(1.0) + 1)
    mistake = "the probability for two answers"
    known = randomised_response(truth, 8)
    yield ZooEntry("randomised response of 8", mistake, answered(truth), 1.0, known, options=CHOICE)


def quantiser_entries() -> Iterator[ZooEntry]:
    """One bit for a number between -1 and 1: Duchi, Jordan and Wainwright 2018, and 1-bit SGD."""

    def duchi(epsilon: float) -> Callable[[Array], Array]:
        c = (exp(epsilon) + 1) / (exp(epsilon) - 1)
        return lambda x: np.where(np.random.random(x.shape) < (1 + x / c) / 2, c, -c)

    yield ZooEntry("one bit, Duchi et al.", "", duchi(1.0), 1.0, 1.0, options=UNIT)
    mistake = "the epsilon of one number"
    yield ZooEntry("one bit, Duchi et al.", mistake, duchi(1.0), 1.0, N * 1.0, options=UNITS)
    yield ZooEntry("one bit, Duchi et al.", "", duchi(0.25), N * 0.25, N * 0.25, options=UNITS)
    yield ZooEntry(
        "stochastic rounding",
        "rounding for noise",
        lambda x: np.where(np.random.random(x.shape) < (1 + x) / 2, 1.0, -1.0),
        1.0,
        inf,
        options=UNIT,
    )
    yield ZooEntry(
        "quantiser after noise",
        "",
        lambda x: np.round(x + np.random.laplace(0, 2.0, x.shape)),
        1.0,
        discrete_epsilon(*_cells_of_two(2.0)),
        options=UNIT,
    )
    yield ZooEntry(
        "quantiser before noise",
        "steps wider than the distance that noise is for",
        lambda x: 2 * np.round(x) + np.random.laplace(0, 2.0, x.shape),
        1.0,
        2.0,
        options=UNIT,
    )


def _cells_of_two(scale: float) -> tuple[Array, Array]:
    """Masses of rounded Laplace noise about -1 and 1."""
    at = np.arange(-200.0, 201.0)
    return _laplace_cells(at + 1, scale), _laplace_cells(at - 1, scale)


def discrete() -> list[ZooEntry]:
    return [*integer_entries(), *response_entries(), *quantiser_entries()]
