"""The contract of attacks: evidence from what an adversary holds, and no verdict."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import Tensor

from dpaudit.models.gradients import Gradients
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.strict import Strict


@dataclass(frozen=True)
class Task:
    """What is public about the learning problem: the architecture and the form of a record."""

    gradients: Gradients
    shape: tuple[int, ...]  # channels, height, width
    n_classes: int
    value_range: tuple[float, float]  # of a pixel


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


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What the attack believes the batches were; chosen by its own loss, never by the truth."""

    images: Tensor  # [m, batch_size, channels, height, width], within the value range
    labels: Tensor  # [m, batch_size]
    losses: Tensor  # [m, n_restarts], the attacker's final loss of each restart


Chooses = Mapping[str, tuple[str, ...]]  # option -> the tables of a defense that name its values


class ReconstructionAttack(Strict, ABC):
    """Reconstructs training images from gradients that the adversary derived from its view."""

    chooses: ClassVar[Chooses] = {"message": ("observables",)}

    message: str  # which observable of the defense is attacked
    rounds: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    targets: PositiveInt = 8  # victims in each round
    batch_sizes: tuple[PositiveInt | Literal["training"], ...] = ("training", 1)
    threat_models: tuple[str, ...] | None = None  # names; None: all of the audit

    @abstractmethod
    def reconstruct(
        self, observed: Observed, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        """Attack all observed gradients in one batched optimisation."""
