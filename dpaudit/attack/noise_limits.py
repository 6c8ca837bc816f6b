"""How near an attacker comes by the noise alone, before any attack is run: reference figures.

Noise is given as s, its standard deviation in each coordinate over the norm at which one record's
part of the message is clipped: the noise multiplier, where the algorithm adds its noise to the sum.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammainc

from dpaudit.accounting.privacy_loss import Array
from dpaudit.information.capacity import of_vector_in_gaussian


def without_prior(s: float, squared_norm: float) -> float:
    """Expected MSE of an image X, by an attacker who knows nothing of images.

    Of a linear layer without bias the gradient is u x' for the record x = X and a vector u, and
    clipped at C it is C (u / |u|) (x / |x|)'. An attacker who knows u's direction and |x| projects
    the noisy message on the former and multiplies by |x| / C. What is left is X + s |X| z with z
    standard normal, whose squared error is s^2 |X|^2 for each pixel. A gradient shorter than C, or
    |x| or u that is not known, make it worse; a prior, or pixels cut to their range, better.

    Args:
        s: of the noise; of several messages on one record see ``together``.
        squared_norm: |X|^2.

    Source: Riess et al. 2024, arXiv:2402.12861; the derivation is ours.
    """
    return s**2 * squared_norm


def share_without_prior(mse: ArrayLike, s: float, squared_norm: float, n_pixels: int) -> Array:
    """How often that attacker errs by at most each ``mse`` [t]: it errs by chi-square, N degrees.

    P(MSE <= e) = P(N / 2, N e / (2 s^2 |X|^2)), the regularised incomplete gamma function.
    """
    expected = max(without_prior(s, squared_norm), 1e-300)
    return np.asarray(gammainc(n_pixels / 2, n_pixels * np.asarray(mse) / (2 * expected)))


def together(noises: Iterable[float]) -> float:
    """s of the best average of messages on one record whose noises are independent."""
    return 1 / math.sqrt(sum(s**-2 for s in noises))


def decibels(mse: float, data_range: float) -> float:
    """The PSNR of a mean squared error."""
    return 10 * math.log10(data_range**2 / mse)


def bits(noises: Iterable[float], d: int, batch_size: int) -> float:
    """What messages on one batch tell about it at most, in bits.

    Each is a mean [d] of gradients of norm 1 at most, in units of the clip norm, and noise of
    s / batch_size in each coordinate: d / 2 log2(1 + 1 / (d std^2)) bits (Shannon 1949). Those of
    several messages add up at most.
    """
    return sum(of_vector_in_gaussian(d, batch_size / s) for s in noises)
