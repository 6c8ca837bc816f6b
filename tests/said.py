"""What a command says on stderr."""

import re

_ERROR = re.compile(r"^error\[DPA\d{3}\]: ", re.MULTILINE)
_TIME = re.compile(r"^after [\d.]+ \w+: .*\n?", re.MULTILINE)
_HELP = re.compile(r"^help: .*\n?", re.MULTILINE)


def without_help(stderr: str) -> str:
    """Its lines without those on what to do or how long it has taken, and without codes."""
    return _ERROR.sub("error: ", _HELP.sub("", without_times(stderr)))


def without_times(stderr: str) -> str:
    """Its lines without those on how long it has taken."""
    return _TIME.sub("", stderr)
