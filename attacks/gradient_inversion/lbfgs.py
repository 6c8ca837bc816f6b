"""L-BFGS in a box for many independent problems at once."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.kept import NOT_KEPT, Kept
from dpaudit.progress import OnStep

from .optimizers import Minimum, Problems, progress, resumed

_MEMORY = 10  # pairs of steps and gradient differences
_SUFFICIENT = 1e-4  # Armijo: of the decrease that the slope promises
_HALVINGS = 20  # of the step, before a search is given up
_CURVATURE = 1e-8  # least cosine between a step and its gradient difference
_FIRST = 0.05  # of the box: the longest coordinate of a step without curvature to scale it


class _State(NamedTuple):
    """Where the open problems stand; every tensor has one row per problem."""

    problems: Tensor  # [k]
    points: Tensor  # [k, D]
    losses: Tensor  # [k]
    gradients: Tensor  # [k, D]
    S: Tensor  # [k, memory, D] steps, newest last; zero where nothing is remembered
    Y: Tensor  # [k, memory, D] gradient differences

    def rows(self, mask: Tensor) -> "_State":
        return _State(*(tensor[mask] for tensor in self))


def lbfgs(problems: Problems, n_steps: int, on_step: OnStep, kept: Kept = NOT_KEPT) -> Minimum:
    """Limited-memory BFGS with a backtracking line search along the projected path.

    Coordinates that rest on a bound and would leave the box are held for the step, so that the
    quasi-Newton direction is taken in the free coordinates only. A problem that is solved, or that
    no step along steepest descent improves, is left alone. Problems share nothing but the pass in
    which they are evaluated.

    Source: Nocedal and Wright 2006, Algorithms 7.4 and 3.1; Bertsekas 1982 for the box.
    """
    start, rows = problems.start, torch.arange(len(problems.start), device=problems.start.device)
    losses, gradients = problems.slopes(start, rows)
    empty = start.new_zeros(len(start), _MEMORY, start.shape[1])
    state = _State(rows, start, losses, gradients, empty, empty)
    best = Minimum(start.clone(), losses.clone())
    done, best, state = resumed(kept.last(), best, state)
    for step in range(done + 1, n_steps + 1):
        state = state.rows((state.losses > problems.tolerance) & state.losses.isfinite())
        if len(state.problems) == 0:
            break
        state = _step(problems, state)
        best.improve(state.problems, state.points, state.losses)
        kept.keep(partial(progress, step, best, state))
        on_step(step, n_steps)
    on_step(n_steps, n_steps)
    kept.done(progress(n_steps, best, state))
    return best


def _step(problems: Problems, state: _State) -> _State:
    free = _free(state.points, state.gradients, problems.bounds)
    reduced = state.gradients * free
    direction = -_two_loop(reduced, state.S * free[:, None], state.Y * free[:, None]) * free
    slopes = (direction * state.gradients).sum(1)
    uphill = slopes >= 0
    direction = torch.where(uphill[:, None], -reduced, direction)
    unscaled = uphill | (state.S[:, -1] == 0).all(1)
    longest = direction.abs().amax(1).clamp(min=torch.finfo(direction.dtype).tiny)
    first = torch.where(unscaled, _FIRST * problems.width / longest, 1.0)
    return _search(problems, state, direction, first.minimum(problems.width / longest))


def _free(points: Tensor, gradients: Tensor, bounds: tuple[float, float]) -> Tensor:
    low = (points <= bounds[0]) & (gradients > 0)
    high = (points >= bounds[1]) & (gradients < 0)
    return (~(low | high)).to(points.dtype)


def _two_loop(q: Tensor, S: Tensor, Y: Tensor) -> Tensor:
    """H q [k, D] with H the inverse Hessian estimate; pairs without curvature are passed over."""
    products = (S * Y).sum(2)  # [k, memory]
    usable = products > _CURVATURE * S.norm(dim=2) * Y.norm(dim=2)
    rho = torch.where(usable, 1 / products.where(usable, 1), 0)
    gamma = torch.ones_like(q[:, 0])
    alphas = []
    for i in reversed(range(S.shape[1])):
        alpha = rho[:, i] * (S[:, i] * q).sum(1)
        q = q - alpha[:, None] * Y[:, i]
        alphas.append(alpha)
    for i in range(S.shape[1]):
        newest = products[:, i] / (Y[:, i] ** 2).sum(1).where(usable[:, i], 1)
        gamma = torch.where(usable[:, i], newest, gamma)
    q = gamma[:, None] * q
    for i, alpha in zip(range(S.shape[1]), reversed(alphas), strict=True):
        beta = rho[:, i] * (Y[:, i] * q).sum(1)
        q = q + (alpha - beta)[:, None] * S[:, i]
    return q


def _search(problems: Problems, state: _State, direction: Tensor, lengths: Tensor) -> _State:
    """Halve each problem's step until it decreases the loss enough."""
    points, losses, gradients = (t.clone() for t in state[1:4])
    waiting = torch.arange(len(lengths), device=lengths.device)
    for _ in range(_HALVINGS):
        here = state.points[waiting]
        tried = (here + lengths[waiting, None] * direction[waiting]).clamp(*problems.bounds)
        new, slopes = problems.slopes(tried, state.problems[waiting])
        promised = (state.gradients[waiting] * (tried - here)).sum(1)
        enough = (new <= state.losses[waiting] + _SUFFICIENT * promised) & (promised < 0)
        done = waiting[enough]
        points[done], losses[done], gradients[done] = tried[enough], new[enough], slopes[enough]
        waiting = waiting[~enough]
        if len(waiting) == 0:
            break
        lengths = lengths / 2
    return _remember(state, points, losses, gradients, waiting)


def _remember(
    state: _State, points: Tensor, losses: Tensor, gradients: Tensor, failed: Tensor
) -> _State:
    S = torch.cat([state.S[:, 1:], (points - state.points)[:, None]], dim=1)
    Y = torch.cat([state.Y[:, 1:], (gradients - state.gradients)[:, None]], dim=1)
    stuck = torch.zeros_like(losses, dtype=torch.bool)
    stuck[failed] = (state.S[failed, -1] == 0).all(1)  # it was steepest descent already
    S[failed], Y[failed] = 0, 0  # forget, and try steepest descent next
    return _State(state.problems, points, losses, gradients, S, Y).rows(~stuck)
