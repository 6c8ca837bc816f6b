"""What noise and gradients make of one message in one round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .fine_changes import Fine, fine_changes
from .noise_rounds import (
    LATE,
    LOUD,
    RealRound,
    Twofold,
    is_in_proportion,
    is_linear,
    near,
    rounding,
    size_like,
)
from .quiet_directions import QuietDirection, paired, quiet_direction
from .woven import PLAYED, SILENT, Way

EXACT = 1e-3  # of one: what a ratio of two answers of a step is known to
LARGE = 10**5  # numbers of one play of a message, beyond which directions are examined seldom
QUIET = (1.0, 0.25, 1 / 64)  # times the noise, of which twice as much is finite


@dataclass(frozen=True, eq=False)
class Heard:
    """One message in one round, and what noise and gradients make of it."""

    name: str
    round: int
    rows: tuple[tuple[int, int | None], ...]  # sender, and receiver if it goes to one alone
    adversaries: tuple[frozenset[str], ...]  # of each row
    noise: Tensor  # [streams, rows, d], what the noise of the round adds to it
    louder: (
        Tensor  # [streams, rows, d], what ``LOUD`` times the noise adds, or less if it is finite
    )
    # [rows, d], how it moves with gradients by two patterns of signs, which are loud, or where that
    # takes a linear step too far as large as the noise
    data: tuple[Tensor, Tensor]
    linear: bool  # twice the noise adds twice as much, two draws add what each does
    loudly_linear: bool  # so it is for loud noise
    own: bool  # draws that are not asked of ``Noise`` are in it
    noise_stays: bool  # noise of one coordinate stays in it
    data_stays: bool  # so do gradients
    fewer: bool  # a draw has fewer numbers than there are coordinates
    asked: Tensor  # [rows, d], the scale that the defense asks for
    fine: Fine = Fine(False, None)  # noise has coarser steps than something of the data
    quiet: QuietDirection | None = None  # a direction with less noise than others
    enough: bool = False  # no number has less noise than is asked, in units of gradients
    left_out: int = 0  # rows that an adversary reads and that are not looked at
    no_directions: bool = False  # of a large message, whose directions are examined in fewer rounds

    @property
    def largest_data(self) -> Tensor:
        """How far either pattern of gradients moves each number, [rows, d]."""
        return torch.maximum(self.data[0].abs(), self.data[1].abs())


def name_of(round: RealRound, name: str) -> tuple[str, int]:
    """A message's own name, and the round that it is sent in."""
    return name.removesuffix(LATE), round.k + name.endswith(LATE)


def heard(round: RealRound, name: str) -> Heard | str:
    """What becomes of a message; or why nothing can be said of it."""
    return _Listener(round, name).heard()


class _Listener:
    """One message of a round, in units of what it is without noise."""

    def __init__(self, round: RealRound, name: str) -> None:
        self._round, self._name = round, name

    def heard(self) -> Heard | str:
        round, name = self._round, self._name
        if not round.is_finite(name, SILENT, PLAYED):
            return "it is not finite"
        loudness = round.loudest(name, _loud_ways)
        moves = round.loudest(name, _moving_ways)
        if loudness is None or moves is None:
            return "it is not finite under other noise or gradients"
        base, played = self._play(SILENT), self._play(PLAYED)
        tolerance = rounding(played, base)
        noise, alone = self._play(Way(seed=1)) - base, played - base
        louder = self._play(Way(weight=loudness)) - base
        linear = [self._is_linear(x, base, tolerance) for x in (QUIET, (loudness / 2,))]
        own = not near(noise, alone, tolerance)
        data, size = self._data(alone[0], linear[0], tolerance, moves)
        signs, unit, loud = self._signs(alone[0], linear, tolerance, loudness)
        loudly = linear[1] and not own and (linear[0] or self._moves_alike(loudness, moves))
        moved = bool(noise.any())
        stays = near(signs[0], signs[1], tolerance)
        in_directions = moved and size is not None and (linear[0] or loudly or own)
        seldom = base.numel() > LARGE and not round.run.looks_closely(round.k)
        seen = round.seen(name)
        return Heard(
            *name_of(round, name),
            rows=seen.links,
            adversaries=seen.adversaries,
            noise=noise,
            louder=louder,
            data=data,
            linear=linear[0] and not own,
            loudly_linear=loudly,
            own=own,
            noise_stays=stays,
            data_stays=near(data[0].abs(), data[1].abs(), tolerance if size == moves else 0.0),
            fewer=round.fewest is not None and round.fewest < base.shape[-1],
            asked=torch.where(unit > 0, signs[0] / unit, 0.0),
            fine=fine_changes(round, name) if moved else Fine(False, None),
            quiet=quiet_direction(round, name, loud, size, own)
            if in_directions and size is not None and not seldom
            else None,
            no_directions=in_directions and seldom,
            enough=stays and size is not None and self._is_enough(loud, size),
            left_out=seen.left_out,
        )

    def _play(self, way: Way) -> Tensor:
        return self._round.play(way)[self._name]

    def _is_linear(self, weights: tuple[float, ...], base: Tensor, tolerance: float) -> bool:
        """At the first of these weights at which twice as much noise is finite."""
        for w in weights:
            ways = (
                Way(weight=w),
                Way(weight=2 * w),
                Way(weight=0.0, other=w),
                Way(weight=w, other=w),
            )
            if self._round.is_finite(self._name, *ways):
                return is_linear(Twofold(*map(self._play, ways)), base, tolerance)
        return False

    def _data(
        self, noise: Tensor, linear: bool, tolerance: float, moves: float
    ) -> tuple[tuple[Tensor, Tensor], float | None]:
        """How gradients move a message by two patterns [rows, d], and the size that tells.

        Where a step that is linear in its noise is not so far away, as behind a clamp, they are as
        large as the noise, times as much as they are less loud.
        """

        def move(size: float, pattern: int = 0) -> Tensor:
            ways = (Way(weight=0.0, move=way * size, pattern=pattern) for way in (1, -1))
            there, back = (self._play(way)[0] for way in ways)
            return (there - back) / 2

        first, second = move(moves), move(moves, 1)
        as_loud = (first * (LOUD / moves), second * (LOUD / moves))
        if not linear or is_in_proportion(move, first, moves, tolerance):
            return as_loud, moves
        size = size_like(noise, move, first, tolerance, moves)
        if size is None:
            return as_loud, None
        return (move(size) * (LOUD / size), move(size, 1) * (LOUD / size)), size

    def _signs(
        self, noise: Tensor, linear: list[bool], tolerance: float, loudness: float
    ) -> tuple[list[Tensor], Tensor, float]:
        """What two patterns of signs in the place of draws do to a message [rows, d], and the first
        of them by ``LOUD`` times 1, whatever scale is asked; by as little as the noise where loud
        noise passes by what a step is linear in. With the size of that 1 which was played.
        """
        base, up = self._play(SILENT)[0], LOUD / loudness
        signs = [(self._play(way)[0] - base).abs() * up for way in _sign_ways(loudness)]
        unit = (self._play(Way(weight=loudness, signs="unit"))[0] - base).abs()
        if linear[1] or not linear[0]:
            return signs, unit * up, loudness

        def play(size: float) -> Tensor:
            return (self._play(Way(weight=size, signs="unit"))[0] - base).abs()

        size = size_like(noise, play, unit, tolerance, loudness) or loudness
        quiet = [self._play(way)[0] - base for way in _sign_ways(1.0)]
        return [LOUD * s.abs() for s in quiet], play(size) * (LOUD / size), size

    def _is_enough(self, loudness: float, moves: float) -> bool:
        """Whether a draw counts as much as a gradient of its size somewhere, and nowhere less."""
        data, noise = paired(self._round, self._name, loudness, moves)
        there = data.abs() > 1e-6 * data.abs().max()
        share = (noise[there] / data[there]).abs()
        return bool(there.any()) and abs(float(share.min()) - 1) < EXACT

    def _moves_alike(self, loudness: float, moves: float) -> bool:
        """Whether gradients move a message under loud noise as they do without: their scale is its.

        Near a threshold, which loud noise passes by, they do not.
        """
        both, moved = Way(weight=loudness, move=moves), Way(weight=0.0, move=moves)
        if not self._round.is_finite(self._name, both):
            return False
        silent, loud = self._play(SILENT), self._play(Way(weight=loudness))
        under_noise = self._play(both) - loud
        return near(under_noise, self._play(moved) - silent, rounding(loud, silent))


def _loud_ways(x: float) -> tuple[Way, ...]:
    return (Way(weight=x), *_sign_ways(x), Way(weight=x, signs="unit"))


def _sign_ways(x: float) -> tuple[Way, ...]:
    return tuple(Way(weight=x, signs="asked", pattern=i) for i in (0, 1))


def _moving_ways(x: float) -> tuple[Way, ...]:
    return tuple(Way(weight=0.0, move=way * x, pattern=i) for i in (0, 1) for way in (1, -1))
