"""`dpaudit explain`: an entry of the glossary, or the page of a code."""

import re
from typing import Annotated

from typer import Argument

from dpaudit.codes import entries, page
from dpaudit.errors import ConfigError, nearest
from dpaudit.files.glossary import entry_of, names, nearest_entry

from .terminal import errors_as_exit_codes, say

_CODE = re.compile("dpa[0-9]", re.IGNORECASE)


def explain(
    term: Annotated[
        list[str] | None,
        Argument(metavar="TERM|CODE", help="A verdict, a term, or a code; none: all of them."),
    ] = None,
) -> None:
    """What a verdict, a word of a report, or the code of an error means."""
    asked = " ".join(term or ())
    with errors_as_exit_codes():
        if not term:
            say(f"dpaudit explain TERM, one of: {', '.join(names())}")
            say(f"dpaudit explain CODE, one of: {', '.join(entries())}")
        elif (code := asked.upper()) in entries():
            for line in page(code).rstrip().split("\n"):
                say(line)
        elif found := entry_of(asked):
            say(": ".join(found))
        else:
            close = nearest(code, entries()) if _CODE.match(asked) else nearest_entry(asked)
            said = f'the glossary has no "{asked}"{close}'
            raise ConfigError("DPA006", said, "dpaudit explain alone lists all words and codes")
