"""`dpaudit explain`: an entry of the glossary."""

from typing import Annotated

from typer import Argument

from dpaudit.errors import ConfigError
from dpaudit.files.glossary import entry_of, names, nearest_entry

from .terminal import errors_as_exit_codes, say


def explain(
    term: Annotated[
        list[str] | None, Argument(metavar="TERM", help="A verdict or a term; none: all of them.")
    ] = None,
) -> None:
    """What a verdict or a word of a report means."""
    with errors_as_exit_codes():
        if not term:
            say(f"dpaudit explain TERM, one of: {', '.join(names())}")
            return
        found = entry_of(" ".join(term))
        if found is None:
            asked = " ".join(term)
            raise ConfigError(
                f'the glossary has no "{asked}"{nearest_entry(asked)}; dpaudit explain lists all'
            )
    name, text = found
    say(f"{name}: {text}")
