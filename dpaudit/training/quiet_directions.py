"""Directions in which a message carries less noise than its data ask for.

A direction is one of the numbers of a row, or of several rows that one adversary reads: along a sum
or a difference of agents' messages noise may cancel. Where it does so in every number alike, as
correlated noise is meant to, no direction is quieter than others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.fft import dct
from scipy.special import fdtr
from torch import Tensor

from .noise_rounds import RoundMessage
from .partial_inputs import PLAYED, SILENT, NormalDirections, RoundMode

CONFIRMED = 256  # streams of noise by which a suspect is confirmed or cleared
PLAYS = 64  # plays that give directions, at most
SUSPECT = 0.35  # share of the expected variance
CERTAIN = 1e-30  # p-value, at which nothing more is played
SLACK = 0.5  # share of it that is no fault yet
MATCHED = 1e-3  # relative difference of data and noise that go the same way
ENOUGH = 100  # numbers for each row, that give the covariance of rows to 10%
WHOLE = 700  # coordinates at most whose covariance is estimated as a whole
ROWS = 2  # rows of a message whose covariance is
PAIRED = 200  # number of the pattern of spread numbers
CANCELS = 1e-8  # sums of rows with less of their variance have no noise
UNMOVED = 1e-6  # sums of rows with less of their squared data show no data


class QuietDirection(NamedTuple):
    """The most suspicious direction of a message."""

    p: float
    among: int  # number of directions that were tested
    rows: tuple[int, ...]
    share: float  # variance of the noise, of what data in this direction ask for


class _Candidate(NamedTuple):
    """A direction of rows, and the sums of squares along it, [3].

    As they are, as they would be if coordinates were independent, and if rows were, too.
    """

    rows: tuple[int, ...]
    weights: Tensor  # [rows, d]
    noise: Tensor = torch.zeros(3, dtype=torch.float64)
    data: Tensor = torch.zeros(3, dtype=torch.float64)

    def squares(self, samples: Tensor) -> Tensor:
        """Squared sums of samples [n, rows, d]."""
        weighted = samples[:, self.rows] * self.weights
        by_coordinate = weighted.sum(dim=1)
        each = by_coordinate.sum(dim=1), by_coordinate, weighted
        return torch.stack([x.square().sum() for x in each])

    @property
    def share(self) -> float:
        """The variance of the noise, over that of the data, each of what is expected."""
        return _share(self.noise) / max(_share(self.data), 1e-300)

    def p_value(self, n: int) -> float:
        return float(fdtr(n / 2, n / 2, self.share / SLACK))


def _share(squares: Tensor) -> float:
    return float(squares[0] / squares[1]) if squares[1] > 0 else 1.0


def quiet_direction(
    message: RoundMessage, loudness: float, moves: float, own: bool
) -> QuietDirection | None:
    """Among directions that noise and data go differently, or that noise seems to leave out.

    Noise and data are played along the same normal numbers. Where a step treats them alike, up to
    a scale for each coordinate, no direction is left out. Else what is left of the difference lies
    in the directions that noise leaves out, and is confirmed by noise that it was not chosen from.
    """
    return _Directions(message, loudness, moves, own).worst()


def paired(
    message: RoundMessage, loudness: float, moves: float, by_row: bool = False
) -> tuple[Tensor, Tensor]:
    """What data and noise along the same numbers make of a message, [streams, rows, d] each.

    Both are for numbers of size 1, of the gradients and of the draws; 0 where they are not finite.
    The numbers are the same in all rows, or others in each.
    """
    silent = message.play(SILENT)
    spread = NormalDirections(silent.shape[-1], by_row=by_row)
    ways = (
        RoundMode(weight=0.0, move=moves, pattern=PAIRED, spread=spread),
        RoundMode(weight=loudness, signs="unit", pattern=PAIRED, spread=spread),
    )
    if not message.is_finite(*ways):
        return torch.zeros_like(silent).double(), torch.zeros_like(silent).double()
    data, noise = ((message.play(way) - silent).double() for way in ways)
    return data / (moves * message.real.size), noise / loudness


class _Directions:
    def __init__(self, message: RoundMessage, loudness: float, moves: float, own: bool) -> None:
        self._message, self._loudness, self._moves, self._own = message, loudness, moves, own
        self._silent = message.play(SILENT)
        self._d = self._silent.shape[-1]
        self._sample: list[Tensor] = []

    def worst(self) -> QuietDirection | None:
        if self._d < 2:
            return None
        alone = self._of_rows()
        worst = self._confirmed(alone)
        if worst is not None and worst.p < CERTAIN:
            return worst
        together = self._of_several_rows()
        other = self._confirmed(together)
        among = len(alone) + len(together)
        found = [q for q in (worst, other) if q is not None]
        return min(found, key=lambda q: q.p)._replace(among=among) if found else None

    def _of_rows(self) -> list[_Candidate]:
        """Directions of the numbers of one row."""
        differ, unheard, left = self._suspects(by_row=False)
        chosen = [(r, x[s, r]) for r in differ[:8] for x in left for s in range(min(2, len(x)))]
        for r in [*differ, *unheard][:ROWS]:
            chosen += [(r, u) for u in self._of_samples(r)]
        return [_Candidate((r,), u.double()[None]) for r, u in chosen]

    def _of_several_rows(self) -> list[_Candidate]:
        """Directions of the numbers of all rows that one adversary reads.

        Where several do, all rows that any of them reads must have one first.
        """
        sets = _read_together(self._message.seen.adversaries)
        if not sets:
            return []
        differ, unheard, left = self._suspects(by_row=True)
        if not differ and not unheard:
            return []
        along = [x[0, r] for r in differ[:4] for x in left]
        every = tuple(sorted(set().union(*sets)))
        if len(sets) > 1 and self._confirmed(self._contrasts(every, along)) is None:
            return []
        return [c for rows in sets for c in self._contrasts(rows, along)]

    def _suspects(self, by_row: bool) -> tuple[list[int], list[int], list[Tensor]]:
        """Rows that noise and data go differently, those of own draws, and what is left of them."""
        data, noise = paired(self._message, self._loudness, self._moves, by_row)
        left = self._left(data, noise)
        differ = torch.stack([self._differs(x, noise) for x in left]).all(dim=0)
        unheard = (noise == 0).all(dim=-1).all(dim=0)  # own draws
        return differ.nonzero().flatten().tolist(), unheard.nonzero().flatten().tolist(), left

    def _left(self, data: Tensor, noise: Tensor) -> list[Tensor]:
        """Noise without what follows the data: by one ratio for a row, and for a coordinate."""
        there = (data != 0) & (noise != 0)
        ratio = torch.where(there, noise / torch.where(there, data, 1.0), torch.nan)
        by_row = ratio.transpose(0, 1).flatten(1).nanmedian(dim=1).values.nan_to_num()
        one = noise - by_row[:, None] * data
        if len(data) * data.shape[1] < 5 or not self._differs(one, noise).any():
            return [one]
        relative = ratio / by_row[:, None]
        by_coordinate = relative.flatten(0, 1).nanmedian(dim=0).values.nan_to_num(1.0)
        return [one, noise - by_row[:, None] * by_coordinate * data]

    def _differs(self, left: Tensor, noise: Tensor) -> Tensor:
        """Rows with more left of their noise than rounding."""
        return left.norm(dim=-1).amax(dim=0) > MATCHED * noise.norm(dim=-1).amax(dim=0)

    def _of_samples(self, row: int) -> list[Tensor]:
        """Directions with the least noise in a sample: of all, or of those that are structured."""
        if self._is_whole(self._d):
            return [u[0] for u in _least_noise(self._samples(2 * self._d, (row,)))]
        return _structured(self._samples(3 * len(self._silent), (row,))[:, 0])

    def _is_whole(self, width: int) -> bool:
        """Whether samples determine the covariance of as many numbers."""
        return width <= WHOLE and 4 * PLAYS * len(self._silent) > 1.3 * width

    def _contrasts(self, rows: tuple[int, ...], along: list[Tensor]) -> list[_Candidate]:
        """Directions of all numbers of rows with the least noise in a sample, or sums of rows along
        one direction of the numbers of each."""
        found: list[Tensor] = []
        width = len(rows) * self._d
        if self._is_whole(width):
            found += _least_noise(self._samples(2 * width, rows))
        if along:
            found += self._sums(rows, torch.stack(along))
        return [_Candidate(rows, U) for U in found]

    def _sums(self, rows: tuple[int, ...], along: Tensor) -> list[Tensor]:
        """For each direction u [n, d], that sum v of rows which has the least noise, v u^T.

        v is the smallest generalised eigenvector of the covariance of rows along u, of what that is
        where coordinates are independent.
        """
        r = len(rows)
        fourth = along.pow(4).sum(dim=-1).clamp(min=1e-300)
        numbers = (along.square().sum(dim=-1) ** 2 / fourth).min().item()  # effective number
        observed, expected = torch.zeros(2, len(along), r, r, dtype=torch.float64)
        n = 0
        for i in range(PLAYS):
            noise = self._noise(i)[:, rows]
            at = (noise @ along.mT).permute(2, 1, 0)  # [n_along, rows, samples]
            observed += at @ at.mT
            if n < 16 and n * numbers < ENOUGH * r:
                by_row = noise.transpose(0, 1).contiguous()
                for u, E in zip(along, expected, strict=True):
                    weighted = (by_row * u).flatten(1)
                    E += weighted @ weighted.mT
            n += len(noise)
            if n >= max(16, 2 * r):
                break
        found = []
        for u, S, white, used in zip(along, observed, *_whitening(expected), strict=True):
            W = white[:, used]
            v = W @ torch.linalg.eigh(W.T @ S @ W).eigenvectors[:, :1]
            found += [v * u] if used.any() else []
        return found

    def _samples(self, n: int, rows: tuple[int, ...]) -> Tensor:
        """About n samples of the noise of rows, [n, rows, d]."""
        n_plays = min(-(-n // len(self._silent)), 4 * PLAYS)
        while len(self._sample) < n_plays:
            self._sample.append(self._noise(len(self._sample)).to(self._silent))
        return torch.cat([x[:, rows] for x in self._sample[:n_plays]]).double()

    def _noise(self, i: int) -> Tensor:
        """What fresh noise adds to a message, [streams, rows, d].

        Draws that are not asked of ``Noise`` are in a silent message, too: there, two differ.
        """
        play, first = self._message.play_fresh, 2 * i + 1
        message = play(RoundMode(fresh=first, seed=first))
        other = play(RoundMode(fresh=first + 1, seed=first + 1)) if self._own else self._silent
        return (message - other).double()

    def _response(self, i: int) -> Tensor:
        spread = NormalDirections(self._d, by_row=True)
        way = RoundMode(weight=0.0, move=self._moves, pattern=1000 + i, spread=spread)
        return (self._message.play_fresh(way) - self._silent).double()

    def _confirmed(self, candidates: list[_Candidate]) -> QuietDirection | None:
        """The one that fresh noise is most surely too small along, if there is one."""
        usable = [c for c in candidates if bool(c.weights.isfinite().all() and c.weights.any())]
        if not self._own and usable:
            first = (self._message.play(PLAYED) - self._silent).double()
            usable = [c for c in usable if _share(c.squares(first)) <= 0.6]
        left, n, streams = usable, 0, len(self._silent)
        for i in range(min(PLAYS, -(-CONFIRMED // streams))):
            if not left:
                return None
            noise, data = self._noise(10_000 + i), self._response(i)
            left = [
                c._replace(noise=c.noise + c.squares(noise), data=c.data + c.squares(data))
                for c in left
            ]
            n += streams
            if n < 16:
                continue
            # data show in it, and do not cancel between rows in every coordinate
            left = [c for c in left if c.data[1] > UNMOVED * c.data[2]]
            left = [c for c in left if n >= 3 * 16 or c.share <= 0.6]
            if any(c.p_value(n) < CERTAIN for c in left):
                break
        quiet = [c for c in left if c.share <= SUSPECT]
        if not quiet:
            return None
        least = min(quiet, key=lambda c: c.p_value(n))
        rows = _heard_in(least, noise)
        return QuietDirection(least.p_value(n), len(candidates), rows, least.share)


def _read_together(adversaries: Sequence[frozenset[str]]) -> list[tuple[int, ...]]:
    """The largest sets of two or more rows that one adversary reads."""
    names = frozenset().union(*adversaries)
    sets = {
        frozenset(r for r, reading in enumerate(adversaries) if name in reading) for name in names
    }
    largest = [s for s in sets if len(s) > 1 and not any(s < other for other in sets)]
    return sorted(tuple(sorted(s)) for s in largest)


def _heard_in(candidate: _Candidate, noise: Tensor) -> tuple[int, ...]:
    """Rows of which a direction has most, by samples of noise [n, rows, d]."""
    squares = (noise[:, candidate.rows] * candidate.weights).square().sum(dim=(0, 2))
    most = (squares > 0.1 * squares.max()).nonzero().flatten().tolist()
    return tuple(candidate.rows[r] for r in most)


def _whitening(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Combinations of rows of variance 1 as columns, [n, rows, rows], and which have any.

    Rows may be correlated, and cancel: what is left of a sum is rounding.
    """
    values, vectors = torch.linalg.eigh(covariances)  # [n, rows], of each in ascending order
    most = values[:, -1:]
    used = (values > CANCELS * most) & (values > 1e-14 * most.max())
    return vectors / torch.where(used, values, 1.0).sqrt()[:, None], used


def _least_noise(samples: Tensor) -> list[Tensor]:
    """Three directions [rows, d] with the least noise of samples [n, rows, d].

    Least of what they would have if coordinates, but not rows, were independent.
    """
    W, used = _whitening(torch.einsum("src,stc->crt", samples, samples))
    white = torch.einsum("src,crk->sck", samples, W)[:, used]
    found = []
    for v in torch.linalg.eigh(white.T @ white).eigenvectors[:, :3].T:
        by_coordinate = torch.zeros(used.shape, dtype=torch.float64)
        by_coordinate[used] = v
        found.append(torch.einsum("crk,ck->rc", W, by_coordinate))
    return found


def _structured(samples: Tensor) -> list[Tensor]:
    """The rows of a cosine and of a Hadamard transform that have the least noise."""
    d = samples.shape[1]
    cosines = dct(samples.numpy(), norm="ortho", axis=1)
    chosen = np.argsort(np.square(cosines).mean(axis=0))[:3]
    found = []
    for c in chosen:
        found.append(torch.from_numpy(dct(np.eye(1, d, c)[0], type=3, norm="ortho")))
    size = 2 ** (d.bit_length() - 1)
    for start in {0, d - size}:
        waves = _hadamard(samples[:, start : start + size])
        for c in waves.square().mean(dim=0).argsort()[:3]:
            one = torch.zeros(size, dtype=torch.float64)
            one[c] = 1.0
            u = torch.zeros(d, dtype=torch.float64)
            u[start : start + size] = _hadamard(one[None])[0]
            found.append(u)
    return found


def _hadamard(rows: Tensor) -> Tensor:
    """The Walsh-Hadamard transform of [n, 2^k], up to a scale."""
    n, d = rows.shape
    half, x = 1, rows.double()
    while half < d:
        x = x.view(n, -1, 2, half)
        x = torch.stack([x[:, :, 0] + x[:, :, 1], x[:, :, 0] - x[:, :, 1]], dim=2).view(n, d)
        half *= 2
    return x
