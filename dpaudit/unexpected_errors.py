"""Why there is no answer; what nobody foresaw is one line, and its traceback is in a file."""

import errno
import re
import sysconfig
import traceback
from pathlib import Path
from tempfile import NamedTemporaryFile

from .errors import DpauditError, Problem, is_out_of_memory
from .text import one_line

_NOT_WRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)
_LONGEST = 300  # characters of an error's own text that the line repeats
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
_DPAUDIT = str(Path(__file__).parent)
_INSTALLED = (
    _DPAUDIT,
    *(str(Path(__file__).parents[1] / family) for family in ("attacks", "defenses", "reports")),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


def problems_of(error: BaseException) -> tuple[Problem, ...]:
    """Why there is no answer: what a user can repair, or a bug."""
    if isinstance(error, DpauditError) and str(error):
        return error.problems
    if is_out_of_memory(error):
        return (Problem("DPA021", "out of memory"),)
    if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:
        where = "the output" if error.filename is None else error.filename
        return (Problem("DPA016", f"{where}: cannot write: {error.strerror}"),)
    return (Problem("DPA027", unforeseen(error)),)


def unforeseen(error: BaseException) -> str:
    """One printable line on an error that is no DpauditError: what, where, and the log file.

    The log is in the system's folder for temporary files, which TMPDIR names.
    """
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
        log = f"traceback: {file.name}"
    except OSError as failure:
        log = f"no traceback was kept: {failure.strerror}"
    return one_line(f"unforeseen {described(error)}; a bug in {_last(error)[1]}; {log}")


def described(error: BaseException) -> str:
    """What it says and where it happened."""
    said = " ".join("".join(traceback.format_exception_only(error)).split())[:_LONGEST]
    return said + place(error)


def place(error: BaseException) -> str:
    """The last line of code that is no library's, if any is, to follow what is said of it."""
    return _last(error)[0]


def _last(error: BaseException) -> tuple[str, str]:
    """The last line of the traceback, and whose code it is."""
    if error.__cause__ is None:
        summary = traceback.extract_tb(error.__traceback__)
        frames = [(frame.filename, str(frame.lineno)) for frame in summary]
    else:  # the error is of another process
        frames = _FRAME.findall(str(error.__cause__))
    own = [frame for frame in frames if not frame[0].startswith((*_INSTALLED, "<"))]
    last = (own or frames)[-1:]
    where = "".join(f", in {file}, line {line}" for file, line in last)
    ours = [i for i, (file, _) in enumerate(frames) if file.startswith(_DPAUDIT)]
    called = bool(own and ours) and frames.index(own[-1]) > ours[0]
    return where, "code that is not dpaudit's" if called else "dpaudit or a plug-in"
