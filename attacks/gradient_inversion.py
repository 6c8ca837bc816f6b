"""Gradient inversion: images whose gradient at the known model is the one that was observed."""

from functools import partial
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from dpaudit.attack import Observed, OnStep, Reconstruction, ReconstructionAttack, Task
from dpaudit.rng import Streams

from .labels import infer_labels
from .lbfgs import lbfgs
from .optimizers import Minimum, Objective, adam

_ROUNDING = 1e-11  # a relative squared mismatch at which float32 gradients agree
_MEMORY = 2**30  # bytes: problems beyond are attacked in the next chunk
_COPIES = 8  # of the per-record gradients, alive while they are differentiated


class GradientInversion(ReconstructionAttack):
    """Optimise dummy images until their gradient matches the observed one.

    The attacker simulates the victim's message: the mean over the batch of per-record gradients,
    clipped as publicly known, at the known model, with labels inferred first. All victims and
    restarts are one batched optimisation. Each keeps its best iterate, and each victim its best
    restart, by the attacker's own loss.

    Source: Geiping et al. 2020, arXiv:2003.14053 (cosine objective, total variation, signed Adam);
    Zhu et al. 2019, arXiv:1906.08935 (euclidean objective, L-BFGS). Departures: the simulated
    gradient is clipped as the victim's is, and images stay in the value range by projection.
    """

    optimizer: Literal["adam", "lbfgs"] = "adam"
    objective: Literal["cosine", "euclidean"] = "cosine"
    total_variation: NonNegativeFloat = 0.0
    signed: bool = True  # adam follows the signs of the gradient
    restarts: PositiveInt = 4
    iterations: PositiveInt = 300
    learning_rate: PositiveFloat = 0.1  # of adam, in half value ranges

    def reconstruct(
        self, observed: Observed, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        """Attack all observed gradients; the result does not depend on how they are chunked.

        Raises:
            NotObservable: labels cannot be inferred, the network has no last linear layer.
        """
        m, B = len(observed.gradients), observed.batch_size
        labels = infer_labels(observed, task, streams("attack", "labels"))
        starts = self._starts(m, B, task, streams).to(observed.models)
        size = max(1, _MEMORY // (_COPIES * B * observed.models[0].nbytes))
        chunks = torch.arange(len(starts), device=starts.device).split(size)
        minima = []
        for i, chunk in enumerate(chunks):
            objective = partial(self._losses, observed, task, labels, chunk)
            progress = partial(_progress, on_step, i, len(chunks))
            minima.append(self._minimise(objective, starts[chunk], task, progress))
        return self._best_restarts(minima, labels, (B, *task.shape))

    def _starts(self, m: int, B: int, task: Task, streams: Streams) -> Tensor:
        """Standard normal images in units of half the value range, projected, [m * r, D]."""
        generator = streams("attack", "start")
        low, high = task.value_range
        size = (m * self.restarts, B * torch.Size(task.shape).numel())
        z = torch.randn(size, generator=generator, device=generator.device)
        return ((low + high) / 2 + (high - low) / 2 * z).clamp(low, high)

    def _losses(
        self,
        observed: Observed,
        task: Task,
        labels: Tensor,
        chunk: Tensor,
        points: Tensor,
        problems: Tensor,
    ) -> Tensor:
        victims = chunk[problems] // self.restarts
        images = points.unflatten(1, (observed.batch_size, *task.shape))
        simulated = task.gradients.clipped_sum(
            observed.models[victims], images, labels[victims], observed.clip_norm, create_graph=True
        )
        target = observed.gradients[victims]
        losses = self._mismatch(simulated / observed.batch_size, target)
        if self.total_variation:
            losses = losses + self.total_variation * _total_variation(images)
        return losses

    def _mismatch(self, simulated: Tensor, target: Tensor) -> Tensor:
        """1 - cosine, or the squared distance relative to the target's squared norm; [k]."""
        if self.objective == "cosine":  # as half a squared distance: precise near 0
            return (_unit(simulated) - _unit(target)).square().sum(1) / 2
        return (simulated - target).square().sum(1) / target.square().sum(1)

    def _minimise(
        self, objective: Objective, starts: Tensor, task: Task, on_step: OnStep
    ) -> Minimum:
        bounds, tolerance = task.value_range, _ROUNDING
        if self.optimizer == "lbfgs":
            return lbfgs(objective, starts, self.iterations, bounds, tolerance, on_step)
        rate = self.learning_rate * (bounds[1] - bounds[0]) / 2
        return adam(
            objective, starts, self.iterations, rate, self.signed, bounds, tolerance, on_step
        )

    def _best_restarts(
        self, minima: list[Minimum], labels: Tensor, shape: tuple[int, ...]
    ) -> Reconstruction:
        points = torch.cat([minimum.points for minimum in minima])
        losses = torch.cat([minimum.losses for minimum in minima]).unflatten(0, (-1, self.restarts))
        points = points.unflatten(0, (-1, self.restarts))
        chosen = points[torch.arange(len(points), device=points.device), losses.argmin(1)]
        return Reconstruction(chosen.unflatten(1, shape), labels, losses)


def _unit(vectors: Tensor) -> Tensor:
    tiny = torch.finfo(vectors.dtype).tiny
    return vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp(min=tiny)


def _total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference between neighbouring pixels, over columns and rows, [k]."""
    steps = (images.diff(dim=-1), images.diff(dim=-2))
    return sum((s.abs().flatten(1).mean(1) for s in steps), start=images.new_zeros(()))


def _progress(on_step: OnStep, chunk: int, n_chunks: int, done: int, total: int) -> None:
    on_step(chunk * total + done, n_chunks * total)
