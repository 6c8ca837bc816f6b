"""Products of characteristic functions, with a bound on every rounding error made on the way."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Array = NDArray[np.floating[Any]]
Complex = NDArray[np.complex128]

ROUNDING = 2.0**-53
FOLD = 64  # factors multiplied before their common error bound is taken over


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A function on the frequencies of a real transform, and by how much each value may be off."""

    value: Complex  # [n // 2 + 1]
    error: Array | float

    def __mul__(self, other: "Bounded") -> "Bounded":
        value = self.value * other.value
        a, b = np.abs(self.value), np.abs(other.value)
        error = a * other.error + b * self.error + self.error * other.error
        return Bounded(value, error + 8 * ROUNDING * a * b)

    def __pow__(self, count: int) -> "Bounded":
        square, power = self, None
        while count:
            if count & 1:
                power = square if power is None else power * square
            count >>= 1
            square = square * square if count else square
        return power if power is not None else Bounded(np.ones_like(self.value), 0.0)


class Product:
    """A running product of the transforms of sub-probability distributions on n points (mod n)."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.factor_error = 8 * ROUNDING * (np.log2(n) + 4)  # of a transform of mass 1, per value
        self._done = Bounded(np.ones(n // 2 + 1, dtype=complex), 0.0)
        self._fold = np.ones(n // 2 + 1, dtype=complex)
        self._folded = 0

    def transform(self, points: NDArray[np.intp], masses: Array) -> Complex:
        """The transform [n // 2 + 1] of masses on distinct points; off by at most factor_error.

        Each value is a sum over a tree of depth log2(n), where one step of a radix-2 butterfly
        adds at most 8 roundings of the terms' sizes, whose sum is at most 1.
        """
        spread = np.zeros(self.n)
        spread[points % self.n] = masses
        return fft.rfft(spread)

    def times(self, factor: Complex, count: int = 1) -> None:
        """Multiply by the ``count``-th power of a transform, or of a mixture of two."""
        if count > 1:
            self._done = self._done * Bounded(factor, self.factor_error) ** count
            return
        self._fold *= factor
        self._folded += 1
        if self._folded == FOLD:
            self._close_fold()

    def masses(self) -> tuple[Array, float]:
        """The masses [n], and how much any part of them, weighted by 0 to 1, may be off.

        By Parseval the errors of the masses have the L2 norm of those of the transform over
        sqrt(n), and n weights of at most 1 have at most the norm sqrt(n).
        """
        self._close_fold()
        masses = fft.irfft(self._done.value, self.n)
        transform_error = np.sqrt(2 * np.sum(np.square(self._done.error)))
        inverse_error = self.factor_error * np.sqrt(self.n) * np.linalg.norm(masses)
        return masses, float(transform_error + inverse_error)

    def _close_fold(self) -> None:
        # every factor is at most 1 (and its error) in size, so that errors add up
        error = 1.01 * self._folded * (self.factor_error + 8 * ROUNDING)
        self._done = self._done * Bounded(self._fold, error)
        self._fold = np.ones_like(self._fold)
        self._folded = 0
