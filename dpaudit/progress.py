"""How far something is, as its caller wants to hear it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

OnStep = Callable[[int, int], None]  # steps done, steps in all
OnProgress = Callable[[str, int, int], None]  # what, steps done, steps in all (0: unknown)


def silent(done: int, total: int) -> None:
    """Report no step."""


def unreported(what: str, done: int, total: int) -> None:
    """Report no progress."""


@contextmanager
def one_step(on_progress: OnProgress, what: str) -> Iterator[None]:
    """Report something of a single step, when it begins and when it is over."""
    on_progress(what, 0, 1)
    yield
    on_progress(what, 1, 1)


def counted(on_progress: OnProgress, what: str, found: Iterable[T], total: int) -> Iterator[T]:
    """The same, each reported as a step."""
    on_progress(what, 0, total)
    for done, one in enumerate(found, 1):
        on_progress(what, done, total)
        yield one


def step_of_part(on_step: OnStep, part: int, n_parts: int, done: int, total: int) -> None:
    """Report a step of one of several parts that are done one after the other."""
    on_step(part * total + done, n_parts * total)
