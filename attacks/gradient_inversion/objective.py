"""What an attacker minimises: how far simulated gradients are from observed ones, and a prior."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

import dpaudit.attack as da

from .local import disagreement, n_dummies, repeated, simulated

Mismatch = Literal["l1", "cosine", "chord", "euclidean", "likelihood"]

_TINY = 1e-12  # squared: where the chord's slope ends
_COLOUR = 3.0  # times the grey step's weight: colours of public images vary far less than that
_ORDER = 1.0  # weight of what mean images of several passes differ by
_LOGITS = 12.0  # width of the box of a label's logit: softmax reaches 1 - 1e-5 at its ends


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss of dummy batches as explanations of what was observed of their victims.

    The attacker simulates the victim's message: the mean over the batch of per-record gradients,
    clipped as publicly known, at the known model, or that of all local steps (`local`). With s and
    t the simulated and the observed gradient [d], as unit vectors for the first three, the mismatch
    is
        l1           ||t - <s, t> s||_1 / ||t||_1, what of t lies off the direction of s
        cosine       1 - <s, t>
        chord        |s - t|, whose square is twice the cosine's
        euclidean    |s - t|^2 / |t|^2
        likelihood   |s - t|^2 / (d std^2), whose mean at the truth is 1
    so that the last two need a message whose factor is known. Of several gradients of one batch the
    likelihoods add up, and other mismatches are averaged.

    The prior is a Laplace distribution of scale b on the step between neighbouring pixels, hence
    sum |step| / b in -log p(images). Steps of colour images are those of the mean channel, and
    three times those of each channel's distance from it, as colours vary less than brightness.
    Where public images have a frame of one value, the steps to it count as well. In
    the likelihood the prior has the weight that Bayes' rule gives it, 2 / d beside the mismatch,
    which is (-log p(t | images) - log p(images)) 2 / d. The others know no noise, and weigh the
    mean step, along rows plus along columns and in half value ranges, by ``total_variation``.
    Beside the chord one weight suits all batches of a size: that of a prior beside a distance that
    is not squared need not follow how near the gradients can come (Belloni, Chernozhukov and Wang
    2011, arXiv:1009.5689).

    Of several passes over the records in orders of their own the mean images must agree: ``_ORDER``
    times the mean square of what they differ by, in half value ranges.

    Points [k, D] are batches of images, and behind them the labels' logits where these are unknown.
    """

    observed: da.ObservedGradients
    task: da.Task
    labels: Tensor | None  # [m, batch_size]; None: found along with the images, as in DLG
    mismatch: Mismatch
    total_variation: float  # weight; for the likelihood 1 / b

    def images(self, points: Tensor) -> Tensor:
        """The dummies [k, n_dummies, channels, height, width] of points [k, D]."""
        shape = (n_dummies(self.observed), *self.task.shape)
        return points[:, : torch.Size(shape).numel()].unflatten(1, shape)

    def labels_of(self, points: Tensor, victims: Tensor) -> Tensor:
        """The labels [k, n_dummies] of points, or [k, n_dummies, n_classes] if unknown.

        Those of a record are the same in each pass, as its place is where the order is not known.
        """
        if self.labels is not None:
            return repeated(self.labels[victims], self.observed)
        low, high = self.task.value_range
        shape = (self.observed.batch_size, self.task.n_classes)
        logits = points[:, -shape[0] * shape[1] :].unflatten(1, shape)
        return repeated(((logits - low) / (high - low) * _LOGITS).softmax(-1), self.observed)

    def __call__(self, points: Tensor, victims: Tensor) -> Tensor:
        """Losses [k] of points [k, D] as explanations of what was observed of victims [k]."""
        observed, images = self.observed, self.images(points)
        labels = self.labels_of(points, victims)
        of, rows = self._pairs(victims)
        asked = images.index_select(0, of), labels.index_select(0, of)
        mismatches = self._mismatch(simulated(observed, self.task, rows, *asked), rows)
        losses = mismatches.new_zeros(len(points)).index_add(0, of, mismatches)
        if self.mismatch != "likelihood":
            losses = losses / of.bincount()
        low, high = self.task.value_range
        half = (high - low) / 2
        if self.total_variation:
            losses = losses + self._weight(images) * _total_variation(self._framed(images) / half)
        if observed.local is not None and observed.local.passes > 1:
            losses = losses + _ORDER * disagreement(images / half, observed.local.passes)
        return losses

    def _pairs(self, victims: Tensor) -> tuple[Tensor, Tensor]:
        """Each point with each gradient of its victim: numbers of points, and of gradients."""
        secrets = self.observed.secrets
        if secrets is None:
            return torch.arange(len(victims), device=victims.device), victims
        of, rows = (secrets == victims[:, None]).nonzero(as_tuple=True)
        return of, rows

    def _mismatch(self, s: Tensor, rows: Tensor) -> Tensor:
        t = self.observed.gradients[rows]
        if self.mismatch == "likelihood":
            assert self.observed.std is not None  # else it is not chosen
            return (s - t).square().mean(1) / self.observed.std[rows] ** 2
        if self.mismatch == "euclidean":
            return (s - t).square().sum(1) / t.square().sum(1)
        s, t = _unit(s), _unit(t)
        if self.mismatch != "l1":
            squared = (s - t).square().sum(1)  # precise near 0, where 1 - <s, t> is not
            return squared / 2 if self.mismatch == "cosine" else (squared + _TINY).sqrt()
        explained = (s * t).sum(1, keepdim=True).clamp(min=0) * s
        return (t - explained).abs().sum(1) / t.abs().sum(1)

    def _framed(self, images: Tensor) -> Tensor:
        """Images with the frame of public images around them."""
        frame = self.task.frame
        return images if frame is None else pad(images, (1, 1, 1, 1), value=frame)

    def _weight(self, images: Tensor) -> float:
        """Weight of the mean step between pixels, relative to the mismatch."""
        if self.mismatch != "likelihood":
            return self.total_variation
        return 2 * self.total_variation * images[0].numel() / self.task.gradients.d


def first_logits(likely: Tensor, task: da.Task) -> Tensor:
    """Where logits start, [m, batch_size * n_classes].

    Args:
        likely: [m, batch_size, n_classes], 1 at the guessed labels and 0 elsewhere.
    """
    low, high = task.value_range
    return (low + (high - low) * (0.4 + 0.2 * likely)).flatten(1)


def _unit(vectors: Tensor) -> Tensor:
    tiny = torch.finfo(vectors.dtype).tiny
    return vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp(min=tiny)


def _total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, along rows plus along columns, [k].

    That of the mean channel, and ``_COLOUR`` times that of each channel's distance from the mean.
    """
    if images.shape[2] == 1:
        return _mean_step(images)
    grey = images.mean(dim=2, keepdim=True)
    return _mean_step(grey) + _COLOUR * _mean_step(images - grey)


def _mean_step(images: Tensor) -> Tensor:
    across, down = images.diff(dim=-1), images.diff(dim=-2)
    return across.abs().flatten(1).mean(1) + down.abs().flatten(1).mean(1)
