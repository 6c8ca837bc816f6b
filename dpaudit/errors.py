"""What a user can cause and can repair: one clear line each, exit code 2, no traceback."""

from collections.abc import Iterable
from difflib import get_close_matches

from .text import one_line

MOST_LINES = 10  # of one error; what follows is counted
LONGEST_LINE = 480  # characters; of a longer line the middle is left out
LONGEST_NAME = 60  # a longer one is no misspelt word, and takes long to compare


class DpauditError(Exception):
    """Bad input or circumstances: the message says what was wrong, where, and what was expected.

    Several problems found at once are one error whose text has a line for each. What a file holds
    may be part of it, so lines are bounded in length and number, and show what is not seen.
    """

    most_lines = MOST_LINES

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        shown = [shortened(one_line(line), LONGEST_LINE) for line in lines[: self.most_lines]]
        more = len(lines) - len(shown)
        super().__init__("\n".join([*shown, f"and {more} more"] if more else shown))


class ConfigError(DpauditError):
    """A configuration file, or a value in it, that cannot be meant."""


class OutsideTheory(ConfigError):
    """A setting that the paper's theory does not allow.

    Args:
        condition: what the theory needs, and what it got.
        remedy: what to do about it.
    """

    def __init__(
        self, condition: str, remedy: str = "allow_outside_theory = true runs it all the same"
    ) -> None:
        super().__init__(f"{condition}; {remedy}")
        self.condition = condition


class PluginError(ConfigError):
    """A plug-in breaks its contract: which one, in which method, what it did, what was expected."""


class MissingPackage(DpauditError):
    """A package that only some need is not installed; the line says how to install it."""


class DataError(DpauditError):
    """A data set that is missing, damaged or of the wrong kind for what is asked of it."""


class RunError(DpauditError):
    """A run directory that cannot be written, read or resumed."""


class NotObservable(DpauditError):
    """An adversary's view does not hold what an attack needs; the message says which part."""


def shortened(text: str, longest: int) -> str:
    """A text without its middle if it is longer than that."""
    half = (longest - 5) // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, of Python, NumPy or torch, on the CPU or a CUDA device."""
    said = isinstance(error, RuntimeError) and str(error)
    return isinstance(error, MemoryError) or any(
        text in (said or "") for text in ("can't allocate memory", "out of memory")
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean "lenet"?)`` for a misspelt word, or the empty string when none is close."""
    if len(word) > LONGEST_NAME:
        return ""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""
