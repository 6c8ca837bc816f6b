"""Whether what is done to the noise of a round, or to its gradients, shows in proportion."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

LOUD = 1e4  # times the noise, or the gradients: what that does not move, nothing does
LOUDNESSES = (LOUD, 100.0, 4.0, 1.0, 0.0625)  # the first at which messages are finite is taken
CLOSE = 0.03  # of the noise of a row: a difference that no test would tell
WEAKER = 4.0  # times: a move of the data by which it is seen whether they are in proportion
MANY = 7  # streams, in which a coordinate with noise is seldom without much
QUIETER = 6  # sizes of such moves that are tried

Payloads = dict[str, Tensor]  # name -> [streams, rows, d]


class Twofold(NamedTuple):
    """What shows whether a step is linear in its noise."""

    once: Tensor  # [streams, rows, d]
    doubled: Tensor
    second: Tensor  # another draw
    both: Tensor  # the sum of the two


def is_linear(twofold: Twofold, base: Tensor, tolerance: float) -> bool:
    """Whether twice the noise adds twice as much to a message, and two draws what each does."""
    once, doubled, second, both = (message - base for message in twofold)
    return near(doubled, 2 * once, tolerance) and near(both, once + second, tolerance)


def is_in_proportion(
    move: Callable[[float], Tensor], moved: Tensor, size: float, tolerance: float
) -> bool:
    """Whether what this size of a move makes is as many times what a weaker one does."""
    return near(moved, WEAKER * move(size / WEAKER), WEAKER * tolerance)


def size_like(
    noise: Tensor,
    move: Callable[[float], Tensor],
    loud: Tensor,
    tolerance: float,
    loudness: float,
) -> float | None:
    """The size of a move that is as large as the noise, and in proportion; None if none is.

    Args:
        loud: what a move of the size ``loudness`` makes.
    """
    size, moved = loudness, loud
    for _ in range(QUIETER):
        size *= (noise.square().mean() / moved.square().mean().clamp(min=1e-30)).sqrt().item()
        if not 0 < size < loudness:
            break
        moved = move(size)
        if is_in_proportion(move, moved, size, tolerance):
            return size
    return None


def rounding(*messages: Tensor) -> float:
    """What float arithmetic may differ by in messages of this size."""
    largest = max(m.abs().max().item() for m in messages)
    return 64 * torch.finfo(messages[0].dtype).eps * largest


def near(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether they differ by less than any test would tell, in each row.

    And in each coordinate under all streams, where there are several: a part of a row that is not
    linear may be far smaller than the rest of it.
    """
    size = other.square().mean(dim=-1, keepdim=True).sqrt()
    if other.ndim > 2:
        few = (0,) if len(other) >= MANY else (0, 1)  # streams, in which one may be small by chance
        size = torch.minimum(size, other.square().mean(dim=few, keepdim=True).sqrt())
    return bool(((one - other).abs() <= CLOSE * size + tolerance).all())
