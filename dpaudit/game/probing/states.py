"""A defense's state as rows of numbers, one for each trial."""

from typing import Any

import torch
from torch import Tensor

ROUNDING = 1e-12  # of the largest number


def flat_state(state: Any) -> Tensor:
    """The floating tensors of a state that have trials in front, [trials, width]."""
    return torch.cat([t.flatten(1) for t in varying(state).values()], dim=1)


def state_of(like: Any, flat: Tensor) -> Any:
    """The same state with these values [trials, width] in it."""
    parts, start = {}, 0
    for name, tensor in varying(like).items():
        size = tensor[0].numel()
        part = flat[:, start : start + size].to(tensor.dtype)
        parts[name] = part.reshape(len(flat), *tensor.shape[1:])
        start += size
    return like._replace(**parts)


def differs(values: Tensor) -> Tensor:
    """Which numbers [trials, n] are others than in the first trial, [trials - 1, n].

    Trials of one batch may be summed in different orders.
    """
    size = values.abs().where(values.isfinite(), 0.0).max().item() if values.numel() else 0.0
    return ~torch.isclose(values[1:], values[:1], 0.0, ROUNDING * size, equal_nan=True)


def varying(state: Any) -> dict[str, Tensor]:
    """The floating tensors of a state that have trials in front, by name."""
    return {
        name: tensor
        for name, tensor in state._asdict().items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.ndim >= 3
    }
