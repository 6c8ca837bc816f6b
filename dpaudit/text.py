"""Text of files and plug-ins on its way out: what is not seen is shown escaped, and stays in place.

Every string that leaves the program comes through here. Escaped are control characters, ends of
lines and paragraphs, marks that turn the direction of text or have no width, spaces other than the
ordinary one, halves of surrogate pairs, and what Unicode leaves unassigned: a claim cannot paint
the terminal, begin a line of its own, or read otherwise than it is written.
"""

import json
import re
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isfinite

# Letters and marks that are drawn as nothing; str.isprintable knows all others.
_DRAWN_AS_NOTHING = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
_BEYOND_ASCII = re.compile(r"[^\x20-\x7e]")
SURE = 12  # digits of a float that rounding has not touched
# What CI systems read as a command: "::error::" where a line begins, "##[error]" anywhere.
_COMMAND = re.compile(r"^ *:(?=:)|#(?=#\w*\[)")


def one_line(text: str) -> str:
    """A text as a part of a line."""
    return _shown(text, lambda c: c.encode("unicode_escape").decode("ascii"))


def whole_line(text: str) -> str:
    """A text as a line of the terminal, which no CI system takes for one of its commands."""
    return _COMMAND.sub(lambda found: _hexadecimal(found[0]), one_line(text))


def lines(text: str) -> str:
    """A page whose own lines are kept."""
    return "\n".join(map(one_line, text.split("\n")))


def duration(seconds: float) -> str:
    """A time for people, with its unit."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            count = float(f"{seconds / size:.2g}")
            return f"{count:{',.0f' if count >= 100 else 'g'}} {unit}"
    return f"{seconds:.0f} s"


def json_lines(text: str) -> str:
    """JSON with the same content, for the terminal."""
    shown = "\n".join(_shown(line, lambda c: json.dumps(c)[1:-1]) for line in text.split("\n"))
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", shown)


def at_least(x: float, digits: int = 3) -> str:
    """A lower end in so many digits, rounded down: it stays one."""
    return _end(x, digits, ROUND_FLOOR)


def at_most(x: float, digits: int = 3) -> str:
    """An upper end in so many digits, rounded up: it stays one."""
    return _end(x, digits, ROUND_CEILING)


def _end(x: float, digits: int, side: str) -> str:
    if not isfinite(x):
        return f"{x:g}"
    exact = Decimal(f"{x:.{SURE}g}")  # 0.1 + 0.2 is 0.3
    return f"{float(Context(digits, side).plus(exact)):.{digits}g}"


def apart(value: float, other: float) -> str:
    """A number in three digits, or in as many, up to seven, as it takes to differ from another.

    A large one is a whole number with commas, 2,400 and not 2.4e+03.
    """
    written = ((f"{value:.{n}g}", f"{other:.{n}g}") for n in range(3, 8))
    found = next((ours for ours, theirs in written if ours != theirs), f"{value:.3g}")
    return f"{value:,.0f}" if "e+" in found else found


def times(ratio: float, what: str) -> str:
    """So many times something; the thing alone where the ratio is 1."""
    factor = apart(ratio, 1.0)
    return what if factor == "1" else f"{factor} times {what}"


def _shown(text: str, escape: Callable[[str], str]) -> str:
    return _BEYOND_ASCII.sub(lambda found: found[0] if _seen(found[0]) else escape(found[0]), text)


def _seen(character: str) -> bool:
    return character.isprintable() and not _DRAWN_AS_NOTHING.match(character)


def _hexadecimal(found: str) -> str:
    return f"{found[:-1]}\\x{ord(found[-1]):02x}"
