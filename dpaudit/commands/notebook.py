"""Progress in a notebook: a line that is written anew in its place. It needs no ipywidgets."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape

from dpaudit.progress import OnProgress
from dpaudit.text import one_line

from .running import Tally
from .terminal import stderr

EVERY = 0.5  # seconds between lines


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return bool(stderr.is_jupyter)


@contextmanager
def notebook_progress(clock: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """What is running and how long is left, below the cell; at the end, how long it took."""
    from IPython.display import display

    tally = Tally(clock)
    place = display(_line("beginning"), raw=True, display_id=True)
    said = clock()

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal said
        tally(what, done, total)
        if clock() - said >= EVERY:
            said = clock()
            place.update(_line(tally.line()), raw=True)

    yield on_progress
    place.update(_line(f"{tally.line().partition(':')[0]}: done"), raw=True)


def _line(text: str) -> dict[str, str]:
    """A line in both forms that a notebook may show."""
    shown = one_line(text)
    return {"text/plain": shown, "text/html": f"<code>{escape(shown)}</code>"}
