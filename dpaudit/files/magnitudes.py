"""Numbers of an audit that no arithmetic on them survives, found before anything is computed."""

from collections.abc import Iterator
from typing import Any

from dpaudit.errors import Problem

from .file_problems import FileKey, FileProblem

LARGEST = 1e100  # of a float: its cube is one, too
SMALLEST = 1e-100  # of a float that is not 0
LARGEST_COUNT = 10**9  # of an integer; memory and time end long before
MOST_ROUNDS = 10**6


def extreme_numbers(value: Any, at: FileKey = ()) -> Iterator[FileProblem]:
    """The numbers inside of a table whose size cannot be meant; a seed may be of any."""
    if isinstance(value, dict):
        inside: list[tuple[str | int, Any]] = [*value.items()]
    else:
        inside = [*enumerate(value)] if isinstance(value, list | tuple) else []
    for key, child in inside:
        if key != "seed":
            yield from extreme_numbers(child, (*at, key))
    if isinstance(value, bool):
        return
    most = MOST_ROUNDS if at[-1:] == ("n_rounds",) else LARGEST_COUNT
    if isinstance(value, int) and abs(value) > most:
        yield at, Problem("DPA004", f"expected an integer of at most {most:,}, got {value}")
    if isinstance(value, float) and value != 0 and not SMALLEST <= abs(value) <= LARGEST:
        said = f"expected 0 or a number of size {SMALLEST:g} to {LARGEST:g}, got {value!r}"
        yield at, Problem("DPA004", said)
