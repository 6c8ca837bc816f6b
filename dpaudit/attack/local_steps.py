"""Local training, simulated on images that an attacker makes up, so that it can be differentiated.

A message after several local steps depends on its records through every step. The attacker plays
the steps with dummies in the place of the records (Dimitrov et al. 2022, arXiv:2206.12395; Geiping
et al. 2020, arXiv:2003.14053, section 6). ``Gradients`` gives the slopes of a step, and autograd
what lies between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isinf

import torch
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.files.local_training import LocalTraining
from dpaudit.models.gradients import Gradients
from dpaudit.models.recomputed import recomputed_sum


@dataclass(frozen=True)
class DummyGradient(dp.Gradient):
    """The oracle of an agent's local steps on dummies, which its values can be differentiated in.

    Step s has the next ``sizes[s]`` rows of the dummies, from the first one again behind the last.
    """

    gradients: Gradients
    images: Tensor  # [m, n, channels, height, width]
    labels: Tensor  # [m, n], or probabilities [m, n, n_classes]
    sizes: tuple[int, ...]  # records of each step
    keeps: bool = False  # keep what slopes need, instead of computing it again: faster, more memory
    step: int = 0

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.sizes[self.step]

    def at_step(self, s: int) -> "DummyGradient":
        return replace(self, step=s)

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.clipped_sum(X, inf, holders) / self.batch_size

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        x, y = self._batch(holders)
        C = None if isinf(clip_norm) else clip_norm
        if norm == 2 and not (self.keeps and torch.is_grad_enabled()):
            return recomputed_sum(self.gradients, X, x, y, C)
        if C is None:
            return self.gradients.differentiable_sum(X, x, y)
        return self.gradients.clipped_sum(X, x, y, C, norm, create_graph=True)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        x, y = self._batch(holders)
        if not own:
            return self.gradients.per_record(X, x, y, create_graph=True)
        one_each = x.flatten(0, 1)[:, None], y.flatten(0, 1)[:, None]
        records = replace(self, images=one_each[0], labels=one_each[1], sizes=(1,), step=0)
        return records.clipped_sum(X.flatten(0, 1), inf).view(X.shape)

    def _batch(self, holders: Tensor | None) -> tuple[Tensor, Tensor]:
        start = sum(self.sizes[: self.step]) % self.images.shape[1]
        rows = slice(start, start + self.batch_size)
        x, y = self.images[:, rows], self.labels[:, rows]
        return (x, y) if holders is None else (x[holders], y[holders])


def local_steps(
    training: LocalTraining, sizes: Sequence[int], clip_norm: float | None = None
) -> dp.LocalSimulation:
    """The steps of a known optimiser, of so many records each."""

    def moved(oracle: dp.Gradient, X: Tensor) -> Tensor:
        optimize = _adamw if training.optimizer == "adamw" else _sgd
        return optimize(training, oracle, X, len(sizes), inf if clip_norm is None else clip_norm)

    passes = training.epochs if training.shuffled else 1
    adaptive = training.optimizer == "adamw"
    reach = training.reach(len(sizes))
    return dp.LocalSimulation(tuple(sizes), reach, moved, passes, is_adaptive=adaptive)


def _sgd(training: LocalTraining, oracle: dp.Gradient, X: Tensor, n: int, C: float) -> Tensor:
    """What ``torch.optim.SGD`` takes from models, without dampening."""
    mu, v, total = training.momentum, torch.zeros_like(X), torch.zeros_like(X)
    for s in range(n):
        now, here = oracle.at_step(s), X - total
        g = now.clipped_sum(here, C) / now.batch_size + training.weight_decay * here
        v = mu * v + g
        total = total + training.learning_rate * (g + mu * v if training.nesterov else v)
    return total


def _adamw(training: LocalTraining, oracle: dp.Gradient, X: Tensor, n: int, C: float) -> Tensor:
    """The same of ``torch.optim.AdamW``. Where a gradient is 0 so is the slope of its root."""
    eta, (beta1, beta2) = training.learning_rate, training.betas
    m, v, total = torch.zeros_like(X), torch.zeros_like(X), torch.zeros_like(X)
    for s in range(n):
        now, here = oracle.at_step(s), X - total
        g = now.clipped_sum(here, C) / now.batch_size
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g.square()
        moved = v > 0
        root = torch.where(moved, v.where(moved, 1.0).sqrt(), 0.0)
        spread = root / (1 - beta2 ** (s + 1)) ** 0.5 + training.eps
        step = m / (1 - beta1 ** (s + 1)) / spread + training.weight_decay * here
        total = total + eta * step
    return total


def outer_gradients(models: Tensor, learning_rate: float, momentum: float) -> Tensor:
    """What Nesterov's outer steps were taken along, [T, d], from the models around [T + 1, d].

    With m_0 = 0, round t of DiLoCo, as ``torch.optim.SGD`` takes it, is
        m_t = mu m_(t-1) + D_t,   x_t = x_(t-1) - eta (D_t + mu m_t)
    so that u_t = (x_(t-1) - x_t) / eta gives m_t = (u_t + mu m_(t-1)) / (1 + mu), D_t = m_t - mu
    m_(t-1). Whoever hears the models from a later round on, and so takes m for 0 there, is wrong by
    mu / (1 + mu) < 1/2 of the error before in each round.

    Source: Douillard et al. 2023, DiLoCo, Algorithm 1, arXiv:2311.08105.
    """
    m, found = torch.zeros_like(models[0]), []
    for u in (models[:-1] - models[1:]) / learning_rate:
        before, m = m, (u + momentum * m) / (1 + momentum)
        found.append(m - momentum * before)
    return torch.stack(found)
