"""What a user can cause and can repair: one clear line each, exit code 2, no traceback."""

from collections.abc import Iterable
from difflib import get_close_matches


class DpauditError(Exception):
    """Bad input or circumstances: the message says what was wrong, where, and what was expected.

    Several problems found at once are one error whose text has a line for each.
    """


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


class DataError(DpauditError):
    """A data set that is missing, damaged or of the wrong kind for what is asked of it."""


class RunError(DpauditError):
    """A run directory that cannot be written, read or resumed."""


class NotObservable(DpauditError):
    """An adversary's view does not hold what an attack needs; the message says which part."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean "lenet"?)`` for a misspelt word, or the empty string when none is close."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""
