"""How far something is, as its caller wants to hear it."""

from collections.abc import Callable

OnStep = Callable[[int, int], None]  # steps done, steps in all
OnProgress = Callable[[str, int, int], None]  # what is done, steps done, steps in all


def silent(done: int, total: int) -> None:
    """Report no step."""


def unreported(what: str, done: int, total: int) -> None:
    """Report no progress."""


def step_of_part(on_step: OnStep, part: int, n_parts: int, done: int, total: int) -> None:
    """Report a step of one of several parts that are done one after the other."""
    on_step(part * total + done, n_parts * total)
