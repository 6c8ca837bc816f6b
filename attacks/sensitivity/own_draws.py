"""Whether a step draws numbers that ``noise`` does not give it, and that may seldom matter.

A step whose messages differ when it is played again is refused. One that leaves out its noise once
in a thousand rounds, by a coin of its own, is hardly ever seen to differ: so it is seen that it
draws at all.
"""

import inspect
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class OwnDraws:
    """Whether there were any."""

    def __init__(self) -> None:
        self.any = False


@contextmanager
def watched(defense: object) -> Iterator[OwnDraws]:
    """Notes draws of Python's, NumPy's and torch's own generators and of the system's entropy.

    Of further generators, those that the module of the defense or its class keeps.
    """
    found, before = OwnDraws(), _states(defense)
    entropy = os.urandom, random._urandom  # type: ignore[attr-defined]

    def noted(n: int) -> bytes:
        found.any = True
        return entropy[0](n)

    os.urandom, random._urandom = noted, noted  # type: ignore[attr-defined]
    try:
        yield found
    finally:
        os.urandom, random._urandom = entropy  # type: ignore[attr-defined]
        found.any |= _states(defense) != before


def _states(defense: object) -> list[Any]:
    """Of all generators that a step may draw from without making one."""
    kind = type(defense)
    functions = (
        inspect.unwrap(f) for base in kind.__mro__ for f in vars(base).values() if callable(f)
    )
    # of functions and not of modules: a class need not be in one that was imported
    modules = {id(f.__globals__): f.__globals__ for f in functions if inspect.isfunction(f)}
    places = [*map(vars, kind.__mro__), *modules.values()]
    kept = {id(x): x for place in places for x in place.values() if isinstance(x, GENERATORS)}
    return [
        random.getstate(),
        _numbers(np.random.get_state()),  # noqa: NPY002
        torch.get_rng_state().numpy().tobytes(),
        *(_state(generator) for generator in kept.values()),
    ]


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _numbers(generator.get_state())
    return generator.getstate()


def _numbers(state: Any) -> str:
    return repr([part.tobytes() if isinstance(part, np.ndarray) else part for part in state])
