"""Noise that is noted as it is drawn, and as it is added.

A draw is handed out as a tensor that notes what it is added to.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.attack import Streams
from dpaudit.defense import Noise, Scale

KEPT = {"round", "floor", "ceil", "clone", "to", "double", "float", "detach", "contiguous"}
IN_PLACE = {"add_", "sub_", "__iadd__", "__isub__"}


class RequestedDraw(NamedTuple):
    """What a defense asked of its noise."""

    stream: str
    family: NoiseFamily
    shape: torch.Size
    scale: Scale
    is_fresh: bool  # drawn once, from the round's own stream, unknown to others


class DrawSizes(NamedTuple):
    """How large draws of noise of one family were, in units of their scale."""

    total: float  # sum of squares of Gaussian draws, of absolute values of Laplace draws
    n: int


class NoiseLog(Noise):
    """The noise of a round, noted as it is drawn, and the same in all trials of a stack.

    Args:
        silent: every draw is 0, while scales are what they are: messages before noise.
        moves: what is added to draws, by stream.
        watched: whether it notes the value that each of its draws is added to first.
        flipped: the axis along which the numbers of a draw come in the opposite order, by stream.
        trials: the leading dimensions of a stack of trials.
        levels: what the numbers of a draw are, in units of its scale, by stream.
    """

    def __init__(
        self,
        streams: Streams,
        round: int,
        silent: bool = False,
        moves: Mapping[str, Tensor] | None = None,
        watched: bool = False,
        flipped: Mapping[str, int] | None = None,
        trials: torch.Size = torch.Size(),  # noqa: B008 - a tuple
        levels: Mapping[str, float | Tensor] | None = None,
    ) -> None:
        super().__init__(streams, round)
        self.draws: list[RequestedDraw] = []
        self.values: dict[str, list[Tensor]] = {}  # stream -> sums, in units of the draw
        self.drawn: dict[NoiseFamily, DrawSizes] = {}
        self._given = streams.seed, round
        self._silent, self._moves, self._watched = silent, moves or {}, watched
        self._flipped, self._trials, self._levels = flipped or {}, trials, levels or {}

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        return self._noted(super().gaussian, self._asked(message, "gaussian", like, std), like)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        return self._noted(super().laplace, self._asked(message, "laplace", like, scale), like)

    def _asked(
        self, message: str, family: NoiseFamily, like: Tensor, scale: Scale
    ) -> RequestedDraw:
        own = (self._streams.seed, self._round) == self._given  # not of a changed copy
        is_fresh = own and all(draw.stream != message for draw in self.draws)
        is_known = message in self.known_to and self.known_to[message].numel() > 0
        return RequestedDraw(message, family, like.shape, scale, is_fresh and not is_known)

    def _noted(
        self, draw: Callable[[str, Scale, Tensor], Tensor], asked: RequestedDraw, like: Tensor
    ) -> Tensor:
        self.draws.append(asked)
        if self._silent:
            return torch.zeros_like(like)
        stacked = len(self._trials) if like.shape[: len(self._trials)] == self._trials else 0
        units = draw(asked.stream, 1.0, like.detach()[(0,) * stacked])
        if asked.stream in self._levels:
            level = torch.as_tensor(self._levels[asked.stream], dtype=units.dtype)
            units = level.to(units.device).expand_as(units)
        if asked.stream in self._flipped:
            units = units.flip(self._flipped[asked.stream])
        sizes = units.abs() if asked.family == "laplace" else units.square()
        total, n = self.drawn.get(asked.family, (0.0, 0))
        self.drawn[asked.family] = DrawSizes(total + sizes.sum().item(), n + sizes.numel())
        drawn = (units * asked.scale).expand_as(like)
        drawn = drawn + self._moves.get(asked.stream, 0.0)
        if not self._watched:
            return drawn

        def note(value: Tensor, before: Tensor | None) -> Tensor:
            value, noted = value.detach().clone(), self.values.get(asked.stream, [])
            if value.shape == like.shape and (noted[-1] if noted else None) is before:
                self.values[asked.stream] = [*noted, value]
            return value

        return TracedDraw.of(drawn.clone(), note)


class TracedDraw(Tensor):
    """A draw of noise, perhaps scaled, that notes the value which it is added to.

    A sum with it notes what is added to the sum, too. A draw that is rounded or copied stays
    marked: where that undoes a move of it, the move makes no two worlds the same.
    """

    # of that value in units of the draw, and of the one before it; returns it as noted
    note: Callable[[Tensor, Tensor | None], Tensor]
    factor: Any  # factor of the draw
    value: Tensor | None  # value that the draw was added to

    @classmethod
    def of(cls, drawn: Tensor, note: Any, factor: Any = 1.0, value: Any = None) -> "TracedDraw":
        marked = drawn.as_subclass(cls)
        marked.note, marked.factor, marked.value = note, factor, value
        return marked

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Sums stay marked, and multiples before them; everything else is a plain tensor."""
        marked = next((a for a in args if isinstance(a, cls)), None)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if marked is None or not isinstance(result, Tensor):
                return plain(result)
            name, first, before = func.__name__.strip("_"), args[0] is marked, marked.value
            overwritten = not first and func.__name__ in IN_PLACE
            if name in KEPT and first and before is None and result.shape == marked.shape:
                return cls.of(plain(result), marked.note, marked.factor)
            if kwargs or len(args) > 2:
                return plain(result)
            other = plain(args[-1] if first else args[0])
            if name == "neg" and before is None:
                return cls.of(plain(result), marked.note, -marked.factor)
            multiple = name in ("mul", "rmul") or (name in ("div", "truediv") and first)
            if multiple and before is None:
                factor = marked.factor * other if "mul" in name else marked.factor / other
                return cls.of(plain(result), marked.note, factor)
            other = None if overwritten else other
            added = _added(name, first, other, plain(result), plain(marked))
            if added is not None:
                value, sign = added
                factor = sign * marked.factor
                value = value.expand_as(result) / factor + (0.0 if before is None else before)
                return cls.of(plain(result), marked.note, factor, marked.note(value, before))
        return plain(result)


def _added(
    name: str, first: bool, other: Any, result: Tensor, noise: Tensor
) -> tuple[Tensor, float] | None:
    """The value in a sum of value and noise, and the sign of the noise; None: it is no sum.

    ``other`` is that value; None where the sum was written over it.
    """
    if name in ("add", "radd", "iadd"):
        return (result - noise if other is None else torch.as_tensor(other)), 1.0
    if name in ("sub", "isub") and first:
        return -torch.as_tensor(other), 1.0
    if name in ("sub", "isub", "rsub"):
        return (result + noise if other is None else torch.as_tensor(other)), -1.0
    return None


def plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, TracedDraw) else value
