"""What a view leaks about one record: what each use adds, and what bounds all uses together.

A use u moves the whitened view by x_u times a known column s_u, with x_u drawn or certain: uses of
one inclusion share their draw. Where uses of several inclusions meet in a round, the view is a
mixture over all draws with correlated shifts. It is a part of releases that are accounted one by
one: with diag(y) - H psd, H being the Gram matrix of all columns, sum_u s_u s_u' / y_u is at most
the identity, so that

    sum_u x_u s_u + noise = sum_u s_u / sqrt(y_u) (x_u sqrt(y_u) + own noise) + what is left of it

reveals no more than, for each inclusion, a Gaussian release of mu^2 = the sum of its uses' y_u,
sampled as the inclusion is. It holds for any directions of the uses, and for any law of the draws.

A record whose gradients have one direction wherever they are taken moves the view by

    sum_j x_j c_j + noise,    c_j = sum of the s_u of inclusion j,

of which an adversary may read one number, along w: the shifts w'c_j that are drawn, under noise of
variance 1. That is a lower end (``met``). It is far above what inclusions reveal one by one where
their columns are alike, as those of local steps are whose noise is drawn once.

Elsewhere gradients differ by the model that they are taken at: u_t is a vector of length at most 1
that is the use's own. Between them lie inner products, and the leak of the worst directions is

    mu^2 = S(H) = max { sum_st H_st <u_s, u_t> : |u_t| <= 1 } = max { <H, X> : X psd, diag X <= 1 };

the second equality holds for models of at least as many coordinates as uses. 1'H1 <= S(H) <= sum
|H_st|, with equality where no H_st is negative. Weights y with diag(y) - H psd are a certificate:
<H, X> <= <diag(y), X> <= sum y.

Source: the participation bounds of Choquette-Choo et al. 2023, arXiv:2211.06530; low-rank ascent as
in Burer and Monteiro 2003; the program by its dual barrier, Newton's method as in Boyd and
Vandenberghe 2004, section 11.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.lapack import dposv, dpotrf, dpotri
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from dpaudit.accounting.releases import Interval, Mechanism, Meeting
from dpaudit.defense.gossip import releases
from dpaudit.game.game import Game
from dpaudit.game.matrices import RANK, Array, Matrix, times

MOST = 1000  # uses of which the program is solved; beyond, the ends that need no solution
SWEEPS = 500
CLOSE = 1e-10  # relative gain of a sweep at which it ends
GAP = 1e-6  # relative gap between the two ends at which the program counts as solved
NEWTON = 60  # steps at most
SHRINKS = 0.1  # the gap that a step aims at, of the gap before
ROUNDING = 1e-10  # negative entries whose sum is a smaller share of the total are rounding
NEGLIGIBLE = 1e-12  # loss in nats that changes no epsilon anyone reads
EVERY_ROUND = 0  # the inclusion that stands for a record used in all rounds


class CertifiedSize(NamedTuple):
    """S(H) for models of any dimension, with weights y [k] for which diag(y) - H is psd."""

    low: float
    high: float  # sum y, or sum |H| where that is less
    y: Tensor


def worst_directions(H: Tensor, d: int) -> Interval:
    """S(H) of a Gram matrix [k, k], for gradients of ``d`` coordinates.

    ``low`` is attained by directions in d coordinates. ``high`` holds for any d.
    """
    k = len(H)
    same = float(H.sum())  # one direction for all uses
    if k == 0 or float(H.min()) >= 0:
        return Interval(same, same)
    solved = certified(H)
    if d >= k:
        return Interval(solved.low, solved.high)
    if d < 2 or k > MOST:
        return Interval(same, solved.high)
    V = _ascended(H, min(d, ceil(sqrt(2 * k)) + 1))
    low = max(same, float((H @ V * V).sum()))
    return Interval(low, max(low, solved.high))


def certified(H: Tensor, gap: float = GAP) -> CertifiedSize:
    """S(H) of a Gram matrix [k, k] from both sides, to a relative ``gap`` unless k > ``MOST``."""
    if not H.isfinite().all():
        raise ValueError("a Gram matrix has entries that are not finite")
    sums = H.abs().sum(1)
    same, most = float(H.sum()), float(sums.sum())
    if most - same <= ROUNDING * most:
        return CertifiedSize(same, most, sums)
    apart = float(H.diagonal().sum())  # a coordinate for each use
    if len(H) > MOST:
        return CertifiedSize(max(same, apart), most, sums)
    low, y = _by_barrier(H.double().numpy(), gap)
    low, high = max(low, same, apart), float(y.sum())
    if most < high:
        return CertifiedSize(low, max(low, most), sums)
    return CertifiedSize(low, max(low, high), torch.from_numpy(y))


def _by_barrier(H: Array, gap: float) -> tuple[float, Array]:
    """Newton's method on sum y - t logdet(diag y - H), with t falling.

    A value that is attained, by D Z^-1 D with Z = diag(y) - H and D so that its diagonal is 1; and
    y, for which Z has a Cholesky factor, raised by what that leaves open to rounding.
    """
    k, scale = len(H), float(np.trace(H)) / len(H)
    H = H / scale
    y = 1.1 * np.abs(H).sum(1) + 1e-3
    low, best, high = -inf, y, inf
    for _ in range(NEWTON):
        L, _ = dpotrf(np.diag(y) - H, lower=1, clean=1)
        inverse, _ = dpotri(L, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        w = inverse.diagonal()
        D = 1 / np.sqrt(w)
        low = max(low, float(D @ (H * inverse) @ D))
        if y.sum() < high:
            best, high = y, float(y.sum())
        if high - low <= gap * low:
            break
        t = SHRINKS * (high - low) / k
        _, step, failed = dposv(inverse**2, w - 1 / t, lower=1)
        if failed or not np.isfinite(step).all():
            break
        y = y + _within(H, y, step) * step
    rounding = k * np.finfo(float).eps * float(best.max())
    return low * scale, (best + rounding) * scale


def _within(H: Array, y: Array, step: Array) -> float:
    """How much of a step keeps diag(y) - H positive definite, with some room."""
    part = 1.0
    while dpotrf(np.diag(y + part * step) - H, lower=1)[1] != 0:
        part *= 0.7
    return part if part == 1 else 0.9 * part


def _ascended(H: Tensor, rank: int) -> Tensor:
    """Unit vectors [k, rank], each in turn set to the best one given the others."""
    generator = torch.Generator().manual_seed(0)
    V = torch.randn(len(H), rank, generator=generator, dtype=H.dtype)
    V = V / V.norm(dim=1, keepdim=True)
    value = float((V * (H @ V)).sum())
    for _ in range(SWEEPS):
        for i in range(len(H)):
            g = H[i] @ V - H[i, i] * V[i]
            length = g.norm()
            if length > 0:
                V[i] = g / length
        before, value = value, float((V * (H @ V)).sum())
        if value - before <= CLOSE * abs(value):
            break
    return V


Use = tuple[int, int, int]  # use of the record: (inclusion, round, point)
Columns = Mapping[Use, Tensor]  # use -> its effect on a round's innovations, [rank]


def grams(
    rounds: Iterable[Columns], group: Callable[[Use], int]
) -> dict[int, tuple[list[Use], Tensor]]:
    """Uses of each group, and the Gram matrix of their columns over all rounds."""
    rounds, uses = list(rounds), dict[int, dict[Use, int]]()  # group -> use -> its place
    for columns in rounds:
        for use in columns:
            places = uses.setdefault(group(use), {})
            places.setdefault(use, len(places))
    found = {j: torch.zeros(len(p), len(p), dtype=torch.float64) for j, p in uses.items()}
    for columns in rounds:
        groups: dict[int, list[Use]] = {}
        for use in columns:
            groups.setdefault(group(use), []).append(use)
        for j, here in groups.items():
            S = torch.stack([columns[use] for use in here])
            at = torch.tensor([uses[j][use] for use in here])
            found[j][at[:, None], at] += S @ S.mT
    return {j: (list(uses[j]), H) for j, H in found.items()}


class Together(NamedTuple):
    """All uses of a view, and the Gram matrix of their columns over all rounds."""

    uses: list[Use]
    H: Tensor

    @classmethod
    def of(cls, rounds: Iterable[Columns]) -> "Together":
        (found,) = grams(rounds, lambda use: 0).values() or [([], torch.zeros(0, 0))]
        return cls(*found)

    def independent(self) -> dict[int, float]:
        """By inclusion, mu^2 of releases of which the view is a part, as above."""
        squares: dict[int, float] = {}
        y = certified(self.H).y.clamp(min=0)
        for use, square in zip(self.uses, y.tolist(), strict=True):
            squares[use[0]] = squares.get(use[0], 0.0) + square
        return squares

    def inclusions(self, n: int) -> Tensor:
        """The Gram matrix of the c_j of inclusions 1 to n, [n, n]."""
        at = torch.tensor([use[0] - 1 for use in self.uses], dtype=torch.int64)
        rows = torch.zeros(n, len(at), dtype=self.H.dtype).index_add(0, at, self.H)
        return torch.zeros(n, n, dtype=self.H.dtype).index_add(1, at, rows)


class Met(NamedTuple):
    """A number that shows several inclusions: each moves it by no less than ``shift``."""

    shift: float  # in standard deviations of the noise
    n: int  # inclusions


def met(G: Tensor) -> Met:
    """The number along the sum of all c_j, of their Gram matrix [n, n]: of those it shows most.

    The record's gradient is shorter where it would move it by more, and 0 where by less.
    """
    length = float(G.sum().clamp(min=0).sqrt())
    if length == 0:
        return Met(0.0, 0)
    shifts = (G.sum(1) / length).sort(descending=True).values
    most = int((shifts * torch.arange(1, len(shifts) + 1)).argmax())
    return Met(max(0.0, float(shifts[most])), most + 1)


def parts(G: Tensor, least: float) -> list[Tensor]:
    """Inclusions that hang together by entries above ``least``: noise of others is not theirs."""
    _, part = connected_components((G.abs() > least).numpy(), directed=False)
    by_part = torch.from_numpy(np.argsort(part, kind="stable"))
    return list(by_part.split(np.bincount(part).tolist()))


class RoundReading(NamedTuple):
    """How the adversary reads one round."""

    messages: list[tuple[str, int]]  # (message or draw, row) of each observation
    whiten: Matrix  # [n_observations, rank]: to independent noise of variance 1
    gain: Matrix  # [rank, width]: what whitened innovations reveal of the state
    # what each use of the record adds here to the first innovations [m]; to others it adds nothing
    columns: dict[Use, Tensor]
    shifts: dict[int, Tensor]  # summed by inclusion: the gradient is the same at all points
    resolved: Tensor  # [rank] bool: whether an innovation is well above rounding in a run
    shown: dict[int, Tensor]  # inclusion -> combination of observations that shows it without noise
    noiseless: dict[int, str]  # inclusion -> message that shows it without noise at some point
    draws: Matrix  # [m, n_draws]: the noise of the round itself as it is estimated
    laplace: Tensor  # [n_draws] bool
    exact: bool  # whether every Laplace draw of the round is recovered exactly
    has_laplace: bool  # whether there is any

    def reveals(self) -> dict[int, float]:
        """By round whose batches this one reveals: how well.

        In mu, or the loss of Laplace noise; infinite where it shows them without noise.
        """
        found: dict[int, float] = {}
        for inclusion, k, _ in self.columns:
            size = inf if inclusion in self.noiseless else self._size(self.shifts[inclusion])
            if size > NEGLIGIBLE:
                found[k] = max(found.get(k, 0.0), size)
        return found

    def _size(self, shift: Tensor) -> float:
        if not self.has_laplace:
            return float(shift.norm())
        return float(times(shift, self.draws)[self.laplace].abs().sum()) * sqrt(2)


@dataclass(frozen=True)
class Leak:
    """All that a view reveals about one record, in standard deviations of the noise.

    A record's gradient is taken at several points, which differ by model or round, and has another
    direction at each: mu is that of the worst directions.
    """

    by_use: tuple[Interval, ...]  # mu^2 of a record in that batch alone, or used in all rounds
    noiseless: dict[int, str]  # use -> message that shows the record without noise
    pure: Tensor  # loss of a record used there under Laplace noise, by use; else nan
    parts: tuple[float, ...]  # the losses of single Laplace draws, of a record used in all rounds
    separate: bool  # whether a record in one batch shows in that round alone, with no other batch
    has_laplace: bool
    batches: int = 1  # batches in a round, as consecutive uses
    apart: tuple[float, ...] | None = None  # mu^2 of independent releases of which this is a part
    together: Tensor | None = None  # Gram matrix of the inclusions of one direction; None: separate

    @property
    def by_round(self) -> Tensor:
        """mu of a record in one batch of that round alone, the worst; infinite: no noise."""
        mu = torch.tensor([sqrt(squared.low) for squared in self.by_use], dtype=torch.float64)
        return mu.view(-1, self.batches).amax(1) if len(mu) > 1 else mu

    @property
    def shown(self) -> tuple[int, str] | None:
        """The first round in which a message shows the record without noise, and the message."""
        for j, message in self.noiseless.items():
            return max(1, -(-j // self.batches)), message
        return None

    @property
    def is_pure(self) -> bool:
        """Whether the view gives every Laplace draw that hides the record."""
        return bool((~self.pure.isnan()).all()) and len(self.pure) > 0

    @property
    def is_proven(self) -> bool:
        """Whether the mu of the view is of Gaussian noise, or the losses of single draws are known.

        What a view gives of Laplace draws that it does not recover is neither family.
        """
        return self.is_pure or not self.has_laplace

    def mechanism(self, game: Game, in_round: int | None, high: bool = False) -> Mechanism:
        """The leak as releases: of one round, of each, or of all together if all use the record.

        Args:
            high: of the upper ends of mu.
        """
        if self.is_pure and self.parts and not self.noiseless:
            return releases([1 / loss for loss in self.parts], "none", 1.0, "laplace")
        ends = [sqrt(squared.high if high else squared.low) for squared in self.by_use]
        if high and self.apart is not None:
            ends = [sqrt(square) for square in self.apart]
        size = self.pure.tolist() if self.is_pure else ends
        if in_round is not None:
            size = size[(in_round - 1) * self.batches : in_round * self.batches]
        shifts = [shift for shift in size if shift > NEGLIGIBLE]
        return game.releases(shifts, "laplace" if self.is_pure else "gaussian") if shifts else ()

    def meetings(self, game: Game, in_round: int | None) -> list[list[Meeting]]:
        """What a record of one direction shows wherever batches meet, in each of two ways.

        It has that direction in the whole run, or another one in each round.
        """
        G = self.together
        if G is None or not G.any() or self.has_laplace or self.noiseless:
            return []
        if in_round is not None:
            its = slice((in_round - 1) * self.batches, in_round * self.batches)
            G = G[its, its]
        ways = [parts(G, RANK * float(G.diagonal().max()))]
        if 1 < self.batches < len(G) and len(G) <= self.batches * game.directions:
            ways.append(list(torch.arange(len(G)).split(self.batches)))
        found = [[met(G[block[:, None], block]) for block in way] for way in ways]
        return [
            [Meeting(game.releases([shift])[0], n) for shift, n in way if shift > NEGLIGIBLE]
            for way in found
        ]


def leak_of(rounds: list[RoundReading], game: Game) -> Leak:
    """The exact leak of each round's use of the record, through this round and all later."""
    used = [EVERY_ROUND] if game.is_lasting else [*range(1, len(rounds) * game.batches + 1)]
    size = sqrt(game.filled)  # over all layers; a reading is of one
    columns = [{use: size * column for use, column in r.columns.items()} for r in rounds]
    H = dict.fromkeys(used, torch.zeros(0, 0, dtype=torch.float64))
    H |= {j: found for j, (_, found) in grams(columns, lambda use: use[0]).items()}
    pure = dict.fromkeys(used, 0.0)
    noiseless, parts = dict[int, str](), list[float]()
    for r in rounds:
        for j, shift in r.shifts.items():
            draws = times(shift, r.draws)
            moved = draws[r.laplace].abs() * sqrt(2)
            is_pure = r.exact and r.has_laplace and not draws[~r.laplace].abs().sum() > NEGLIGIBLE
            pure[j] += game.filled * moved.sum().item() if is_pure else float("nan")
            if j == EVERY_ROUND:
                parts += moved[moved > NEGLIGIBLE].tolist() * game.filled
        for j, message in r.noiseless.items():
            pure[j] = inf
            noiseless.setdefault(j, message)
    d = game.directions
    by_use = tuple(
        Interval(inf, inf) if j in noiseless else worst_directions(H[j], d) for j in used
    )
    separate = _is_separate(rounds, game)
    together = None if separate else Together.of(columns)
    apart = {} if together is None else together.independent()
    return Leak(
        by_use,
        noiseless,
        torch.tensor([pure[j] for j in used], dtype=torch.float64),
        tuple(parts),
        separate,
        any(r.has_laplace for r in rounds),
        game.batches,
        None if separate else tuple(inf if j in noiseless else apart.get(j, 0.0) for j in used),
        None if together is None else together.inclusions(len(used)),
    )


def _is_separate(rounds: list[RoundReading], game: Game) -> bool:
    """Whether each inclusion shows in its own round alone, and apart from others of it.

    Columns are in standard deviations of the noise, whatever the unit of messages. One of 1e-12 or
    less is a mu that nobody reads. To leave it out changes the mu^2 of a use that it meets by 1e-12
    of that use's mu at most. Columns are apart up to ``RANK`` of the largest mu^2 of their round.
    """
    for k, r in enumerate(rounds, start=1):
        uses = [use for use, column in r.columns.items() if column.norm() > NEGLIGIBLE]
        shown = {use[0] for use in uses}
        if any(-(-j // game.batches) not in (k, EVERY_ROUND) for j in shown):
            return False
        if len(shown) > 1:  # do they move independent noise: orthogonal columns?
            S = torch.stack([r.columns[use] for use in uses])
            H, inclusions = S @ S.mT, torch.tensor([use[0] for use in uses])
            between = H[inclusions[:, None] != inclusions]
            if r.has_laplace or not between.abs().max() <= RANK * H.diagonal().max():
                return False
    return True
