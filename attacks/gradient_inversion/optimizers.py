"""Minimisers of many independent problems at once, each point a row of one stacked tensor."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from dpaudit.kept import NOT_KEPT, Kept, Progress, joined, under
from dpaudit.progress import OnStep

_REPORT_EVERY = 10  # steps


class Problems(NamedTuple):
    """p independent minimisations in one box."""

    objective: Callable[[Tensor, Tensor], Tensor]  # points [k, D], problems [k] -> losses [k]
    start: Tensor  # [p, D]
    bounds: tuple[float, float]  # of every coordinate
    tolerance: float  # a problem is solved, and left alone, once its loss is at most this

    @property
    def width(self) -> float:
        """Of the box; 1 where it has no end."""
        width = self.bounds[1] - self.bounds[0]
        return width if math.isfinite(width) else 1.0

    def slopes(self, points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [k] and gradients [k, D]; a loss that is no number counts as infinite."""
        points = points.detach().requires_grad_()
        losses = self.objective(points, problems)
        (gradients,) = torch.autograd.grad(losses.sum(), points)
        return losses.detach().nan_to_num(nan=torch.inf), gradients.nan_to_num(0.0, 0.0, 0.0)


class Minimum(NamedTuple):
    """The best point that each problem met, by its own loss, and that loss."""

    points: Tensor  # [p, D]
    losses: Tensor  # [p]

    def improve(self, problems: Tensor, points: Tensor, losses: Tensor) -> None:
        """Keep those of ``points`` [k, D] that are better than what their problems [k] have."""
        better = losses < self.losses[problems]
        self.points[problems[better]] = points[better]
        self.losses[problems[better]] = losses[better]


class _Moments(NamedTuple):
    """The open problems of Adam; every tensor has one row per problem."""

    problems: Tensor  # [k]
    points: Tensor  # [k, D]
    mean: Tensor  # [k, D] of the gradient
    square: Tensor  # [k, D] of the gradient

    def step(self, gradient: Tensor, k: int, rate: float, box: tuple[float, float]) -> "_Moments":
        """Adam's step k = 1, 2, ..., projected into the box."""
        mean, square = self.mean.lerp(gradient, 0.1), self.square.lerp(gradient**2, 0.001)
        spread = (square / (1 - 0.999**k)).sqrt() + 1e-8
        points = self.points - rate / (1 - 0.9**k) * mean / spread
        return _Moments(self.problems, points.clamp(*box), mean, square)


def adam(
    problems: Problems,
    n_steps: int,
    learning_rate: float,
    signed: bool,
    on_step: OnStep,
    kept: Kept = NOT_KEPT,
) -> Minimum:
    """Projected Adam with a learning rate that falls to 0 along half a cosine.

    With ``signed`` it is fed the signs of the gradient. Long steps at the start, across much of
    the box, are what frees a problem from the kinks of rectifiers and pooling.

    Source: Kingma and Ba 2015, Algorithm 1, arXiv:1412.6980 (beta 0.9 and 0.999, epsilon 1e-8);
    signs: Geiping et al. 2020, arXiv:2003.14053; schedule: Loshchilov and Hutter 2017, eq. (5)
    without restarts, arXiv:1608.03983.
    """
    start = problems.start
    best = Minimum(start.clone(), torch.full_like(start[:, 0], torch.inf))
    rows = torch.arange(len(start), device=start.device)
    state = _Moments(rows, start, torch.zeros_like(start), torch.zeros_like(start))
    done, best, state = resumed(kept.last(), best, state)
    for step in range(done + 1, n_steps + 1):
        losses, gradient = problems.slopes(state.points, state.problems)
        best.improve(state.problems, state.points, losses)
        unsolved = losses > problems.tolerance
        if not unsolved.all():
            state, gradient = _Moments(*(t[unsolved] for t in state)), gradient[unsolved]
        if len(state.problems) == 0:
            break
        rate = learning_rate * (1 + math.cos(math.pi * (step - 1) / n_steps)) / 2
        gradient = gradient.sign() if signed else gradient
        state = state.step(gradient, step, rate, problems.bounds)
        kept.keep(partial(progress, step, best, state))
        if step % _REPORT_EVERY == 0:
            on_step(step, n_steps)
    on_step(n_steps, n_steps)
    kept.done(progress(n_steps, best, state))
    return best


Rows = TypeVar("Rows", bound=tuple[Tensor, ...])


def progress(step: int, best: Minimum, state: tuple[Tensor, ...]) -> Progress:
    """After a step: the best so far, and where the open problems stand."""
    own = {str(i): tensor for i, tensor in enumerate(state)}
    return Progress(joined({"best": best._asdict(), "open": own}), step)


def resumed(last: Progress | None, best: Minimum, state: Rows) -> tuple[int, Minimum, Rows]:
    """Steps done, the best so far, and the open problems: those given, if nothing was kept."""
    if last is None:
        return 0, best, state
    own = under(last.tensors, "open")
    kept = type(state)(*(own[str(i)] for i in range(len(own))))
    return last.note, Minimum(**under(last.tensors, "best")), kept
