"""Minimisers of many independent problems at once, each point a row of one stacked tensor."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Objective = Callable[[Tensor, Tensor], Tensor]  # points [k, D], problems [k] -> losses [k]
OnStep = Callable[[int, int], None]  # steps done, steps in all

_REPORT_EVERY = 10  # steps


class Minimum(NamedTuple):
    """The best point that each problem met, by its own loss, and that loss."""

    points: Tensor  # [p, D]
    losses: Tensor  # [p]

    def improve(self, problems: Tensor, points: Tensor, losses: Tensor) -> None:
        """Keep those of ``points`` [k, D] that are better than what their problems [k] have."""
        better = losses < self.losses[problems]
        self.points[problems[better]] = points[better]
        self.losses[problems[better]] = losses[better]


def adam(
    objective: Objective,
    start: Tensor,
    n_steps: int,
    learning_rate: float,
    signed: bool,
    bounds: tuple[float, float],
    tolerance: float,
    on_step: OnStep,
) -> Minimum:
    """Projected Adam, its learning rate cut tenfold after 3/8, 5/8 and 7/8 of the steps.

    Args:
        start: [p, D], one point per problem.
        signed: use the signs of the gradient for the gradient.
        bounds: the box onto which every coordinate is projected.
        tolerance: a problem is solved, and left alone, once its loss is at most this.

    Source: Kingma and Ba 2015, Algorithm 1, arXiv:1412.6980 (beta 0.9 and 0.999, epsilon 1e-8);
    signs and schedule: Geiping et al. 2020, arXiv:2003.14053.
    """
    best = Minimum(start.clone(), torch.full_like(start[:, 0], torch.inf))
    problems = torch.arange(len(start), device=start.device)
    points, mean, square = start, torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, n_steps + 1):
        losses, gradient = evaluate(objective, points, problems)
        best.improve(problems, points, losses)
        open_ = losses > tolerance
        if not open_.any():
            break
        if not open_.all():
            problems, gradient = problems[open_], gradient[open_]
            points, mean, square = points[open_], mean[open_], square[open_]
        if signed:
            gradient = gradient.sign()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = learning_rate * 0.1 ** sum(8 * (step - 1) >= k * n_steps for k in (3, 5, 7))
        moved = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        points = (points - rate * moved).clamp(*bounds)
        if step % _REPORT_EVERY == 0:
            on_step(step, n_steps)
    on_step(n_steps, n_steps)
    return best


def evaluate(objective: Objective, points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [k] and their gradients [k, D]; what is not finite counts as no loss, no slope."""
    points = points.detach().requires_grad_()
    losses = objective(points, problems)
    (gradient,) = torch.autograd.grad(losses.sum(), points)
    return losses.detach().nan_to_num(nan=torch.inf), gradient.nan_to_num(0.0, 0.0, 0.0)
