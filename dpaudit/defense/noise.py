"""Gaussian and Laplace noise from named streams: the same name gives the same draws."""

from typing import Any

import torch
from torch import Tensor

from dpaudit.errors import PluginError
from dpaudit.rng import Streams

Scale = float | Tensor
_INTEGERS = (torch.int64, torch.int32)
SIGNED = 16  # draws that have signs of their own; those of more agree in pairs


class Noise:
    """The noise of one round, a stream for each message.

    Everything drawn depends on the seed, the round and the message's name alone, so a round run
    again (to resume, or in a world that differs in one record) meets the same noise.
    """

    def __init__(self, streams: Streams, round: int) -> None:
        self._streams = streams
        self._round = round
        self.known_to: dict[str, Tensor] = {}  # the agents that know each row of a shared draw

    def shared(self, message: str, std: Scale, like: Tensor, known_to: Tensor) -> Tensor:
        """Gaussian noise that several agents draw together, from a seed that they share.

        An adversary that has one of a row's agents on its side knows that row. Other noise is
        known to the agent that draws it: ``like`` has a row for each agent, or each edge.

        Args:
            known_to: [rows, n], the agents that know each row of ``like``; n = 0: nobody does.

        Raises:
            PluginError: ``known_to`` has other rows than ``like``, or holds no agents' numbers.
        """
        _refuse_other_rows(message, known_to, like.shape[-2])
        self.known_to[message] = known_to
        return self.gaussian(message, std, like)

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        """N(0, std^2) per coordinate, in the shape of ``like``.

        Args:
            message: names the stream.
            std: standard deviation >= 0, a number or broadcastable to ``like``; 0 draws nothing.
            like: gives shape, dtype and device.
        """
        if _is_zero(std):
            return torch.zeros_like(like)
        draws, generator = torch.empty_like(like), self._stream(message)
        if isinstance(std, Tensor):
            return draws.normal_(generator=generator) * std
        return draws.normal_(0.0, std, generator=generator)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        """Laplace of this scale (std / sqrt(2)) per coordinate, in the shape of ``like``."""
        if _is_zero(scale):
            return torch.zeros_like(like)
        return _scaled(standard_laplace(like, self._stream(message)), scale)

    def _stream(self, message: str) -> torch.Generator:
        return self._streams("noise", self._round, message)


def _refuse_other_rows(message: str, known_to: Any, rows: int) -> None:
    is_tensor = isinstance(known_to, Tensor)
    right = is_tensor and known_to.ndim == 2 and len(known_to) == rows
    if right and (not known_to.numel() or known_to.dtype in _INTEGERS):
        return
    shape = f"{list(known_to.shape)} of {known_to.dtype}" if is_tensor else type(known_to).__name__
    raise PluginError(
        "DPA043",
        f'noise.shared("{message}") is known to {shape}; expected the numbers of agents that know '
        f"each row, [{rows}, n] of torch.int64",
    )


def turnings(n_draws: int) -> range:
    """Ways to give draws other signs, of which the first leaves all as they are.

    They are the rows of a Hadamard matrix: over all of them the squares of what several draws add
    to a message have the mean that independent draws give them, whether they are added or
    subtracted.
    """
    return range(1 << (min(n_draws, SIGNED) - 1).bit_length() if n_draws else 1)


def turned_sign(number: int, turning: int) -> int:
    """The sign of the draw of this number, from 0, in one of ``turnings``."""
    return -1 if (number & turning).bit_count() % 2 else 1


def standard_laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Laplace(0, 1) in the shape of ``like``, by inversion, never infinite.

    float32 ``uniform_(-1, 1)`` returns exactly -1 about once in 2^24 draws, where log(1 - |u|) is
    -inf; |u| is capped one float below 1, which bounds a draw by 16.7 (float32) or 36.8 (float64).
    The draws u are multiples of eps, so that 1 - |u| is exact: log1p would give the same, later.
    """
    u = torch.empty_like(like).uniform_(-1, 1, generator=generator)
    rest = torch.rsub(u.abs(), 1.0).clamp_(min=torch.finfo(like.dtype).eps / 2)  # 1 - |u|
    return torch.copysign(rest.log_(), u, out=u)


def _scaled(draws: Tensor, scale: Scale) -> Tensor:
    """Scale the draws, in place unless the scale's type is the larger one."""
    if isinstance(scale, Tensor) and torch.result_type(draws, scale) != draws.dtype:
        return draws * scale
    return draws.mul_(scale)


def _is_zero(scale: Scale) -> bool:
    return not isinstance(scale, Tensor) and scale == 0
