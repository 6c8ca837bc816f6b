"""Cases of which the fast suite runs some; ``make slow`` runs the others."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def fast_if(is_fast: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """The same cases, with those marked slow for which ``is_fast`` is false."""
    slow = pytest.mark.slow
    return [case if is_fast(case) else pytest.param(case, marks=slow) for case in cases]
