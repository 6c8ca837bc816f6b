"""What noise and gradients make of one message in one round."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpaudit.defense.noise import turnings
from dpaudit.statistics.noise_tests import lag_p_values

from .fine_changes import fine_changes
from .noise_rounds import LOUD, RoundMessage
from .partial_inputs import PLAYED, SILENT, NormalDirections, RoundMode, row_sizes, spread_of
from .quiet_directions import QuietDirection, paired, quiet_direction

EXACT = 1e-3  # relative error of a ratio of two answers of a step
LARGE = 10**5  # numbers of one play of a message, beyond which directions are examined seldom
QUIET = (1.0, 0.25, 1 / 64)  # times the noise, of which twice as much is finite
LEAST = 0.01  # least known number that replaces a draw, as it is divided by
COMPARED = 0.1  # numbers in the place of draws that are large enough to be told from rounding
ALIKE = 0.01  # relative difference of two measurements of one number
CLOSE = 0.03  # difference, relative to the noise of a row, that no test would detect
WEAKER = 4.0  # times: a move of the data by which it is seen whether they are in proportion
MANY = 7  # streams, in which a coordinate with noise is seldom without much
QUIETER = 6  # sizes of such moves that are tried


@dataclass(frozen=True, eq=False)
class Heard:
    """One message in one round, and what noise and gradients make of it."""

    name: str
    round: int
    rows: tuple[tuple[int, int | None], ...]  # sender, and receiver if it goes to one alone
    adversaries: tuple[frozenset[str], ...]  # adversaries that read each row
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
    asked: Tensor  # [rows, d], the scale that the defense asks for
    # [streams, rows, d], what a draw as large as that scale adds, which noise of earlier rounds may
    # decide; None: more draws than one may reach it
    per_draw: Tensor | None
    finer: str | None = None  # how data show more finely than the noise
    quiet: QuietDirection | None = None  # a direction with less noise than others
    enough: bool = False  # no number has less noise than is asked, in units of gradients
    left_out: int = 0  # rows that an adversary reads and that are not looked at
    no_directions: bool = False  # directions of large messages are examined in fewer rounds

    @property
    def largest_data(self) -> Tensor:
        """How far either pattern of gradients moves each number, [rows, d]."""
        return torch.maximum(self.data[0].abs(), self.data[1].abs())

    def shares_unseen(self, level: float) -> bool:
        """Whether coordinates of a row share their noise, at a level, and no gradient moves any."""
        n_rows, d = self.noise.shape[1:]
        if d < 2 or self.largest_data.any() or not self.noise.any():
            return False
        rows = (lag_p_values(self.noise[:, r].double().numpy()) for r in range(n_rows))
        return any(n_rows * len(p) * p.min() < level for p in rows)

    @property
    def is_tested(self) -> bool:
        """Whether its coordinates should be independent, up to scales that are known."""
        return (self.linear or self.loudly_linear) and bool(self.noise.any()) and self.data_stays


def heard(message: RoundMessage) -> Heard | str:
    """What becomes of a message; or why nothing can be said of it."""
    if not message.is_finite(SILENT, PLAYED):
        return "it is not finite"
    loudness, moves = message.loudest(_loud_ways), message.loudest(_moving_ways)
    if loudness is None or moves is None:
        return "it is not finite under other noise or gradients"
    return _Listener(message, loudness, moves).heard()


class _Listener:
    """One message of a round, in units of what it is without noise.

    Args:
        loudness, moves: the loudest noise and gradients at which it is finite.
    """

    def __init__(self, message: RoundMessage, loudness: float, moves: float) -> None:
        self._message, self._play = message, message.play
        self._loudness, self._moves = loudness, moves
        self._base = self._play(SILENT)
        self._tolerance = rounding(self._play(PLAYED), self._base)

    def heard(self) -> Heard:
        message, base, loudness = self._message, self._base, self._loudness
        noise, alone = self._play(RoundMode(seed=1)) - base, self._play(PLAYED) - base
        linear, loudly = self._is_linear(QUIET), self._is_linear((loudness / 2,))
        own = not near(noise, alone, self._tolerance)
        data, size = self._data(alone[0], linear)
        signs, unit, loud, stays = self._signs(alone[0], linear, loudly)
        loudly = loudly and not own and (linear or self._moves_alike())
        moved = bool(noise.any())
        one_draw = linear and stays and not own and len(message.real.draws) == 1
        in_directions = moved and size is not None and (linear or loudly or own)
        seldom = base.numel() > LARGE and not message.real.looks_closely
        quiet = None
        if in_directions and size is not None and not seldom:
            quiet = quiet_direction(message, loud, size, own)
        return Heard(
            message.name,
            message.round,
            rows=message.seen.links,
            adversaries=message.seen.adversaries,
            noise=noise,
            louder=self._play(RoundMode(weight=loudness)) - base,
            data=data,
            linear=linear and not own,
            loudly_linear=loudly,
            own=own,
            noise_stays=stays,
            data_stays=near(
                data[0].abs(), data[1].abs(), self._tolerance if size == self._moves else 0.0
            ),
            asked=torch.where(unit > 0, signs / unit, 0.0),
            per_draw=self._per_draw() if one_draw else None,
            finer=fine_changes(message) if moved else None,
            quiet=quiet,
            no_directions=in_directions and seldom,
            enough=stays and size is not None and self._is_enough(loud, size),
            left_out=message.seen.left_out,
        )

    def _is_linear(self, weights: tuple[float, ...]) -> bool:
        """Whether twice the noise adds twice as much to a message, and two draws what each does.

        At the first of these weights at which twice as much noise is finite.
        """
        for w in weights:
            one, twice = RoundMode(weight=w), RoundMode(weight=2 * w)
            second, both = RoundMode(weight=0.0, other=w), RoundMode(weight=w, other=w)
            if self._message.is_finite(one, twice, second, both):
                once, doubled, other, sum_ = (
                    self._play(way) - self._base for way in (one, twice, second, both)
                )
                alike = near(doubled, 2 * once, self._tolerance)
                return alike and near(sum_, once + other, self._tolerance)
        return False

    def _data(self, noise: Tensor, linear: bool) -> tuple[tuple[Tensor, Tensor], float | None]:
        """How gradients move a message by two patterns [rows, d], and the size that shows it.

        Where a step that is linear in its noise is not so far away, as behind a clamp, they are as
        large as the noise, times as much as they are less loud.
        """

        def move(size: float, pattern: int = 0) -> Tensor:
            ways = (RoundMode(weight=0.0, move=way * size, pattern=pattern) for way in (1, -1))
            there, back = (self._play(way)[0] for way in ways)
            return (there - back) / 2

        def both(size: float) -> tuple[Tensor, Tensor]:
            return move(size) * (LOUD / size), move(size, 1) * (LOUD / size)

        moves = self._moves
        if not linear or self._is_in_proportion(move, move(moves), moves):
            return both(moves), moves
        size = self._size_like(noise, move, moves)
        return both(size or moves), size

    def _signs(
        self, noise: Tensor, linear: bool, loudly: bool
    ) -> tuple[Tensor, Tensor, float, bool]:
        """What signs in the place of draws do to a message [rows, d], and what ``LOUD`` times 1
        does, whatever scale is asked; by as little as the noise where loud noise passes by what a
        step is linear in. With the size of that 1 which was played, and whether noise of one
        coordinate stays in it: another pattern of signs does the same.
        """

        def unit(size: float) -> Tensor:
            return self._of_independent_draws(RoundMode(weight=size, signs="unit"))

        quiet = linear and not loudly
        size = (quiet and self._size_like(noise, unit, self._loudness)) or self._loudness
        way, other = _sign_ways(1.0 if quiet else self._loudness)
        up = LOUD / way.weight
        one, two = ((self._play(w)[0] - self._base[0]).abs() * up for w in (way, other))
        stays = near(one, two, self._tolerance)
        asked = self._of_independent_draws(way) * up
        return asked, unit(size) * (LOUD / size), size, stays

    def _of_independent_draws(self, way: RoundMode) -> Tensor:
        """What signs in the place of draws do, [rows, d]: root mean square over signs of the draws.

        Of several draws some may be subtracted: alike in all of them, signs would cancel.
        """
        found = [(self._play(way)[0] - self._base[0]).square()]
        for turning in turnings(len(self._message.real.draws))[1:]:
            first = self._message.play_first(way._replace(turning=turning))
            if first is not None:
                found.append((first - self._base[0]).square())
        return torch.stack(found).mean(dim=0).sqrt()

    def _per_draw(self) -> Tensor | None:
        """What a draw as large as the scale that is asked adds, [streams, rows, d].

        By known numbers in the place of draws, which are the same in all rows. None: a step puts
        its coordinates in another order, so that other numbers add something else, or several rows
        of draws reach a number, as in an average over agents, where one as large in all adds more.
        """
        (one, first), (other, second) = map(self._added_by, (0, 1))
        shown = torch.minimum(first, second) > COMPARED
        if ((one - other).abs() > ALIKE * _largest(one))[shown.expand_as(one)].any():
            return None
        added = torch.where(first > LEAST, one, 0.0)
        return added if self._of_one_row(added) else None

    def _of_one_row(self, added: Tensor) -> bool:
        """Whether draws of its own sender's row, or link's, reach a row, by rows of other sizes."""
        found = (self._play(RoundMode(signs="asked")) - self._base).abs()
        seen = self._message.seen
        senders = torch.tensor([sender for sender, _ in seen.links], dtype=torch.long)
        for rows in (senders, seen.rows.cpu(), torch.zeros_like(senders)):
            sizes = row_sizes(int(rows.max()) + 1)[rows].to(added)
            wrong = (found - sizes * added).abs() > EXACT * _largest(found) + self._tolerance
            if not wrong[added > 0].any():
                return True
        return False

    def _added_by(self, pattern: int) -> tuple[Tensor, Tensor]:
        """What known numbers add [streams, rows, d], over these numbers, and the numbers."""
        spread = NormalDirections(self._base.shape[-1], alike=True)
        numbers = spread_of(self._base, self._base.shape[:1], pattern, spread)[0].abs()
        way = RoundMode(signs="asked", spread=spread, pattern=pattern)
        return (self._play(way) - self._base).abs() / numbers, numbers

    def _is_in_proportion(
        self, move: Callable[[float], Tensor], moved: Tensor, size: float
    ) -> bool:
        """Whether what this size of a move makes is as many times what a weaker one does."""
        return near(moved, WEAKER * move(size / WEAKER), WEAKER * self._tolerance)

    def _size_like(
        self, noise: Tensor, move: Callable[[float], Tensor], loudest: float
    ) -> float | None:
        """The size of a move that is as large as the noise, and in proportion; None if none is."""
        size, moved = loudest, move(loudest)
        for _ in range(QUIETER):
            size *= (noise.square().mean() / moved.square().mean().clamp(min=1e-30)).sqrt().item()
            if not 0 < size < loudest:
                break
            moved = move(size)
            if self._is_in_proportion(move, moved, size):
                return size
        return None

    def _is_enough(self, loudness: float, moves: float) -> bool:
        """Whether a draw counts as much as a gradient of its size somewhere, and nowhere less."""
        data, noise = paired(self._message, loudness, moves)
        there = data.abs() > 1e-6 * data.abs().max()
        share = (noise[there] / data[there]).abs()
        return bool(there.any()) and abs(float(share.min()) - 1) < EXACT

    def _moves_alike(self) -> bool:
        """Whether gradients move a message under loud noise as they do without: their scale is its.

        Near a threshold, which loud noise passes by, they do not.
        """
        both = RoundMode(weight=self._loudness, move=self._moves)
        if not self._message.is_finite(both):
            return False
        loud, moved = (
            self._play(RoundMode(weight=self._loudness)),
            RoundMode(weight=0.0, move=self._moves),
        )
        under_noise, alone = self._play(both) - loud, self._play(moved) - self._base
        return near(under_noise, alone, rounding(loud, self._base))


def _loud_ways(x: float) -> tuple[RoundMode, ...]:
    return (RoundMode(weight=x), *_sign_ways(x), RoundMode(weight=x, signs="unit"))


def _sign_ways(x: float) -> tuple[RoundMode, ...]:
    return tuple(RoundMode(weight=x, signs="asked", pattern=i) for i in (0, 1))


def _moving_ways(x: float) -> tuple[RoundMode, ...]:
    return tuple(RoundMode(weight=0.0, move=way * x, pattern=i) for i in (0, 1) for way in (1, -1))


def _largest(numbers: Tensor) -> Tensor:
    """The largest number of each stream, [streams, 1, 1]."""
    return numbers.amax(dim=(1, 2), keepdim=True)


def rounding(*messages: Tensor) -> float:
    """What float arithmetic may differ by in messages of this size."""
    largest = max(m.abs().max().item() for m in messages)
    return 64 * torch.finfo(messages[0].dtype).eps * largest


def near(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether they differ by less than any test would detect, in each row.

    And in each coordinate under all streams, where there are several: a part of a row that is not
    linear may be far smaller than the rest of it.
    """
    size = other.square().mean(dim=-1, keepdim=True).sqrt()
    if other.ndim > 2:
        few = (0,) if len(other) >= MANY else (0, 1)  # streams, in which one may be small by chance
        size = torch.minimum(size, other.square().mean(dim=few, keepdim=True).sqrt())
    return bool(((one - other).abs() <= CLOSE * size + tolerance).all())
