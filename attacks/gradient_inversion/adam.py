"""Adam in a box for many independent problems at once."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .search import Iterate, Problems


@dataclass(frozen=True)
class Adam:
    """Projected Adam with a learning rate that falls to 0 along half a cosine.

    With ``signed`` it is fed the signs of the gradient. Long steps at the start, across much of
    the box, are what frees a problem from the kinks of rectifiers and pooling.

    Source: Kingma and Ba 2015, Algorithm 1, arXiv:1412.6980 (beta 0.9 and 0.999, epsilon 1e-8);
    signs: Geiping et al. 2020, arXiv:2003.14053; schedule: Loshchilov and Hutter 2017, eq. (5)
    without restarts, arXiv:1608.03983.
    """

    learning_rate: float  # in the unit of the points
    signed: bool

    plans_its_end: ClassVar[bool] = True

    def memory(self, start: Tensor) -> tuple[Tensor, ...]:
        """Means of the gradients and of their squares, [p, D] each."""
        return torch.zeros_like(start), torch.zeros_like(start)

    def step(self, problems: Problems, now: Iterate, k: int, n_steps: int) -> Iterate:
        gradient = now.gradients.sign() if self.signed else now.gradients
        mean = now.memory[0].lerp(gradient, 0.1)
        square = now.memory[1].lerp(gradient**2, 0.001)
        rate = self.learning_rate * (1 + math.cos(math.pi * (k - 1) / n_steps)) / 2
        spread = (square / (1 - 0.999**k)).sqrt() + 1e-8
        points = (now.points - rate / (1 - 0.9**k) * mean / spread).clamp(*problems.bounds)
        losses, gradients = problems.slopes(points, now.problems)
        return Iterate(now.problems, points, losses, gradients, (mean, square))
