"""How far something is, as its caller wants to hear it."""

from collections.abc import Callable

OnStep = Callable[[int, int], None]  # steps done, steps in all
OnProgress = Callable[[str, int, int], None]  # what is done, steps done, steps in all
