"""All that a reconstruction is handed, and what it hands back: no truth is reachable from here."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dpaudit.kept import NOT_KEPT, Kept
from dpaudit.models.gradients import Gradients
from dpaudit.progress import OnStep
from dpaudit.rng import Streams


@dataclass(frozen=True)
class Task:
    """What is public about the learning problem: the architecture and the form of a record."""

    gradients: Gradients
    shape: tuple[int, ...]  # channels, height, width
    n_classes: int
    value_range: tuple[float, float]  # of a pixel
    kept: Kept = NOT_KEPT  # where a long reconstruction keeps how far it is
    contrast: float = 0.125  # mean step between neighbouring pixels of public images, half ranges


@dataclass(frozen=True, eq=False)
class Observed:
    """Gradients of m victims as an adversary derived them from its view, and where they were taken.

    Each is, up to noise and a factor that the adversary may not know, the mean of the victim's
    clipped per-record gradients at ``models``.
    """

    gradients: Tensor  # [m, d]
    models: Tensor  # [m, d]
    batch_size: int  # records behind each gradient; public
    clip_norm: float | None  # L2 clip of each record's gradient; public
    std: Tensor | None = None  # [m], of the noise in each coordinate of a gradient; None: not known


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What the attack believes the batches were; chosen by its own loss, never by the truth."""

    images: Tensor  # [m, batch_size, channels, height, width], within the value range
    labels: Tensor  # [m, batch_size]
    losses: Tensor  # [m, n_restarts], the attacker's least loss of each restart
    notes: tuple[str, ...] = ()  # what the attacker knows to be out of reach, and why


Reconstruct = Callable[[Observed, Task, Streams, OnStep], Reconstruction]
