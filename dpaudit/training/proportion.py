"""Whether what is done to the noise of a round, or to its gradients, shows in proportion."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

LOUD = 1e4  # times the noise, or the gradients: what that does not move, nothing does
CLOSE = 0.03  # of the noise of a row: a difference that no test would tell
WEAKER = 4.0  # times: a move of the data by which it is seen whether they are in proportion
QUIETER = 6  # sizes of such moves that are tried

Messages = dict[str, Tensor]  # name -> [streams, rows, d]


class Twofold(NamedTuple):
    """What shows whether a step is linear in its noise."""

    doubled: Messages
    second: Messages  # another draw
    both: Messages  # the sum of the two


def is_linear(once: Tensor, twofold: Twofold, name: str, base: Tensor, tolerance: float) -> bool:
    """Whether twice the noise adds twice as much to a message, and two draws what each does."""
    doubled, second, both = (messages[name] - base for messages in twofold)
    return near(doubled, 2 * once, tolerance) and near(both, once + second, tolerance)


def is_in_proportion(
    move: Callable[[float], Tensor], moved: Tensor, size: float, tolerance: float
) -> bool:
    """Whether what this size of a move makes is as many times what a weaker one does."""
    return near(moved, WEAKER * move(size / WEAKER), WEAKER * tolerance)


def size_like(
    noise: Tensor, move: Callable[[float], Tensor], loud: Tensor, tolerance: float
) -> float:
    """The size of a move that is as large as the noise, and in proportion; ``LOUD`` if none is."""
    size, moved = LOUD, loud
    for _ in range(QUIETER):
        size *= (noise.square().mean() / moved.square().mean().clamp(min=1e-30)).sqrt().item()
        if not 0 < size < LOUD:
            break
        moved = move(size)
        if is_in_proportion(move, moved, size, tolerance):
            return size
    return LOUD


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
        size = torch.minimum(size, other.square().mean(dim=0).sqrt())
    return bool(((one - other).abs() <= CLOSE * size + tolerance).all())
