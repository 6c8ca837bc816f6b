"""Gradient inversion: images whose gradient at the known model is the one that was observed."""

import math
from functools import partial
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from dpaudit.attack.observed import Observed, Reconstruction, Task
from dpaudit.attack.reconstruction import ReconstructionAttack
from dpaudit.kept import Kept
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification

from .labels import infer_labels
from .lbfgs import lbfgs
from .optimizers import Minimum, Problems, adam

# mismatches at which float32 gradients agree
_ROUNDING = {"l1": 3e-6, "cosine": 1e-11, "euclidean": 1e-11}
_MEMORY = 2**30  # bytes: problems beyond are attacked in the next chunk
_COPIES = 8  # of the per-record gradients, alive while they are differentiated
_DUMMIES = 16  # random images by which the attacker first learns how the known model answers
_REHEARSALS, _REHEARSED_STEPS = 2, 20


class GradientInversion(ReconstructionAttack):
    """Optimise dummy images until their gradient matches the observed one.

    The attacker simulates the victim's message: the mean over the batch of per-record gradients,
    clipped as publicly known, at the known model, with labels inferred first. All victims and
    restarts are one batched optimisation. Each keeps its best iterate, and each victim its best
    restart, by the attacker's own loss: mismatch plus weighted total variation.

    With s and t the simulated and the observed gradient as unit vectors, the mismatch is
        l1          ||t - <s, t> s||_1 / ||t||_1, what of t lies off the direction of s
        cosine      1 - <s, t>
        euclidean   the squared distance relative to the observed squared norm, not of unit vectors
    so that only ``euclidean`` needs a message whose factor is known.

    Source: Geiping et al. 2020, arXiv:2003.14053 (cosine, total variation, signed Adam); Zhu et al.
    2019, arXiv:1906.08935 (euclidean, L-BFGS); Deng et al. 2021, arXiv:2103.06819 (L1 beside L2).
    Departures: the simulated gradients are clipped as the victim's are; images stay in the value
    range by projection; the L1 distance is taken off the simulated direction, so that neither an
    unknown factor nor noise, which lengthens the observed gradient, counts against the truth.
    """

    optimizer: Literal["adam", "lbfgs"] = "adam"
    objective: Literal["l1", "cosine", "euclidean"] = "l1"
    total_variation: NonNegativeFloat = 0.02  # weight, with pixels in half value ranges
    signed: bool = True  # adam follows the signs of the gradient
    restarts: PositiveInt | None = None  # None: 2 for one record, 1 for a batch
    iterations: PositiveInt = 300
    learning_rate: PositiveFloat = 0.7  # of adam, in half value ranges

    def reconstruction_bytes(self, problem: Classification, n: int, batch_size: int) -> int:
        """One chunk of problems, differentiated; or the dummies by which labels are inferred."""
        shape, d = problem.dataset.x.shape[1:], problem.gradients.d
        restarts = n * self._n_restarts(batch_size)
        at_once = min(restarts, _chunk(batch_size, 4 * d))
        gathered = 2 * 4 * at_once * d
        matching = problem.gradients.graph_bytes(at_once, batch_size, shape) + 6 * gathered
        pairs = 10 if self.optimizer == "lbfgs" else 2  # what the optimiser remembers, twice
        remembered = 4 * restarts * batch_size * shape.numel() * (2 * pairs + 4)
        labels = 2 * 4 * n * d + problem.gradients.pass_bytes(n, _DUMMIES, shape)
        return max(matching, labels) + remembered

    def reconstruct(
        self, observed: Observed, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        """Attack all observed gradients.

        Labels are inferred with random dummies, and for a batch again with the images of short
        rehearsals, which answer more like the records.

        Raises:
            NotObservable: labels cannot be inferred, as the network ends in no linear layer.
        """
        starts = self._starts(observed, task, streams("attack", "start"))
        labels = infer_labels(observed, task, _dummies(observed, task, streams("attack", "labels")))
        for i in range(_REHEARSALS if observed.batch_size > 1 else 0):
            kept = task.kept.stage(f"rehearsal-{i}")
            rehearsed = self._invert(
                observed, task, labels, starts, _REHEARSED_STEPS, _silent, kept
            )
            labels = infer_labels(observed, task, rehearsed.images)
        return self._invert(observed, task, labels, starts, self.iterations, on_step, task.kept)

    def _invert(
        self,
        observed: Observed,
        task: Task,
        labels: Tensor,
        starts: Tensor,
        n_steps: int,
        on_step: OnStep,
        kept: Kept,
    ) -> Reconstruction:
        size = _chunk(observed.batch_size, observed.models[0].nbytes)
        chunks = torch.arange(len(starts), device=starts.device).split(size)
        minima = []
        for i, chunk in enumerate(chunks):
            losses = partial(self._losses, observed, task, labels, chunk)
            problems = Problems(losses, starts[chunk], task.value_range, self._tolerance)
            progress = partial(_progress, on_step, i, len(chunks))
            minima.append(self._minimise(problems, n_steps, progress, kept.stage(i)))
        return self._best_restarts(minima, labels, task.shape)

    @property
    def _tolerance(self) -> float:
        return 0.0 if self.total_variation else _ROUNDING[self.objective]

    def _n_restarts(self, batch_size: int) -> int:
        """A batch gains more from iterations, as it has many starts in it already."""
        return self.restarts or (2 if batch_size == 1 else 1)

    def _starts(self, observed: Observed, task: Task, generator: torch.Generator) -> Tensor:
        """Images near the middle of the value range, [m * restarts, D]."""
        low, high = task.value_range
        B = observed.batch_size
        size = (len(observed.models) * self._n_restarts(B), B * math.prod(task.shape))
        z = torch.randn(size, generator=generator, device=generator.device).to(observed.models)
        return ((low + high) / 2 + 0.1 * (high - low) / 2 * z).clamp(low, high)

    def _losses(
        self,
        observed: Observed,
        task: Task,
        labels: Tensor,
        chunk: Tensor,
        points: Tensor,
        problems: Tensor,
    ) -> Tensor:
        victims = chunk[problems] // self._n_restarts(observed.batch_size)
        images = points.unflatten(1, (observed.batch_size, *task.shape))
        simulated = task.gradients.clipped_sum(
            observed.models[victims], images, labels[victims], observed.clip_norm, create_graph=True
        )
        losses = self._mismatch(simulated / observed.batch_size, observed.gradients[victims])
        if self.total_variation:
            half = (task.value_range[1] - task.value_range[0]) / 2
            losses = losses + self.total_variation * _total_variation(images / half)
        return losses

    def _mismatch(self, simulated: Tensor, observed: Tensor) -> Tensor:
        if self.objective == "euclidean":
            return (simulated - observed).square().sum(1) / observed.square().sum(1)
        s, t = _unit(simulated), _unit(observed)
        if self.objective == "cosine":  # as half a squared distance: precise near 0
            return (s - t).square().sum(1) / 2
        explained = (s * t).sum(1, keepdim=True).clamp(min=0) * s
        return (t - explained).abs().sum(1) / t.abs().sum(1)

    def _minimise(self, problems: Problems, n_steps: int, on_step: OnStep, kept: Kept) -> Minimum:
        if self.optimizer == "lbfgs":
            return lbfgs(problems, n_steps, on_step, kept)
        rate = self.learning_rate * problems.width / 2
        return adam(problems, n_steps, rate, self.signed, on_step, kept)

    def _best_restarts(
        self, minima: list[Minimum], labels: Tensor, shape: tuple[int, ...]
    ) -> Reconstruction:
        m, B = labels.shape
        images = torch.cat([minimum.points for minimum in minima]).view(m, -1, B, *shape)
        losses = torch.cat([minimum.losses for minimum in minima]).view(m, -1)
        best = losses.argmin(1)
        return Reconstruction(images[torch.arange(m, device=best.device), best], labels, losses)


def _chunk(batch_size: int, model: int) -> int:
    """How many problems are attacked at once, of models of so many bytes."""
    return max(1, _MEMORY // (_COPIES * batch_size * model))


def _dummies(observed: Observed, task: Task, generator: torch.Generator) -> Tensor:
    """The same uniformly random images for every victim, [m, n, *shape]."""
    low, high = task.value_range
    z = torch.rand((_DUMMIES, *task.shape), generator=generator, device=generator.device)
    images = (low + (high - low) * z).to(observed.models)
    return images.expand(len(observed.models), *images.shape)


def _unit(vectors: Tensor) -> Tensor:
    tiny = torch.finfo(vectors.dtype).tiny
    return vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp(min=tiny)


def _total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, along rows plus along columns, [k]."""
    across, down = images.diff(dim=-1), images.diff(dim=-2)
    return across.abs().flatten(1).mean(1) + down.abs().flatten(1).mean(1)


def _silent(done: int, total: int) -> None:
    pass


def _progress(on_step: OnStep, chunk: int, n_chunks: int, done: int, total: int) -> None:
    on_step(chunk * total + done, n_chunks * total)
