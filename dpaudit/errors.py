"""What a user can cause and can repair: one clear line each, exit code 2, no traceback."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple, Self

from .text import one_line

MOST_LINES = 10  # lines of one error that are printed; more are counted
LONGEST_LINE = 480  # characters; of a longer line the middle is left out
LONGEST_NAME = 60  # a longer one is no misspelt word, and takes long to compare


class Problem(NamedTuple):
    """One thing that a user can repair."""

    code: str  # code of its page, such as "DPA017": dpaudit explain DPA017
    text: str  # one line: what was wrong, where, and what was expected
    help: str = ""  # what to do; "": see the page of the code


class DpauditError(Exception):
    """Bad input or circumstances: the message says what was wrong, where, and what was expected.

    What a file holds may be part of a message, so lines are bounded in length and number, and show
    what is not seen.

    Args:
        code: of the page that explains it, in ``codes.toml``.
        text: a line for each problem.
        help: what to do about it; "": what the page says.
    """

    most_lines = MOST_LINES

    def __init__(self, code: str, text: str, help: str = "") -> None:
        self._hold([Problem(code, line, help) for line in text.split("\n")])

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> Self:
        """Several problems that were found at once, at least one, as one error."""
        first, *others = problems
        error = cls(*first)
        error._hold([first, *others])
        return error

    def _hold(self, problems: list[Problem]) -> None:
        shown, more = problems[: self.most_lines], problems[self.most_lines :]
        if more:
            shown.append(more[0]._replace(text=f"and {len(more)} more"))
        self.problems = tuple(
            one._replace(text=shortened(one_line(one.text), LONGEST_LINE)) for one in shown
        )
        advice = f"{problems[0].help}; " if problems[0].help else ""
        self.__notes__ = [f"help: {advice}see dpaudit explain {self.code}"]  # below a traceback

    @property
    def code(self) -> str:
        """The code of the first problem."""
        return self.problems[0].code

    def __str__(self) -> str:
        return "\n".join(problem.text for problem in self.problems)


class ConfigError(DpauditError):
    """A configuration file, or a value in it, that cannot be meant."""


class OutsideTheory(ConfigError):
    """A setting that the paper's theory does not allow.

    Args:
        code: of the page that explains it.
        condition: what the theory needs, and what it got.
        help: what to do about it.
    """

    def __init__(
        self,
        code: str,
        condition: str,
        help: str = "allow_outside_theory = true runs it all the same",
    ) -> None:
        super().__init__(code, condition, help)


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


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a module that says what names of before are called now."""

    def missing(name: str) -> object:
        if name in names:
            raise ImportError(f"{module}.{name} is now {module}.{names[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing
