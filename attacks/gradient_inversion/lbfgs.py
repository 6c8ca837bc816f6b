"""L-BFGS in a box for many independent problems at once."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from .search import Iterate, Problems

_PAIRS = 100  # of steps and gradient differences, at most: ill-conditioned problems need many
_REMEMBERED = 2**18  # coordinates of steps that a problem remembers, where that allows _FEWEST
_FEWEST = 10  # pairs
_SUFFICIENT = 1e-4  # Armijo: of the decrease that the slope promises
_HALVINGS = 20  # of the step, before a search is given up
_CURVATURE = 1e-8  # least cosine between a step and its gradient difference
_FIRST = 0.05  # of the box: the longest coordinate of a step without curvature to scale it


class Pairs(NamedTuple):
    """Steps and gradient differences of each problem, in slots that are filled in turn."""

    P: Tensor  # [k, 2 n, D], the steps, then the differences; zero where nothing is remembered
    Q: Tensor  # [k, 2 n, 2 n], their products P P'
    gamma: Tensor  # [k], s'y / y'y of the newest pair; 0 where nothing is remembered

    @property
    def n(self) -> int:
        return self.P.shape[1] // 2


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS with a backtracking line search along the projected path.

    Coordinates that rest on a bound and would leave the box are held for the step; what a pair
    says of coordinates that its step did not move is not remembered. The inverse Hessian H is
    applied in its compact form, from products of the pairs that are kept up to date, so that a
    step passes twice over what is remembered. A problem that no step along steepest descent
    improves is left out.

    Source: Nocedal and Wright 2006, Algorithm 3.1; Byrd, Nocedal and Schnabel 1994, eq. (3.5), for
    the compact form; Bertsekas 1982 for the box.
    """

    plans_its_end: ClassVar[bool] = False

    def memory(self, start: Tensor) -> tuple[Tensor, ...]:
        p, D = start.shape
        n = _n_pairs(D)
        P, Q = start.new_zeros(p, 2 * n, D), start.new_zeros(p, 2 * n, 2 * n)
        return Pairs(P, Q, start.new_zeros(p))

    def step(self, problems: Problems, now: Iterate, k: int, n_steps: int) -> Iterate:
        pairs = Pairs(*now.memory)
        free = _free(now.points, now.gradients, problems.bounds)
        reduced = now.gradients * free
        direction = -_newton(pairs, reduced, k) * free
        uphill = ~((direction * now.gradients).sum(1) < 0)
        direction = torch.where(uphill[:, None], -reduced, direction)
        longest = direction.abs().amax(1).clamp(min=torch.finfo(direction.dtype).tiny)
        first = torch.where(uphill | (pairs.gamma == 0), _FIRST * problems.width / longest, 1.0)
        lengths = first.minimum(problems.width / longest)
        after, failed = _search(problems, now, direction, lengths)
        stuck = failed & (pairs.gamma == 0)  # it was steepest descent already
        _remember(pairs, after.points - now.points, after.gradients - now.gradients, failed, k)
        return after.rows(~stuck)


def _n_pairs(D: int) -> int:
    return max(_FEWEST, min(_PAIRS, D, _REMEMBERED // D))


def _free(points: Tensor, gradients: Tensor, bounds: tuple[float, float]) -> Tensor:
    low = (points <= bounds[0]) & (gradients > 0)
    high = (points >= bounds[1]) & (gradients < 0)
    return (~(low | high)).to(points.dtype)


def _newton(pairs: Pairs, g: Tensor, k: int) -> Tensor:
    """H g [k, D] with H the inverse Hessian estimate at step k.

    With R the upper triangle of S'Y, E its diagonal, p = S'g, q = Y'g and u = R^-1 p,
        H g = gamma g + S R^-T ((E + gamma Y'Y) u - gamma q) - gamma Y u.
    """
    n = pairs.n
    oldest_first = (torch.arange(n, device=g.device) + (k - 1)) % n
    order = torch.cat([oldest_first, n + oldest_first])
    Q = pairs.Q[:, order][:, :, order].double()
    gamma = torch.where(pairs.gamma > 0, pairs.gamma, 1)[:, None, None].double()
    E = Q[:, :n, n:].diagonal(dim1=1, dim2=2)[:, :, None]
    R = Q[:, :n, n:].triu() + torch.diag_embed((E[:, :, 0] == 0).to(Q))  # rows of I for no pair
    p, q = (pairs.P @ g[:, :, None])[:, order].double().split(n, dim=1)
    u = torch.linalg.solve_triangular(R, p, upper=True)
    inner = E * u + gamma * (Q[:, n:, n:] @ u - q)
    top = torch.linalg.solve_triangular(R.mT, inner, upper=False)
    weights = torch.cat([top, -gamma * u], dim=1)[:, order.argsort()]
    return gamma[:, 0].to(g) * g + (weights.mT.to(g) @ pairs.P)[:, 0]


def _search(
    problems: Problems, now: Iterate, direction: Tensor, lengths: Tensor
) -> tuple[Iterate, Tensor]:
    """Halve each problem's step until it decreases the loss enough; and which [k] never did."""
    points, losses, gradients = (t.clone() for t in now[1:4])
    waiting = torch.arange(len(lengths), device=lengths.device)
    for _ in range(_HALVINGS):
        here = now.points[waiting]
        tried = (here + lengths[waiting, None] * direction[waiting]).clamp(*problems.bounds)
        new, slopes = problems.slopes(tried, now.problems[waiting])
        promised = (now.gradients[waiting] * (tried - here)).sum(1)
        enough = (new <= now.losses[waiting] + _SUFFICIENT * promised) & (promised < 0)
        done = waiting[enough]
        points[done], losses[done], gradients[done] = tried[enough], new[enough], slopes[enough]
        waiting = waiting[~enough]
        if len(waiting) == 0:
            break
        lengths = lengths / 2
    failed = torch.zeros_like(losses, dtype=torch.bool).index_fill(0, waiting, True)
    return Iterate(now.problems, points, losses, gradients, now.memory), failed


def _remember(pairs: Pairs, s: Tensor, y: Tensor, failed: Tensor, k: int) -> None:
    """Put the pair of step k in the place of the oldest; forget all where a search failed."""
    n, (P, Q, gamma) = pairs.n, pairs
    y = y * (s != 0)
    products = (s * y).sum(1)
    usable = products > _CURVATURE * s.norm(dim=1) * y.norm(dim=1)
    slots = [(k - 1) % n, n + (k - 1) % n]
    new = torch.stack([s, y], dim=1) * usable[:, None, None]
    P[:, slots] = new
    Q[:, slots] = new @ P.mT
    Q[:, :, slots] = Q[:, slots].mT
    gamma.copy_(torch.where(usable, products / (y * y).sum(1).where(usable, 1), gamma))
    for kept in pairs:
        kept[failed] = 0
