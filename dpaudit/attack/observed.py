"""All that a reconstruction is handed, and what it hands back: no truth is reachable from here."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpaudit.checkpoint import NO_CHECKPOINT, Checkpoint
from dpaudit.defense.local_simulation import LocalSimulation
from dpaudit.models.gradients import Gradients
from dpaudit.progress import OnStep
from dpaudit.rng import Streams

_SAME = 1e-5  # models that differ by less, relative to their norm, are equal


@dataclass(frozen=True)
class Task:
    """What is public about the learning problem: the architecture and the form of a record."""

    gradients: Gradients
    shape: tuple[int, ...]  # channels, height, width
    n_classes: int
    value_range: tuple[float, float]  # range of a pixel
    checkpoint: Checkpoint = NO_CHECKPOINT  # saves the progress of a long reconstruction
    contrast: float = 0.125  # mean step between neighbouring pixels of public images, half ranges
    frame: float | None = None  # pixel at the border of all public images, where it is one value


@dataclass(frozen=True, eq=False)
class ObservedGradients:
    """m gradients as an adversary derived them from its view, and where they were taken.

    Each is, up to noise and a factor that the adversary may not know, the mean of a victim's
    clipped per-record gradients at ``models``, or, with ``local``, the mean of those of local steps
    that start there. Several may be of one batch, a secret: noise of different ones is taken to be
    independent.
    """

    gradients: Tensor  # [m, d]
    models: Tensor  # [m, d]
    batch_size: int  # records behind each gradient; public
    clip_norm: float | None  # L2 clip of each record's gradient; public
    std: Tensor | None = None  # [m], of the noise in each coordinate of a gradient; None: not known
    secrets: Tensor | None = None  # [m], which batch 0, 1, ... each is of; None: each of its own
    local: LocalSimulation | None = None  # how each was made; None: in one step

    @property
    def n_secrets(self) -> int:
        return len(self.models) if self.secrets is None else int(self.secrets.max()) + 1

    @property
    def most_joined(self) -> int:
        """The most gradients that one secret has."""
        return 1 if self.secrets is None else int(self.secrets.bincount().max())

    def by_secret(self, rows: Tensor) -> Tensor:
        """The mean of rows [m, ...] by inverse variances for each secret, [n_secrets, ...]."""
        return rows if self.secrets is None else _mean(rows, *_weighed(self.std, self.secrets))

    def surest(self) -> "ObservedGradients":
        """One gradient of each secret: the least noisy, or the first where that is not known."""
        if self.secrets is None:
            return self
        std = torch.zeros_like(self.models[:, 0]) if self.std is None else self.std
        order = std.argsort(stable=True)
        return replace(self._rows(order[_firsts(self.secrets[order])]), secrets=None)

    def pooled(self) -> "ObservedGradients":
        """Gradients of one secret at one model averaged, by inverse variances where known.

        Noise of equal variance in r gradients leaves a mean of 1 / r of it.
        """
        if self.secrets is None:
            return self
        groups = self._at_one_model(self.secrets)
        weights, std = _weighed(self.std, groups)[1], self.std
        pooled = self._rows(_firsts(groups))
        if std is not None:
            total = std.new_zeros(len(pooled.models)).index_add(0, groups, weights)
            std = _least(std, groups) / total.sqrt()
        return replace(pooled, gradients=_mean(self.gradients, groups, weights), std=std)

    def _rows(self, rows: Tensor) -> "ObservedGradients":
        std, secrets = (None if t is None else t[rows] for t in (self.std, self.secrets))
        models, gradients = self.models[rows], self.gradients[rows]
        return replace(self, gradients=gradients, models=models, std=std, secrets=secrets)

    def _at_one_model(self, secrets: Tensor) -> Tensor:
        """Numbers [m] of secrets at models, in the order in which they first occur."""
        groups, firsts = list[int](), list[int]()
        for i in range(len(secrets)):
            here = [n for n, first in enumerate(firsts) if secrets[first] == secrets[i]]
            known = [(n, self.models[firsts[n]]) for n in here]
            alike = [n for n, X in known if (X - self.models[i]).norm() <= _SAME * X.norm()]
            if not alike:
                alike, firsts = [len(firsts)], [*firsts, i]
            groups.append(alike[0])
        return torch.tensor(groups, device=secrets.device)


@dataclass(frozen=True, eq=False)
class Trace:
    """What an attack would have handed back, had it stopped after some of its iterations.

    Who has the truth scores the images. They are all in memory: 20 iterations are plenty.
    """

    iterations: tuple[int, ...]  # t of them, ascending
    losses: Tensor  # [m, t], the attacker's own; NaN for a victim that no search was made for
    images: Tensor  # [m, t, batch_size, channels, height, width]


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What the attack believes the batches were; chosen by its own loss, never by the truth."""

    images: Tensor  # [m, batch_size, channels, height, width], within the value range
    labels: Tensor  # [m, batch_size]
    losses: Tensor  # [m, n_restarts], the attacker's least loss of each restart
    notes: tuple[str, ...] = ()  # what the attacker knows it cannot reconstruct, and why
    trace: Trace | None = None  # how the search went, if there was one


Reconstruct = Callable[[ObservedGradients, Task, Streams, OnStep], Reconstruction]


def _firsts(groups: Tensor) -> Tensor:
    """The first row of each of the groups 0, 1, ... [m]."""
    return torch.stack([(groups == i).nonzero()[0, 0] for i in range(int(groups.max()) + 1)])


def _least(std: Tensor, groups: Tensor) -> Tensor:
    """The least of each group."""
    least = std.new_full((int(groups.max()) + 1,), torch.inf)
    return least.scatter_reduce(0, groups, std, "amin")


def _weighed(std: Tensor | None, groups: Tensor) -> tuple[Tensor, Tensor]:
    """The groups, and each row's inverse variance as a share of the largest of its group, [m].

    1 where no noise is known. Beside a row without noise a noisy one has none.
    """
    if std is None:
        return groups, torch.ones_like(groups)
    least = _least(std, groups)[groups]
    return groups, torch.where(std == least, torch.ones_like(std), (least / std).square())


def _mean(rows: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of each group's rows [m, ...]."""
    weights = weights.to(rows)
    total = weights.new_zeros(int(groups.max()) + 1).index_add(0, groups, weights)
    shares = (weights / total[groups]).view(-1, *[1] * (rows.ndim - 1))
    return rows.new_zeros(len(total), *rows.shape[1:]).index_add(0, groups, shares * rows)
