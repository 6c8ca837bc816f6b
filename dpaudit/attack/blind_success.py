"""How near an attacker comes before any attack is run: by a guess, or by the noise alone.

A guess that sees no message comes near an image with probability kappa, bracketed on public images.

The attacker knows the label of a target and all that others hold. The target and the public images
of its class are draws of one kind, so that, given them all without their order, the target is each
of them with the same probability 1 / (m + 1). Of that prior kappa(r) is the largest share of these
images in a ball of radius r. It is bracketed, since no search finds the best ball:

    at least    the share within r of the best of these images and of their mean
    at most     the largest share within 2 r of one of them, as a ball of radius r that holds an
                image lies in the ball of radius 2 r about it

No margin is needed for the population: what bounds the success given the images bounds it on
average. The prior must be of the label, which the attacker may know, or the bound would be false
(arXiv:2603.12142). SSIM is no metric, and there is no upper end for it.

Noise is given as s, its standard deviation in each coordinate over the norm at which one record's
part of the message is clipped: the noise multiplier, where the algorithm adds its noise to the sum.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import gammainc
from skimage.metrics import structural_similarity
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array
from dpaudit.data.datasets import Dataset
from dpaudit.information.capacity import of_vector_in_gaussian

from .image_metrics import SSIM_WINDOW

MOST_PUBLIC = 1000  # images of a class: more would sharpen the bracket a little
MOST_COMPARED = 200  # images compared by SSIM


class Kappa(NamedTuple):
    """Ends of the blind success at each of t thresholds."""

    low: Array  # [t]
    high: Array  # [t]


class PublicClass:
    """The public images of one class, [m, channels, height, width], and how near they are."""

    def __init__(self, images: Tensor, mse: Array) -> None:
        """``mse`` [t]: errors up to which a guess is a success, in squared units of a pixel."""
        self._images, self._mse = images[:MOST_PUBLIC].flatten(1).double(), mse
        between = _errors(self._images, self._images)
        self._within = _counts(between, mse)  # [t, m], each counts itself
        self._within_twice = _counts(between, 4 * mse)

    @property
    def alone(self) -> Array:
        """The upper end among the public images alone, [t]; 1 without any."""
        m = len(self._images)
        return self._within_twice.max(axis=1) / m if m else np.ones(len(self._mse))

    def kappa(self, target: Tensor) -> Kappa:
        """kappa of a target [channels, height, width] that belongs to the class."""
        n = len(self._images) + 1
        errors = _errors(target.flatten()[None].double(), self._images)[0]  # [m]
        near, twice = (errors <= scale * self._mse[:, None] for scale in (1, 4))  # [t, m]

        def largest(within: Array, target_near: Array) -> Array:
            best = (within + target_near).max(axis=1, initial=0)
            return np.maximum(best, 1 + target_near.sum(axis=1)) / n

        low = largest(self._within, near)
        if n > 1:
            mean = self._images.mean(dim=0, keepdim=True)
            to_mean = _errors(mean, torch.cat([self._images, target.flatten()[None].double()]))[0]
            low = np.maximum(low, (to_mean <= self._mse[:, None]).sum(axis=1) / n)
        return Kappa(low, largest(self._within_twice, twice))


class BlindSuccess(NamedTuple):
    """The blind success at targets, a mean over them, at each of t thresholds."""

    kappa: Kappa
    public: Array  # [t], the upper end among the public images alone
    by_ssim: Array  # [t], a lower end


def blind_success(
    dataset: Dataset, images: Sequence[Tensor], labels: Sequence[int], mse: Array, ssim: Array
) -> BlindSuccess:
    """Blind success on targets [channels, height, width] with these labels.

    As gamma is concave, its value at the mean of kappa bounds the expected share of successes.

    Args:
        mse: [t], errors up to which a guess is a success.
        ssim: [t], from which on it is one.
    """
    low, high = dataset.value_range
    shown = {y: dataset.x_test[dataset.y_test == y] for y in dict.fromkeys(labels)}
    public = {y: PublicClass(alike, mse) for y, alike in shown.items()}
    each = [public[y].kappa(x) for x, y in zip(images, labels, strict=True)]
    similar = {y: _blind_ssim(alike, ssim, high - low) for y, alike in shown.items()}
    return BlindSuccess(
        Kappa(np.mean([k.low for k in each], axis=0), np.mean([k.high for k in each], axis=0)),
        np.mean([public[y].alone for y in labels], axis=0),
        np.mean([similar[y] for y in labels], axis=0),
    )


def _blind_ssim(images: Tensor, thresholds: Array, data_range: float) -> Array:
    """Share of a class' images [m, ...] whose SSIM to their mean reaches thresholds [t]; a lower
    bracket, as another guess may do better. 0 without images."""
    if not len(images):
        return np.zeros(len(thresholds))
    shown = images[:MOST_COMPARED].double().numpy()
    mean = shown.mean(axis=0)
    options = {"win_size": SSIM_WINDOW, "data_range": data_range, "channel_axis": 0}
    reached = np.array([structural_similarity(mean, image, **options) for image in shown])
    share: Array = (reached >= thresholds[:, None]).mean(axis=1)
    return share


def _errors(a: Tensor, b: Tensor) -> Array:
    """Mean squared errors between rows [n, p] and [m, p], [n, m]."""
    found: Array = (torch.cdist(a, b).square() / a.shape[1]).numpy()
    return found


def _counts(errors: Array, most: Array) -> Array:
    """How many of each row are at most each of t limits, [t, n]."""
    ordered = np.sort(errors, axis=1)
    rows = [np.searchsorted(row, most, side="right") for row in ordered]
    return np.array(rows, float).T.reshape(len(most), len(errors))


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


def bits(noises: Iterable[float], d: int, batch_size: int) -> float:
    """What messages on one batch reveal about it at most, in bits.

    Each is a mean [d] of gradients of norm 1 at most, in units of the clip norm, and noise of
    s / batch_size in each coordinate: d / 2 log2(1 + 1 / (d std^2)) bits (Shannon 1949). Those of
    several messages add up at most.
    """
    return sum(of_vector_in_gaussian(d, batch_size / s) for s in noises)
