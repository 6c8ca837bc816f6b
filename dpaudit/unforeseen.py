"""What nobody foresaw is one line; its traceback goes to a file that the line names."""

import traceback
from tempfile import NamedTemporaryFile

from .text import one_line

_LONGEST = 300  # characters of an error's own text that the line repeats


def unforeseen(error: BaseException) -> str:
    """One printable line on an error that is no DpauditError: what, where, and the log file.

    The log is in the system's folder for temporary files, which TMPDIR names.
    """
    said = " ".join("".join(traceback.format_exception_only(error)).split())[:_LONGEST]
    frames = traceback.extract_tb(error.__traceback__)
    if frames and error.__cause__ is None:  # otherwise it happened in another process
        said += f", in {frames[-1].filename}, line {frames[-1].lineno}"
    return one_line(f"unforeseen {said}; a bug in dpaudit or a plug-in; {_logged(error)}")


def _logged(error: BaseException) -> str:
    """Where the traceback is, or why it is nowhere."""
    try:
        with NamedTemporaryFile(
            "w",
            encoding="utf-8",
            errors="backslashreplace",
            prefix="dpaudit-",
            suffix=".log",
            delete=False,
        ) as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as failure:
        return f"no traceback was kept: {failure.strerror}"
    return f"traceback: {file.name}"
