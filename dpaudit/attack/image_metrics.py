"""Scores of reconstructions: MSE, PSNR and SSIM after aligning the batch, and the blind baseline.

PSNR and SSIM take the width of the value range as their data range (2 for images in [-1, 1]), and
the MSE is in squared units of it. SSIM is scikit-image's with a uniform window of 7 x 7 pixels.
"""

from collections.abc import Hashable, Sequence
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
    """A mean over n cases and its 95% interval; no Student-t interval for fewer than ``FEWEST``."""

    value: float
    low: float | None
    high: float | None
    n: int
    standard_error: float | None = None  # None: a single case, or one that is infinite


class BlindGuesses(NamedTuple):
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
    each = score_each(truth, reconstruction, value_range)
    mse, psnr, ssim = (values.mean(axis=1) for values in (each.mse, each.psnr, each.ssim))
    return Scores(mse, psnr, ssim, each.order)


def score_each(truth: Tensor, reconstruction: Tensor, value_range: tuple[float, float]) -> Scores:
    """``score`` image by image: [m, batch_size] each."""
    if truth.ndim != 5 or truth.shape != reconstruction.shape:
        raise DpauditError(
            "DPA043",
            f"reconstruction of shape {list(reconstruction.shape)} cannot be scored against "
            f"{list(truth.shape)}: expected [m, batch, channels, height, width] for both",
        )
    refuse_small(truth.shape)
    options = {"win_size": SSIM_WINDOW, "data_range": value_range[1] - value_range[0]}
    (true, found), order = _aligned(truth, reconstruction)
    ssim = [
        structural_similarity(x, y, channel_axis=0, **options)
        for x, y in zip(true, found, strict=True)
    ]
    mse, psnr = _errors(true, found, value_range)
    mse, psnr, similar = (np.reshape(each, order.shape) for each in (mse, psnr, ssim))
    return Scores(mse, psnr, similar, order)


def psnr_alone(truth: Tensor, reconstruction: Tensor, value_range: tuple[float, float]) -> Floats:
    """The PSNR that ``score`` gives, [m] in dB, without the cost of the SSIM."""
    pairs, order = _aligned(truth, reconstruction)
    psnr: Floats = _errors(*pairs, value_range)[1].reshape(order.shape).mean(axis=1)
    return psnr


def by_batch(values: ArrayLike, batches: Sequence[Hashable]) -> Floats:
    """The mean of those of the values [n] that are of one batch, [n_batches], as they first come.

    Several gradients of one batch, as of its links, share its records, so that they are not several
    cases.
    """
    x, rows = np.asarray(values, dtype=np.float64), dict[Hashable, list[int]]()
    for row, batch in enumerate(batches):
        rows.setdefault(batch, []).append(row)
    return np.array([x[own].mean() for own in rows.values()])


def estimates(scores: Scores, batches: Sequence[Hashable]) -> dict[str, Estimate]:
    """Mean and interval over the batches of each score, by name; ``batches``: of each target."""
    return {
        name: interval(by_batch(getattr(scores, name), batches), within)
        for name, within in RANGES.items()
    }


def interval(values: ArrayLike, within: tuple[float, float] = (-np.inf, np.inf)) -> Estimate:
    """Mean of independent values [n] and its 95% Student-t interval, cut to their range.

    Shares that are all 0 or all 1 do not vary: there the interval is the exact one. With a mean of
    p, n shares are all 0 with a probability of at most (1 - p)^n.
    """
    x = np.asarray(values, dtype=np.float64)
    mean, n = float(x.mean()), len(x)
    known = n > 1 and bool(np.isfinite(x).all())
    error = float(x.std(ddof=1) / np.sqrt(n)) if known else None
    if error == 0 and within == SHARE and mean in SHARE:
        reach = 1 - 0.025 ** (1 / n)
        return Estimate(mean, max(0.0, mean - reach), min(1.0, mean + reach), n, error)
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
) -> BlindGuesses:
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
    return BlindGuesses(public_images.mean(0).expand_as(random), random)


def refuse_small(shape: Sequence[int]) -> None:
    """Raises DataError: images [..., channels, height, width] are smaller than the SSIM window."""
    channels, height, width = shape[-3:]
    if min(height, width) < SSIM_WINDOW:
        raise DataError(
            "DPA033",
            f"SSIM takes a window of {SSIM_WINDOW} x {SSIM_WINDOW} pixels: expected images "
            f"[channels, height, width] of at least that size, got [{channels}, {height}, {width}]",
        )


def _aligned(truth: Tensor, reconstruction: Tensor) -> tuple[tuple[Floats, Floats], Tensor]:
    """True images and those aligned to them, [m batch_size, ...], and the order of the latter."""
    batches = []
    for t, r in zip(truth, reconstruction, strict=True):
        difference = t.flatten(1).double()[:, None] - r.flatten(1).double()
        _, columns = linear_sum_assignment(difference.square().sum(-1).cpu().numpy())
        batches.append(torch.as_tensor(columns, device=truth.device))
    order = torch.stack(batches)
    aligned = reconstruction.take_along_dim(order[..., None, None, None], dim=1)
    true, found = (t.flatten(0, 1).double().cpu().numpy() for t in (truth, aligned))
    return (true, found), order


def _errors(
    truth: Floats, images: Floats, value_range: tuple[float, float]
) -> tuple[Floats, Floats]:
    """MSE and capped PSNR of images [n, channels, height, width], [n] each."""
    mse = np.array([np.square(x - y).mean() for x, y in zip(truth, images, strict=True)])
    with np.errstate(divide="ignore"):
        psnr = 10 * np.log10((value_range[1] - value_range[0]) ** 2 / mse)
    return mse, np.minimum(psnr, PSNR_CAP)
