"""Directions in which a message carries less noise than its data ask for."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.fft import dct
from scipy.stats import f as f_distribution
from torch import Tensor

from .noise_rounds import PLAYED, SILENT, PlayedRound, Way
from .woven import Spread

CONFIRMED = 256  # streams of noise by which a suspect is confirmed or cleared
PLAYS = 64  # at most, that give them
SUSPECT = 0.35  # of the variance that is expected
CERTAIN = 1e-30  # p-value, at which nothing more is played
SLACK = 0.5  # of it, that is no fault yet
MATCHED = 1e-3  # of the noise: what data and noise differ by where both go the same way
WHOLE = 700  # coordinates at most whose covariance is estimated as a whole
ROWS = 2  # rows of a message whose covariance is
PAIRED = 200  # of the numbers that are spread


class QuietDirection(NamedTuple):
    """The most suspicious direction of a message."""

    p: float
    among: int  # of directions that were tested
    row: int
    share: float  # variance of the noise, of what data in this direction ask for


def quiet_direction(
    round: PlayedRound, name: str, loudness: float, moves: float, own: bool
) -> QuietDirection | None:
    """Among directions that noise and data go differently, or that noise seems to leave out.

    Noise and data are played along the same normal numbers. Where a step treats them alike, up to
    a scale for each coordinate, no direction is left out. Else what is left of the difference lies
    in the directions that noise leaves out, and is confirmed by noise that it was not chosen from.
    """
    return _Directions(round, name, loudness, moves, own).worst()


def paired(round: PlayedRound, name: str, loudness: float, moves: float) -> tuple[Tensor, Tensor]:
    """What data and noise along the same numbers make of a message, [streams, rows, d] each.

    Both are for numbers of size 1, of the gradients and of the draws; 0 where they are not finite.
    """
    silent = round.play(SILENT)[name]
    spread = Spread(silent.shape[-1])
    ways = (
        Way(weight=0.0, move=moves, pattern=PAIRED, spread=spread),
        Way(weight=loudness, signs="unit", pattern=PAIRED, spread=spread),
    )
    if not round.is_finite(name, *ways):
        return torch.zeros_like(silent).double(), torch.zeros_like(silent).double()
    data, noise = ((round.play(way)[name] - silent).double() for way in ways)
    return data / (moves * round.size), noise / loudness


class _Directions:
    def __init__(
        self, round: PlayedRound, name: str, loudness: float, moves: float, own: bool
    ) -> None:
        self._round, self._name, self._moves, self._own = round, name, moves, own
        self._silent = round.play(SILENT)[name]
        self._d = self._silent.shape[-1]
        self._loudness = loudness

    def worst(self) -> QuietDirection | None:
        if self._d < 2:
            return None
        candidates = self._candidates()
        worst: QuietDirection | None = None
        for row, u in candidates:
            tested = self._tested(row, u) if bool(u.isfinite().all() and u.any()) else None
            if tested is not None and (worst is None or tested.p < worst.p):
                worst = tested
                if worst.p < CERTAIN:
                    break
        return None if worst is None else worst._replace(among=len(candidates))

    def _candidates(self) -> list[tuple[int, Tensor]]:
        data, noise = paired(self._round, self._name, self._loudness, self._moves)
        n_rows = noise.shape[1]
        sizes = noise.norm(dim=-1).amax(dim=0)
        left = self._left(data, noise)
        differ = [
            r
            for r in range(n_rows)
            if sizes[r] > 0
            and all(float(x[:, r].norm(dim=-1).amax()) > MATCHED * float(sizes[r]) for x in left)
        ]
        unheard = [r for r in range(n_rows) if sizes[r] == 0]  # own draws
        rows = [*differ, *unheard]
        chosen = [(r, x[s, r]) for r in differ[:8] for x in left for s in range(min(2, len(x)))]
        for r in rows[:ROWS]:
            chosen += [(r, u) for u in self._of_samples(r)]
        return chosen

    def _left(self, data: Tensor, noise: Tensor) -> list[Tensor]:
        """Noise without what follows the data: by one ratio for a row, and for a coordinate."""
        there = (data != 0) & (noise != 0)
        ratio = torch.where(there, noise / torch.where(there, data, 1.0), torch.nan)
        by_row = ratio.transpose(0, 1).flatten(1).nanmedian(dim=1).values.nan_to_num()
        relative = ratio / by_row[:, None]
        by_coordinate = relative.flatten(0, 1).nanmedian(dim=0).values.nan_to_num(1.0)
        one = noise - by_row[:, None] * data
        each = noise - by_row[:, None] * by_coordinate * data
        return [one, each] if len(data) * data.shape[1] >= 5 else [one]

    def _of_samples(self, row: int) -> list[Tensor]:
        """Directions with the least noise in a sample: of all, or of those that are structured."""
        if self._d <= WHOLE:
            n_plays = -(-2 * self._d // len(self._silent))
            plays = [self._noise(i)[:, row] for i in range(min(n_plays, 4 * PLAYS))]
            samples = torch.cat(plays)
            if len(samples) > 1.3 * self._d:
                scale = samples.square().mean(dim=0).sqrt()
                used = scale > 1e-7 * scale.max()
                unit = samples[:, used] / scale[used]
                vectors = torch.linalg.eigh(unit.T @ unit).eigenvectors[:, :3]
                found = []
                for v in vectors.T:
                    u = torch.zeros(self._d, dtype=torch.float64)
                    u[used] = v / scale[used]
                    found.append(u)
                return found
        samples = torch.cat([self._noise(i)[:, row] for i in range(3)])
        return _structured(samples)

    def _noise(self, i: int) -> Tensor:
        """What fresh noise adds to a message, [streams, rows, d].

        Draws that are not asked of ``Noise`` are in a silent message, too: there, two differ.
        """
        message = self._round.play_once(Way(fresh=2 * i + 1, seed=2 * i + 1))[self._name]
        other = self._silent
        if self._own:
            other = self._round.play_once(Way(fresh=2 * i + 2, seed=2 * i + 2))[self._name]
        return (message - other).double()

    def _response(self, i: int) -> Tensor:
        way = Way(weight=0.0, move=self._moves, pattern=1000 + i, spread=Spread(self._d))
        return (self._round.play_once(way)[self._name] - self._silent).double()

    def _tested(self, row: int, u: Tensor) -> QuietDirection | None:
        """The share of noise along u, over that of the data; None where it is no suspect."""
        u = u.double()
        if not self._own:
            first = (self._round.play(PLAYED)[self._name] - self._silent)[:, row].double()
            if _along(first, u) > 0.6:
                return None
        streams = len(self._silent)
        noise, data = [], []
        for i in range(min(PLAYS, -(-CONFIRMED // streams))):
            noise.append(self._noise(10_000 + i)[:, row])
            data.append(self._response(i)[:, row])
            n = (i + 1) * streams
            if n < 16:
                continue
            share = _along(torch.cat(noise), u) / max(_along(torch.cat(data), u), 1e-300)
            if n < 3 * 16 and share > 0.6:
                return None
            p = float(f_distribution.cdf(share / SLACK, n / 2, n / 2))
            if p < CERTAIN:
                break
        if share > SUSPECT:
            return None
        return QuietDirection(p, 1, row, share)


def _along(samples: Tensor, u: Tensor) -> float:
    """Variance of samples [n, d] along u, of what independent coordinates of theirs would have."""
    expected = float((samples.square().mean(dim=0) * u.square()).sum())
    return float((samples @ u).square().mean()) / expected if expected > 0 else 1.0


def _structured(samples: Tensor) -> list[Tensor]:
    """Of the rows of a cosine and of a Hadamard transform those with the least noise."""
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
