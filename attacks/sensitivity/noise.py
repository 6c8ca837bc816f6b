"""Noise that is the same in all worlds, and that notes what it is added to.

Where noise is added is seen while a round is played: a draw is handed out as a tensor that notes
what it is added to. Only the move of noise comes from that. The judgement is on a real step under
real noise, so a draw that is used twice, or a value that is sent without noise too, is not hidden.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.noise import Noise, Scale
from dpaudit.rng import Streams

Key = tuple[int, str]  # a round, and a stream of noise in it
Moves = Mapping[Key, Tensor]  # what is added to its draws


class Draw(NamedTuple):
    """What a defense asked of its noise."""

    stream: str
    family: str
    shape: torch.Size
    scale: Scale


class Witness(Noise):
    """The noise of a round, noted as it is drawn, and the same in all trials of a stack.

    Args:
        silent: every draw is 0, while scales are what they are: messages before noise.
        moves: what is added to draws; those of other rounds are left aside.
        watched: whether it notes the value that each of its draws is added to first.
    """

    def __init__(
        self,
        streams: Streams,
        round: int,
        silent: bool = False,
        moves: Moves | None = None,
        watched: bool = False,
    ) -> None:
        super().__init__(streams, round)
        self.draws: list[Draw] = []
        self.values: dict[Key, Tensor] = {}  # in units of the draw
        self._silent, self._moves, self._watched = silent, moves or {}, watched

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        return self._noted(super().gaussian, Draw(message, "gaussian", like.shape, std), like)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        return self._noted(super().laplace, Draw(message, "laplace", like.shape, scale), like)

    def _noted(
        self, draw: Callable[[str, Scale, Tensor], Tensor], asked: Draw, like: Tensor
    ) -> Tensor:
        self.draws.append(asked)
        if self._silent:
            return torch.zeros_like(like)
        key = self._round, asked.stream
        one_trial = like.detach().reshape(-1, *like.shape[-2:])[0]
        drawn = (draw(asked.stream, 1.0, one_trial) * asked.scale).expand_as(like)
        drawn = drawn + self._moves.get(key, 0.0)
        if not self._watched:
            return drawn

        def note(value: Tensor) -> None:
            if value.shape == drawn.shape:
                self.values.setdefault(key, value.detach().clone())

        return Marked.of(drawn.clone(), note)


class Marked(Tensor):
    """A draw of noise, perhaps scaled, that notes the value which it is added to."""

    note: Callable[[Tensor], None]  # of that value, in units of the draw
    factor: Any  # that the draw was multiplied by

    @classmethod
    def of(cls, drawn: Tensor, note: Callable[[Tensor], None], factor: Any = 1.0) -> "Marked":
        marked = drawn.as_subclass(cls)
        marked.note, marked.factor = note, factor
        return marked

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Sums are noted, multiples stay marked, and everything else is a plain tensor."""
        marked = next((a for a in args if isinstance(a, cls)), None)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if marked is None or kwargs or len(args) > 2 or not isinstance(result, Tensor):
                return _plain(result)
            name, first = func.__name__.strip("_"), args[0] is marked
            other = _plain(args[-1] if first else args[0])
            if name == "neg":
                return cls.of(_plain(result), marked.note, -marked.factor)
            if name in ("mul", "rmul") or (name in ("div", "truediv") and first):
                factor = marked.factor * other if "mul" in name else marked.factor / other
                return cls.of(_plain(result), marked.note, factor)
            added = _added(name, first, other, _plain(result), _plain(marked))
            if added is not None:
                value, sign = added
                marked.note(value / (sign * marked.factor))
        return _plain(result)


def _added(
    name: str, first: bool, other: Any, result: Tensor, noise: Tensor
) -> tuple[Tensor, float] | None:
    """The value in a sum of value and noise, and the sign of the noise; None: it is no sum."""
    if name in ("add", "radd", "iadd"):  # in place the value is overwritten, or the noise is
        return (torch.as_tensor(other) if first else result - noise), 1.0
    if name in ("sub", "isub") and first:
        return -torch.as_tensor(other), 1.0
    if name in ("sub", "isub", "rsub"):
        return (torch.as_tensor(other) if name == "rsub" else result + noise), -1.0
    return None


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, Marked) else value
