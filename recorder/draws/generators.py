"""From which generators something draws, by what it leaves of their states."""

from __future__ import annotations

import inspect
import os
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..values import library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ENTROPY = "os.urandom"


@contextmanager
def watched(
    functions: Iterable[Callable[..., Any]],
    given: Any = None,
    places: Iterable[Mapping[str, Any]] = (),
) -> Iterator[set[str]]:
    """Names of the generators that are drawn from meanwhile.

    Those of Python, NumPy and torch, the system's entropy, and any other that is kept in a name of
    the functions' modules.

    Args:
        given: a generator that they are given, "rng".
        places: where names are, beside these modules.
    """
    used: set[str] = set()
    modules = _modules_of(functions)
    kept = _kept([*places, *modules, {} if given is None else {"rng": given}])
    own, before = os.urandom, _states(kept)
    named = [(m, name) for m in (vars(os), vars(random), *modules) for name in m if m[name] is own]

    def noted(size: int) -> bytes:
        used.add(ENTROPY)
        return own(size)

    for module, name in named:
        module[name] = noted
    try:
        yield used
    finally:
        for module, name in named:
            module[name] = own
        after = _states(kept)
        used |= {name for (name, at), state in after.items() if before.get((name, at)) != state}


def _modules_of(functions: Iterable[Callable[..., Any]]) -> list[dict[str, Any]]:
    """The names of their modules; of functions, for a class need not be in an imported one."""
    plain = [inspect.unwrap(function) for function in functions]
    return [*{id(f.__globals__): f.__globals__ for f in plain if inspect.isfunction(f)}.values()]


def _kept(places: Iterable[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """The generators among the names of some places."""
    numpy, torch = library("numpy"), library("torch")
    kinds: tuple[type, ...] = (random.Random,)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    if torch is not None:
        kinds += (torch.Generator,)
    named = [(name, one) for place in places for name, one in place.items()]
    return [(name, one) for name, one in named if isinstance(one, kinds)]


def _states(kept: Iterable[tuple[str, Any]]) -> dict[tuple[str, int], Any]:
    """States of all global generators, by name and device."""
    numpy, torch = library("numpy"), library("torch")
    found: dict[tuple[str, int], Any] = {("random", 0): random.getstate()}
    if numpy is not None:
        found["numpy.random", 0] = _numbers(numpy.random.get_state())
    if torch is not None:
        found["torch", 0] = torch.get_rng_state().numpy().tobytes()
    return {**found, **{(name, id(one)): _state(one) for name, one in kept}}


def _state(generator: Any) -> Any:
    if hasattr(generator, "bit_generator"):
        return repr(generator.bit_generator.state)
    if hasattr(generator, "getstate"):
        return generator.getstate()
    state = generator.get_state()
    return state.numpy().tobytes() if hasattr(state, "numpy") else _numbers(state)


def _numbers(state: Any) -> str:
    return repr([part.tobytes() if hasattr(part, "tobytes") else part for part in state])
