"""What a command says on stderr."""

import re

_ERROR = re.compile(r"^error\[DPA\d{3}\]: ", re.MULTILINE)
_HELP = re.compile(r"^help: .*\n?", re.MULTILINE)


def without_help(stderr: str) -> str:
    """Its lines without those on what to do, and without the codes of its problems."""
    return _ERROR.sub("error: ", _HELP.sub("", stderr))
