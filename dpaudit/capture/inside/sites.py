"""Which line of the program a call comes from."""

import os
import sys
import sysconfig
from types import CodeType

_INSTALLED = ("site-packages", "dist-packages")
_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TRANSPORTS = ("torch", "zmq")  # packages whose lines are not the program's
NOWHERE = "unknown:0"  # no line of the program: a thread of torch's own


class Sites:
    """Names the lines of a program, "train.py:88".

    Args:
        origin: the folder in which the command was started.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._folder = os.getcwd()  # that relative names of source files are relative to
        loaded = [sys.modules[name].__file__ for name in _TRANSPORTS if name in sys.modules]
        self._skipped = [os.path.dirname(file) + os.sep for file in loaded if file]
        self._named: dict[CodeType, str | None] = {}

    def here(self) -> str:
        """The innermost line, of those that led here, that is not a transport's or Python's own."""
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            try:
                name = self._named[code]
            except KeyError:
                name = self._named[code] = self._name(code.co_filename)
            if name is not None:
                return f"{name}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return NOWHERE

    def _name(self, file: str) -> str | None:
        if file.startswith("<"):
            return None if file.startswith("<frozen") else file
        path = os.path.normpath(os.path.join(self._folder, file))
        installed = any(part in path.split(os.sep) for part in _INSTALLED)
        if path.startswith((_OWN, *self._skipped)) or (path.startswith(_LIBRARY) and not installed):
            return None
        places = [self._origin, *sorted(filter(None, sys.path), key=len, reverse=True)]
        for place in places if not installed else places[1:]:
            if path.startswith(os.path.join(place, "")):
                return os.path.relpath(path, place)
        return path
