"""Scores of reconstructions: MSE, PSNR and SSIM after aligning the batch, and the blind baseline.

PSNR and SSIM take the width of the value range as their data range (2 for images in [-1, 1]), and
the MSE is in squared units of it. SSIM is scikit-image's with a uniform window of 7 x 7 pixels.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import stdtrit
from skimage.metrics import structural_similarity
from torch import Tensor

from dpaudit.errors import DataError, DpauditError
from dpaudit.files.finding import Name

SSIM_WINDOW = 7  # pixels
# dB. Identical images have an infinite PSNR, and one of them would make every mean infinite. At
# the cap an error is already smaller than the rounding to 8 bits: 10 log10(12 * 255**2) = 58.9.
PSNR_CAP = 60.0

FEWEST = 4  # targets for an interval: Student's t from fewer is wider than what may be at all
RANGES = {Name.MSE: (0.0, np.inf), Name.PSNR: (-np.inf, PSNR_CAP), Name.SSIM: (-1.0, 1.0)}
SHARE = (0.0, 1.0)  # the range of a rate

Floats = NDArray[np.float64]


class Scores(NamedTuple):
    """How near each of m reconstructions came to its truth, each a mean over the aligned batch."""

    mse: Floats  # [m]
    psnr: Floats  # [m], dB, that of every image capped at PSNR_CAP
    ssim: Floats  # [m]
    order: Tensor  # [m, batch_size]; reconstruction[i, order[i]] is aligned to truth[i]


class Estimate(NamedTuple):
    """A mean over n cases and its 95% interval; no interval for fewer than ``FEWEST``."""

    value: float
    low: float | None
    high: float | None
    n: int
    standard_error: float | None = None  # None: a single case, or one that is infinite


class Blind(NamedTuple):
    """What attackers guess who saw no message, [m, batch_size, channels, height, width] each."""

    mean_image: Tensor  # the mean of the public images
    other_class: Tensor  # a random public image of another class than the truth


def score(truth: Tensor, reconstruction: Tensor, value_range: tuple[float, float]) -> Scores:
    """Score m reconstructed batches, each aligned to its truth by least squared error.

    Args:
        truth: [m, batch_size, channels, height, width].
        reconstruction: the same shape, images of a batch in any order.
        value_range: lowest and highest possible value of a pixel.

    Raises:
        DpauditError: the shapes differ, or the images are smaller than the SSIM window.
    """
    _check(truth, reconstruction)
    order = _order(truth, reconstruction)
    pairs = _pairs(truth, reconstruction, order)
    table = np.array([_score_image(t, r, value_range[1] - value_range[0]) for t, r in pairs])
    mse, psnr, ssim = table.reshape(*order.shape, 3).mean(axis=1).T
    return Scores(mse, psnr, ssim, order)


def psnr_alone(truth: Tensor, reconstruction: Tensor, value_range: tuple[float, float]) -> Floats:
    """The PSNR that ``score`` gives, [m] in dB, without the cost of the SSIM."""
    order = _order(truth, reconstruction)
    pairs = _pairs(truth, reconstruction, order)
    values = np.array([_psnr(t, r, value_range[1] - value_range[0]) for t, r in pairs])
    return values.reshape(order.shape).mean(axis=1)


class Each(NamedTuple):
    """How near each image of m aligned batches came to its truth."""

    psnr: Floats  # [m, batch_size], dB, capped at PSNR_CAP
    ssim: Floats  # [m, batch_size]


def score_each(truth: Tensor, reconstruction: Tensor, value_range: tuple[float, float]) -> Each:
    """As ``score``, image by image."""
    _check(truth, reconstruction)
    order = _order(truth, reconstruction)
    pairs = _pairs(truth, reconstruction, order)
    table = np.array([_score_image(t, r, value_range[1] - value_range[0]) for t, r in pairs])
    _, psnr, ssim = table.reshape(*order.shape, 3).transpose(2, 0, 1)
    return Each(psnr, ssim)


def estimates(scores: Scores) -> dict[str, Estimate]:
    """Mean and interval over the targets of each score, by name."""
    return {name: interval(getattr(scores, name), within) for name, within in RANGES.items()}


def interval(values: ArrayLike, within: tuple[float, float] = (-np.inf, np.inf)) -> Estimate:
    """Mean of independent values [n] and its 95% Student-t interval, cut to their range."""
    x = np.asarray(values, dtype=np.float64)
    mean, n = float(x.mean()), len(x)
    known = n > 1 and bool(np.isfinite(x).all())
    error = float(x.std(ddof=1) / np.sqrt(n)) if known else None
    if error is None or n < FEWEST:
        return Estimate(mean, None, None, n, error)
    margin = float(stdtrit(n - 1, 0.975)) * error
    low, high = (float(end) for end in np.clip([mean - margin, mean + margin], *within))
    return Estimate(mean, low, high, n, error)


def paired(values: ArrayLike, baseline: ArrayLike) -> Estimate:
    """Mean of SSIMs ``values - baseline`` [n] over the same cases, and its 95% interval."""
    return interval(np.asarray(values, np.float64) - np.asarray(baseline, np.float64), (-2.0, 2.0))


def blind(
    labels: Tensor, public_images: Tensor, public_labels: Tensor, generator: torch.Generator
) -> Blind:
    """Guesses at m batches from public data alone, to be scored like any reconstruction.

    The true labels are used only to keep the random image from being of the same class.

    Args:
        labels: [m, batch_size], the true ones.
        public_images: [n, channels, height, width], none of them a target.
        public_labels: [n].

    Raises:
        DpauditError: all public images are of one class.
    """
    if len(public_labels.unique()) < 2:
        raise DpauditError(
            "DPA072",
            "the blind baseline needs public images of at least two classes, "
            f"got {len(public_labels)} images of {len(public_labels.unique())}",
        )
    other = (labels[..., None] != public_labels).flatten(0, 1).to(public_images.dtype)
    drawn = torch.multinomial(other.to(generator.device), 1, generator=generator)
    random = public_images[drawn.view(labels.shape).to(public_images.device)]
    return Blind(public_images.mean(0).expand_as(random), random)


def _check(truth: Tensor, reconstruction: Tensor) -> None:
    if truth.ndim != 5 or truth.shape != reconstruction.shape:
        raise DpauditError(
            "DPA030",
            f"reconstruction of shape {list(reconstruction.shape)} cannot be scored against "
            f"{list(truth.shape)}: expected [m, batch, channels, height, width] for both",
        )
    refuse_small(truth.shape)


def refuse_small(shape: Sequence[int]) -> None:
    """Raises DataError: images [..., channels, height, width] are smaller than the SSIM window."""
    channels, height, width = shape[-3:]
    if min(height, width) < SSIM_WINDOW:
        raise DataError(
            "DPA033",
            f"SSIM takes a window of {SSIM_WINDOW} x {SSIM_WINDOW} pixels: expected images "
            f"[channels, height, width] of at least that size, got [{channels}, {height}, {width}]",
        )


def _order(truth: Tensor, reconstruction: Tensor) -> Tensor:
    """[m, batch_size]; reconstruction[i, order[i]] is aligned to truth[i]."""
    return torch.stack([_assignment(t, r) for t, r in zip(truth, reconstruction, strict=True)])


def _pairs(truth: Tensor, reconstruction: Tensor, order: Tensor) -> Iterator[tuple[Floats, Floats]]:
    """Each true image and the one that is aligned to it, target by target."""
    aligned = reconstruction.take_along_dim(order[..., None, None, None], dim=1)
    return zip(_images(truth), _images(aligned), strict=True)


def _assignment(truth: Tensor, reconstruction: Tensor) -> Tensor:
    """Which reconstruction goes to each true image, [batch_size]; least total squared error."""
    difference = truth.flatten(1).double()[:, None] - reconstruction.flatten(1).double()
    _, columns = linear_sum_assignment(difference.square().sum(-1).cpu().numpy())
    return torch.as_tensor(columns, device=truth.device)


def _images(batches: Tensor) -> Floats:
    return batches.flatten(0, 1).double().cpu().numpy()


def _score_image(truth: Floats, image: Floats, data_range: float) -> tuple[float, float, float]:
    ssim = structural_similarity(
        truth,
        image,
        win_size=SSIM_WINDOW,
        gaussian_weights=False,
        data_range=data_range,
        channel_axis=0,
    )
    return _mse(truth, image), _psnr(truth, image, data_range), ssim


def _mse(truth: Floats, image: Floats) -> float:
    return float(np.square(truth - image).mean())


def _psnr(truth: Floats, image: Floats, data_range: float) -> float:
    with np.errstate(divide="ignore"):
        psnr = 10 * np.log10(data_range**2 / np.float64(_mse(truth, image)))
    return min(float(psnr), PSNR_CAP)
