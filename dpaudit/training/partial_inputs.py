"""Noise and gradients of a round, as they are or in parts, for a round played many times."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.defense.noise import Noise, Scale, turned_sign
from dpaudit.rng import Streams


class NormalDirections(NamedTuple):
    """Normal numbers over ``d`` coordinates, the same in all rows, in the place of signs."""

    d: int
    alike: bool = False  # the same in all streams
    by_row: bool = False  # each row has numbers of its own


class RoundMode(NamedTuple):
    """How a round is played: what becomes of its noise and of its gradients."""

    weight: float = 1.0  # factor of the noise; 0 leaves zeros
    other: float = 0.0  # weight of a second draw
    fresh: int = 0  # number of the noise's streams; 0: those of the examined run
    seed: int = 0  # seed of the generators of the process
    # in the place of draws, signs over coordinates times one number for each row and the weight:
    # times the scale that is "asked", or as a "unit" whatever is asked
    signs: Literal["asked", "unit"] | None = None
    pattern: int = 0  # number of the pattern of signs or of spread numbers
    spread: NormalDirections | None = None  # normal numbers in the place of signs
    turning: int = 0  # index in ``turnings``: which draws change their sign
    added: float = 0.0  # signs times the scale that is asked, beside the draws
    move: float = 0.0  # move of the gradients, times their size, by a pattern of signs
    gone: bool = False  # whether gradients are 0 but for that


SILENT, PLAYED = RoundMode(weight=0.0), RoundMode()
KEPT = 4_500_000  # numbers of draws that are kept at most
SHORT = 0.01  # relative to the size of gradients: shorter than most clipped ones


class SharedDraws:
    """Draws that are the same in many ways to play a round, and are made once.

    Args:
        most: numbers that are kept.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._made: dict[tuple[object, ...], Tensor] = {}
        self._most = self._room = most

    def forget(self) -> None:
        self._made.clear()
        self._room = self._most

    def of(
        self, streams: Streams, round: int, law: str, message: str, scale: Scale, like: Tensor
    ) -> Tensor:
        """A draw of the round, which the caller may write to."""
        key = (streams, round, law, message, scale, like.shape, like.dtype)
        is_number = not isinstance(scale, Tensor)
        if is_number and key in self._made:
            return self._made[key].clone()
        drawn: Tensor = getattr(Noise(streams, round), law)(message, scale, like)
        if is_number and drawn.numel() <= self._room:
            self._room -= drawn.numel()
            self._made[key] = drawn.clone()
        return drawn


class PartialNoise(Noise):
    """The noise of a round, played in some way.

    Args:
        other: streams of a second draw.
        shift: [rows, d], what is added to every draw.
        draws: those that were made before; None: none is kept.
    """

    def __init__(
        self,
        streams: Streams,
        round: int,
        way: RoundMode = PLAYED,
        other: Streams | None = None,
        shift: Tensor | None = None,
        draws: SharedDraws | None = None,
    ) -> None:
        super().__init__(streams, round)
        self._way, self._other, self._shift = way, other, shift
        self._draws = draws or SharedDraws(most=0)
        self._drawn = 0  # numbers of a row of all draws so far
        self.names = dict[str, int]()  # name of a draw -> its number

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        return self._woven("gaussian", message, std, like)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        return self._woven("laplace", message, scale, like)

    def _woven(self, law: str, message: str, scale: Scale, like: Tensor) -> Tensor:
        way, first = self._way, self._drawn
        number = self.names.setdefault(message, len(self.names))
        self._drawn += like.shape[-1]
        if way.signs is not None:
            turn = turned_sign(number, way.turning)
            size = way.weight * turn * (scale if way.signs == "asked" else 1.0)
            signs = (
                spread_of(like, like.shape[:-2], way.pattern, way.spread, first)
                if way.spread
                else pattern_of(like, way.pattern)
            )
            return (signs * size).to(like.dtype).expand_as(like)
        if way.weight:
            drawn = self._draws.of(self._streams, self._round, law, message, scale, like)
            drawn = drawn if way.weight == 1.0 else drawn * way.weight
        else:
            drawn = torch.zeros_like(like)
        if way.other and self._other is not None:
            again = self._draws.of(self._other, self._round, law, message, scale, like)
            drawn = drawn + way.other * again
        if way.added:
            drawn = drawn + (pattern_of(like, 0) * scale * way.added).to(like.dtype)
        return drawn if self._shift is None else drawn + self._shift_of(like, first)

    def _shift_of(self, like: Tensor, first: int) -> Tensor:
        """The shift of the rows of a draw; of other rows than it has, that of a typical one."""
        assert self._shift is not None
        rows, width = like.shape[-2:]
        shift = self._shift if len(self._shift) == rows else self._shift.median(dim=0).values[None]
        return shift[:, (first + torch.arange(width)) % shift.shape[-1]].to(like)


def pattern_of(like: Tensor, pattern: int, salt: int = 0) -> Tensor:
    """Random signs over coordinates, times a number for each row, [rows, d]."""
    rows, d = like.shape[-2:]
    signs = torch.randint(0, 2, (d,), generator=torch.Generator().manual_seed(pattern + 1))
    return ((2.0 * signs - 1) * row_sizes(rows, salt)).to(like)


def row_sizes(rows: int, salt: int = 0) -> Tensor:
    """A number for each row, [rows, 1]; of more rows, the first ones have the same."""
    return torch.rand(rows, 1, generator=torch.Generator().manual_seed(1000 + salt)) + 0.5


def spread_of(
    like: Tensor, streams: Sequence[int], pattern: int, spread: NormalDirections, first: int = 0
) -> Tensor:
    """Normal numbers for each stream [*streams, ..., width], ``first`` and those after it.

    Layers that are drawn one by one have the numbers of the whole, as they follow one another. Rows
    with numbers of their own are those of the first axis after the streams: agents, or links.
    """
    generator = torch.Generator().manual_seed(pattern + 1)
    n = 1 if spread.alike else math.prod(streams)
    between = like.shape[len(streams) : -1]
    rows = between[0] if spread.by_row and between else 1
    numbers = torch.randn(n, rows, spread.d, generator=generator)
    if first or like.shape[-1] != spread.d:
        places = (first + torch.arange(like.shape[-1])) % spread.d
        numbers = numbers.index_select(-1, places)
    numbers = numbers.expand(math.prod(streams), -1, -1)
    ones = [1] * (len(between) - 1)
    return numbers.reshape(*streams, *([rows] if between else []), *ones, -1).to(like)


class RepeatedGradients(Gradient):
    """The gradients of the first stream for all of them, computed once, and moved if asked."""

    def __init__(self, oracle: Gradient, answers: "_Answers | None" = None) -> None:
        self._oracle, self.batch_size = oracle, oracle.batch_size
        self._answers = answers or _Answers()

    def again(self, way: RoundMode = PLAYED) -> "RepeatedGradients":
        """From the first call on, with what a way does to gradients."""
        self._answers.next, self._answers.way = 0, way
        return self

    @property
    def size(self) -> float:
        """Root mean square of the largest answer so far, which is the unit of moves."""
        return max((v.square().mean().sqrt().item() for v in self._answers.values), default=0) or 1

    def at_step(self, s: int) -> "RepeatedGradients":
        return RepeatedGradients(self._oracle.at_step(s), self._answers)

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self._given(X, lambda first: self._oracle(first, holders))

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self._given(
            X, lambda first: self._oracle.clipped_sum(first, clip_norm, holders, norm)
        )

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """Moved loudly, records are a pattern of ``SHORT`` times their size instead: what clips
        parts of a record one by one would make other sizes of a long one's parts."""
        rows = 3 if own else 2
        one = self._value(X, lambda first: self._oracle.per_record(first, holders, own), rows, True)
        return one if one.ndim > 3 else one.expand(*X.shape[:-rows], *one.shape)

    def _given(self, X: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        return self._value(X, compute, 2).expand_as(X)

    def _value(
        self, X: Tensor, compute: Callable[[Tensor], Tensor], rows: int, short: bool = False
    ) -> Tensor:
        """The answer for the first trial of models, whose last ``rows`` axes are not trials."""
        a = self._answers
        i, a.next = a.next, a.next + 1
        if i == len(a.values):
            a.values.append(compute(X.reshape(-1, *X.shape[-rows:])[0].contiguous()))
        way = a.way
        value = torch.zeros_like(a.values[i]) if way.gone else a.values[i]
        if not way.move:
            return value
        size = self.size
        if way.spread:
            streams = X.shape[:-rows]
            value = value.expand(*streams, *value.shape)
            pattern = size * spread_of(value, streams, way.pattern, way.spread)
        else:
            pattern = (size * pattern_of(value, way.pattern, 1 + i)).expand_as(value)
        if short and abs(way.move) > 1:
            return (math.copysign(SHORT, way.move) * pattern).expand_as(value)
        return value + way.move * pattern


class _Answers:
    """What the calls of a round were answered, in order, whichever local step asked."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.next, self.way = 0, PLAYED


_SPARE: list[np.random.MT19937] = []  # generators that no ``global_randomness`` uses now


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Generators of the process as after this seed, and afterwards as they were.

    NumPy's is exchanged for another one meanwhile: to copy its state takes as long as some rounds.
    """
    before = torch.get_rng_state(), random.getstate()
    of_numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
    generator = _SPARE.pop() if _SPARE else np.random.MT19937()
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # else torch.manual_seed formats a traceback in every call
        torch.cuda.manual_seed_all(seed)
    np.random.set_bit_generator(generator)  # type: ignore[attr-defined]
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_bit_generator(of_numpy)  # type: ignore[attr-defined]
        random.setstate(before[1])
        _SPARE.append(generator)
