"""The loop that minimises many independent problems in a box at once, by Adam or another step."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import dpaudit.attack as da

_HALVED = (0.5, 0.75)  # shares of all steps after which each group goes on with its better half
_PATIENCE = 50  # steps in which a method that does not plan its end must gain something
_GAIN = 0.01  # relative gain in the loss
TRACED = 12  # moments of a search that are remembered, at most
_PAIRS = 100  # steps and gradient differences kept: ill-conditioned problems need many
_REMEMBERED = 2**18  # coordinates of steps that a problem remembers, where that allows _FEWEST
_FEWEST = 10  # pairs
_SUFFICIENT = 1e-4  # Armijo: of the decrease that the slope promises
_HALVINGS = 20  # halvings of a step before a search is given up
_CURVATURE = 1e-8  # least cosine between a step and its gradient difference
_FIRST = 0.05  # largest coordinate of a first step, relative to the box


class Problems(NamedTuple):
    """p minimisations in one box; problems of a group are restarts of the same one."""

    objective: Callable[[Tensor, Tensor], Tensor]  # points [k, D], problems [k] -> losses [k]
    start: Tensor  # [p, D]
    bounds: tuple[float, float]  # lower and upper bound of every coordinate
    tolerance: float  # a group is solved, and left alone, once a loss of it is at most this
    groups: Tensor | None = None  # [p], 0, 1, ...; None: each problem is alone

    @property
    def width(self) -> float:
        """Width of the box; 1 if it is unbounded."""
        width = self.bounds[1] - self.bounds[0]
        return width if math.isfinite(width) else 1.0

    def slopes(self, points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [k] and gradients [k, D]; one that is not finite counts as infinite."""
        points = points.detach().requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):  # other attention has no second derivatives
            losses = self.objective(points, problems)
            (gradients,) = torch.autograd.grad(losses.sum(), points)
        losses = losses.detach()
        return losses.where(losses.isfinite(), torch.inf), gradients.nan_to_num(0.0, 0.0, 0.0)


class Iterate(NamedTuple):
    """Where the open problems stand; every tensor has one row per problem."""

    problems: Tensor  # [k]
    points: Tensor  # [k, D]
    losses: Tensor  # [k]
    gradients: Tensor  # [k, D]
    memory: tuple[Tensor, ...]  # state of the method, [k, ...] each

    def rows(self, mask: Tensor) -> "Iterate":
        if mask.all():
            return self
        problems, points, losses, gradients, memory = self
        memory = tuple(tensor[mask] for tensor in memory)
        return Iterate(problems[mask], points[mask], losses[mask], gradients[mask], memory)


class Method(Protocol):
    """How an iterate becomes the next one."""

    plans_its_end: ClassVar[bool]  # whether its steps shrink to nothing by the last one

    def memory(self, start: Tensor) -> tuple[Tensor, ...]:
        """What it remembers at the points [p, D] it starts from."""
        ...

    def step(self, problems: Problems, now: Iterate, k: int, n_steps: int) -> Iterate:
        """Step k = 1, ..., n_steps; a problem that it cannot improve any more is left out."""
        ...


class Track(NamedTuple):
    """What each group would have come to, had the search ended after some of its steps."""

    losses: Tensor  # [t, g]
    points: Tensor  # [t, g, D]

    def note(self, k: int, n_steps: int, best: "Minimum", groups: Tensor) -> None:
        """From step k on the groups have what is best now, until more is noted."""
        steps = traced(n_steps)
        least = _least(best.losses, groups)
        rows = torch.arange(len(groups), device=groups.device)
        rows = rows.where(best.losses == least[groups], len(groups))
        chosen = groups.new_full((len(least),), len(groups))
        chosen = chosen.scatter_reduce(0, groups, rows, "amin")
        later = slice(bisect_left(steps, k), None)
        self.losses[later], self.points[later] = least, best.points[chosen]


def traced(n_steps: int) -> tuple[int, ...]:
    """Steps from 0 to the last one, further and further apart, ``TRACED`` at most."""
    spread = (round(n_steps ** (i / (TRACED - 2))) for i in range(TRACED - 1))
    return tuple(sorted({0, *spread}))


class Minimum(NamedTuple):
    """The best point that each problem met, by its own loss, and that loss."""

    points: Tensor  # [p, D]
    losses: Tensor  # [p]
    track: Track  # the losses of each group

    def improve(self, now: Iterate) -> None:
        """Keep those points that are better than what their problems have."""
        better = now.losses < self.losses[now.problems]
        self.points[now.problems[better]] = now.points[better]
        self.losses[now.problems[better]] = now.losses[better]


def minimise(
    problems: Problems,
    method: Method,
    n_steps: int,
    on_step: da.OnStep,
    checkpoint: da.Checkpoint = da.NO_CHECKPOINT,
) -> Minimum:
    """The best point of each problem in at most ``n_steps`` steps.

    Effort follows the losses alone: a group with a solved problem is left alone; at a half and
    at three quarters of the steps each group goes on with the better half of its restarts; and a
    problem that gained less than 1% in 50 steps of a method that plans no end is given up.

    Source: Jamieson and Talwalkar 2016 (successive halving), arXiv:1502.07943.
    """
    start, rows = problems.start, torch.arange(len(problems.start), device=problems.start.device)
    groups = rows if problems.groups is None else problems.groups
    if (last := checkpoint.last()) is not None:
        done, points, least, track, before, now = last.parts
        best, now = Minimum(points, least, Track(*track)), Iterate(*now)
    else:
        losses, gradients = problems.slopes(start, rows)
        done, now = 0, Iterate(rows, start, losses, gradients, method.memory(start))
        shape = len(traced(n_steps)), int(groups.max()) + 1
        track = Track(start.new_zeros(shape), start.new_zeros(*shape, start.shape[1]))
        best, before = Minimum(start.clone(), losses.clone(), track), losses.clone()
        best.track.note(0, n_steps, best, groups)
    marks = traced(n_steps)
    halvings = {math.ceil(share * n_steps) for share in _HALVED}
    for k in range(done + 1, n_steps + 1):
        open_groups = _least(best.losses, groups) > problems.tolerance
        now = now.rows(open_groups[groups[now.problems]] & now.losses.isfinite())
        if len(now.problems) == 0:
            best.track.note(k, n_steps, best, groups)
            break
        now = method.step(problems, now, k, n_steps)
        best.improve(now)
        if k in marks:
            best.track.note(k, n_steps, best, groups)
        if k in halvings:
            now = now.rows(_better_half(best.losses[now.problems], groups[now.problems]))
        if not method.plans_its_end and k % _PATIENCE == 0:
            gained = best.losses < (1 - _GAIN) * before
            now, before = now.rows(gained[now.problems]), best.losses.clone()
        checkpoint.keep(partial(da.Progress.of, k, *best, before, now))
        on_step(k, n_steps)
    on_step(n_steps, n_steps)
    checkpoint.done(da.Progress.of(n_steps, *best, before, now))
    return best


def _least(losses: Tensor, groups: Tensor) -> Tensor:
    """The least loss of each group."""
    least = losses.new_full((int(groups.max()) + 1,), torch.inf)
    return least.scatter_reduce(0, groups, losses, "amin")


def _better_half(losses: Tensor, groups: Tensor) -> Tensor:
    """Which problems [k] are in the better half of the open ones of their group."""
    same = groups[:, None] == groups
    better = losses[None] < losses[:, None]
    earlier = (losses[None] == losses[:, None]) & torch.ones_like(same).tril(-1)
    rank = (same & (better | earlier)).sum(1)
    return 2 * rank < same.sum(1)


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


class CurvaturePairs(NamedTuple):
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
        n = max(_FEWEST, min(_PAIRS, D, _REMEMBERED // D))
        P, Q = start.new_zeros(p, 2 * n, D), start.new_zeros(p, 2 * n, 2 * n)
        return CurvaturePairs(P, Q, start.new_zeros(p))

    def step(self, problems: Problems, now: Iterate, k: int, n_steps: int) -> Iterate:
        pairs = CurvaturePairs(*now.memory)
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


def _free(points: Tensor, gradients: Tensor, bounds: tuple[float, float]) -> Tensor:
    low = (points <= bounds[0]) & (gradients > 0)
    high = (points >= bounds[1]) & (gradients < 0)
    return (~(low | high)).to(points.dtype)


def _newton(pairs: CurvaturePairs, g: Tensor, k: int) -> Tensor:
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


def _remember(pairs: CurvaturePairs, s: Tensor, y: Tensor, failed: Tensor, k: int) -> None:
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
