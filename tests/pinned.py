"""Figures of fixed inputs, to seven digits: what they mean is tested beside closed forms.

A factor that is left out, a tail that is swapped or a limit that moves changes one of them. A change
of a figure is meant, or it is a mistake: CONTRIBUTING.md says how numbers may change.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch


def flat(value: Any) -> list[Any]:
    """Numbers, texts and None of nested results, in order; arrays entry by entry."""
    return list(_leaves(value))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(key)
            yield from _leaves(value[key])
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, bool | np.bool_):
        yield bool(value)
    elif isinstance(value, int | float | np.number):
        yield float(value)
    else:
        yield value


def hold(value: Any, expected: Sequence[Any]) -> None:
    """That the figures are these to a relative 1e-7, and all else is equal."""
    found = flat(value)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, float) and not isinstance(other, bool | str | None):
            assert one == pytest.approx(other, rel=1e-7, abs=1e-12)
        else:
            assert one == other
