"""What is done to samples before an estimate, and its name: project, rescale, break ties.

Functions of a private variable and of a view never share more information than the two did (the
data-processing inequality), so a value found after a reduction still is a lower bound, up to the
error of the estimate. Rescaling single columns loses nothing at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from dpaudit.errors import ConfigError, DataError

from .estimators import as_samples, check_varies
from .neighbours import Floats

TIE_BREAKING = 1e-10  # width of the uniform noise added to every value, as in NPEET
CROWDED = 0.05  # share of neighbouring values that may lie closer than ten times that noise
UNEVEN = 1e3  # largest ratio between the standard deviations of columns left as they are

Scaling = Literal["standardise", "normal-scores", "none"]


class EstimatorWarning(UserWarning):
    """The samples are of a kind that the estimator cannot read well; the text names the remedy."""


class ReducedSamples(NamedTuple):
    """Samples that are ready for an estimator, and what was done to them."""

    samples: Floats  # [n, dims]
    name: str  # "784 -> PCA 3 (91% of variance), standardised"
    concerns: tuple[str, ...]  # what the estimator cannot read well, and the remedy
    repeating: Floats | None  # the samples before noise was added, where that noise decides


@dataclass(frozen=True, eq=False)
class Reduction:
    """How one side of the estimate is reduced.

    ``scale``: ``standardise`` every column to mean 0 and variance 1 (max-norm distances then weigh
    all alike); or to ``normal-scores``, the normal quantiles of its ranks, with ties broken at
    random, which outliers and repeated values cannot harm; or ``none``, as NPEET would see it.

    ``n_components``: keep as many leading principal components of the standardised columns, fitted
    without a look at the other side. ``projection``: or multiply by this [dims, m] matrix, such as
    the combination of messages that a protocol-aware adversary would form, named ``named``.
    """

    scale: Scaling = "standardise"
    n_components: int | None = None
    projection: Floats | None = None
    named: str = "projection"

    def __post_init__(self) -> None:
        if self.scale not in _SCALES:
            raise ConfigError(
                "DPA071", f"scale = {self.scale!r}; expected one of {', '.join(_SCALES)}"
            )
        if self.n_components is not None and self.projection is not None:
            raise ConfigError(
                "DPA071", "n_components and projection; expected one of the two at most"
            )

    def __call__(self, name: str, values: ArrayLike, rng: np.random.Generator) -> ReducedSamples:
        """Reduce samples [n] or [n, dims], called ``name`` in errors, to [n, m].

        Raises:
            DataError: values that are not finite, or a constant column.
        """
        samples, note = self._projected(name, as_samples(name, values))
        check_varies(name, samples)
        rescale, adjective = _SCALES[self.scale]
        samples = rescale(samples, rng)
        repeats, uneven = _repeats(samples), _uneven(samples) if self.scale == "none" else ()
        concerns = (*repeats, *uneven)
        noisy = break_ties(samples, rng)
        return ReducedSamples(noisy, f"{note}, {adjective}", concerns, samples if repeats else None)

    def _projected(self, name: str, samples: Floats) -> tuple[Floats, str]:
        dims = samples.shape[1]
        if self.n_components is not None:
            components, share = _principal(name, samples, self.n_components)
            return components, f"{dims} -> PCA {self.n_components} ({share:.0%} of variance)"
        if self.projection is not None:
            matrix = as_samples(f"{name} projection", self.projection)
            if len(matrix) != dims:
                raise DataError(
                    "DPA073",
                    f"{name}: projection of shape {list(matrix.shape)} for {dims} columns; "
                    f"expected [{dims}, m]",
                )
            return samples @ matrix, f"{dims} -> {self.named} {matrix.shape[1]}"
        return samples, f"{dims}"


def break_ties(samples: Floats, rng: np.random.Generator) -> Floats:
    """The samples with uniform noise of width 1e-10 added, as NPEET does."""
    return samples + TIE_BREAKING * rng.random(samples.shape)


def _principal(name: str, samples: Floats, n_components: int) -> tuple[Floats, float]:
    """The leading principal components [n, m] of the varying columns; their share of variance."""
    varying = samples[:, np.ptp(samples, axis=0) > 0]
    most = min(len(samples) - 1, varying.shape[1])
    if not 1 <= n_components <= most:
        raise ConfigError(
            "DPA073",
            f"{name}: n_components = {n_components}; expected 1 to {most}, the number of columns "
            "that vary (or of samples less one)",
        )
    left, size, _ = np.linalg.svd(_standardised(varying), full_matrices=False)
    share = (size[:n_components] ** 2).sum() / (size**2).sum()
    return left[:, :n_components] * size[:n_components], float(share)


def _standardised(samples: Floats, rng: np.random.Generator | None = None) -> Floats:
    columns = np.ascontiguousarray(samples.T)
    centred = columns - columns.mean(axis=1, keepdims=True)
    return (centred / columns.std(axis=1, keepdims=True)).T


def _normal_scores(samples: Floats, rng: np.random.Generator) -> Floats:
    """Normal quantiles of the ranks of each column; equal values are ranked in random order."""
    shuffled = rng.permutation(len(samples))
    ranks = np.empty(samples.shape)
    for column in range(samples.shape[1]):
        order = shuffled[np.argsort(samples[shuffled, column], kind="stable")]
        ranks[order, column] = np.arange(len(samples))
    return ndtri((ranks + 0.5) / len(samples))


_SCALES: dict[str, tuple[Callable[[Floats, np.random.Generator], Floats], str]] = {
    "standardise": (_standardised, "standardised"),
    "normal-scores": (_normal_scores, "normal scores"),
    "none": (lambda samples, rng: samples, "as given"),
}


def _repeats(samples: Floats) -> tuple[str, ...]:
    ascending = np.sort(np.ascontiguousarray(samples.T), axis=1)
    share = (np.diff(ascending, axis=1) < 10 * TIE_BREAKING).mean(axis=1)
    return tuple(
        f"values of column {column} repeat, or crowd together beside outliers, closer than the "
        'tie-breaking noise, which then decides the estimate; reduce with scale="normal-scores"'
        for column in np.flatnonzero(share > CROWDED)
    )


def _uneven(samples: Floats) -> tuple[str, ...]:
    spread = samples.std(axis=0)
    if spread.max() <= UNEVEN * spread.min():
        return ()
    return (
        f"column {spread.argmax()} is wider than column {spread.argmin()} by more than {UNEVEN:g} "
        'and hides it from max-norm distances; reduce with scale="standardise"',
    )
