"""What one process sent, received and drew, written as it happens: nothing is lost by os._exit.

Two files for each process: NAME.bin, the contents of messages one after the other, and NAME.log,
a JSON object a line. Contents are written before the line that names them.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import threading
import time
import zlib
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from . import PROTOCOL
from .ranks import about_here

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from types import CodeType

Bytes = Any  # anything with the buffer protocol, one byte an item
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Packages whose lines are not the program's.
_LIBRARIES = (
    *("torch", "numpy", "scipy", "jax", "zmq", "grpc", "requests", "urllib3", "mpi4py", "ray"),
    *("httpx", "httpcore", "anyio", "aiohttp", "sklearn", "websockets"),
)
# By what the files and functions that led to a draw are called, which are no noise's.
_OF_MODELS = tuple(
    os.path.join("torch", "nn", name)
    for name in ("functional.py", os.path.join("modules", "dropout.py"))
)
_OF_LAYERS = os.path.join("torch", "nn", "modules", "")  # layers draw by torch.nn.init
_OF_DATA = (os.path.join("torch", "utils", "data", ""), os.path.join("torchvision", ""))
_OF_FILE_NAMES = tuple(folder + "tempfile.py" for folder in _LIBRARY)
_IMPORTING = "<frozen importlib"
_OF_MASKS = os.path.join("websockets", "")
_OF_SYMBOLS = os.path.join("sympy", "core", "symbol.py")  # torch.func and others import it late
_MAKING_MODELS = ("__init__", "reset_parameters", "init_weights", "initialize", "initialise")
_MAKING_DATA = ("__getitem__", "augment", "transform", "shuffle", "jitter", "dataset")
NOWHERE = "unknown:0"  # no line of the program: a thread of torch's own
MOST_OF_TEXT = 1_000  # characters of one that are written down
MOST_AT_A_SITE = 10_000  # draws of single numbers at one line that are written down


class Content(NamedTuple):
    """One tensor of a message."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Bytes


class Log:
    """The two files of this process, made when there is something to write; a fork has its own.

    Args:
        folder: where they go.
        most_bytes: of contents; more are not written, which the log then says.
    """

    def __init__(self, folder: str, most_bytes: int) -> None:
        self.folder, self._most_bytes = folder, most_bytes
        self._anew()
        os.register_at_fork(after_in_child=self._anew)

    def _anew(self) -> None:
        self.lock = threading.RLock()  # a thread that held the old one is not in the fork
        self._sequence = self._size = 0
        self._files: dict[int, tuple[int, int] | None] | None = None  # the log, then the contents
        self._over = False  # nothing more is written
        self._counts: defaultdict[Hashable, int] = defaultdict(int)

    @property
    def is_used(self) -> bool:
        """Whether this process has written anything."""
        return self._files is not None

    def number(self) -> int:
        """The next of this process's sequence numbers."""
        with self.lock:
            self._sequence += 1
            return self._sequence - 1

    def count(self, what: Hashable) -> int:
        """How often this was counted before."""
        with self.lock:
            self._counts[what] += 1
            return self._counts[what] - 1

    def begun(self, kind: str, operator: str, site: str, counted: Hashable) -> dict[str, Any]:
        """How a record of a message or a draw begins; ``counted``: of what earlier ones count."""
        begun = {"kind": kind, "sequence": self.number(), "time": time.time()}
        return {**begun, "operator": operator, "site": site, "occurrence": self.count(counted)}

    def unseen(self, text: str) -> None:
        """Something that could not be hooked, said once."""
        if not self.count(("unseen", text)):
            self.note("unseen", text)

    def beside(self, text: str) -> None:
        """What a message holds beside numbers."""
        if len(text) > MOST_OF_TEXT:
            text = f"{text[:MOST_OF_TEXT]} {zlib.crc32(text.encode('utf-8', 'replace')):08x}"
        self.write({"kind": "beside", "text": text})

    def note(self, kind: str, text: str) -> None:
        """Something about the process itself."""
        self.write({"kind": kind, "text": text, "time": time.time()})

    def write(self, record: dict[str, Any], contents: Iterable[Content] = ()) -> None:
        """A record, with the place of each content in the other file: [name, ..., at, size]."""
        self.end(json.dumps(record)[:-1], contents)

    def end(self, begun: str, contents: Iterable[Content] = ()) -> None:
        """The same, of a record as JSON without its closing brace."""
        with self.lock:
            if self._over:
                return
            try:
                self._append(begun, contents)
            except OSError as error:  # the disk is full, or the process may no longer write
                self._over = True
                self._lose(str(error))

    def _append(self, begun: str, contents: Iterable[Content]) -> None:
        log, data = self._opened()
        places = []
        for name, shape, dtype, content in contents:
            size = memoryview(content).nbytes
            if self._size + size > self._most_bytes:
                self._over = True
                _write(log, b'{"kind": "full"}\n')
                return
            _write(data, content)
            places.append(json.dumps([name, list(shape), dtype, self._size, size]))
            self._size += size
        tensors = f', "tensors": [{", ".join(places)}]' if places else ""
        _write(log, f"{begun}{tensors}}}\n".encode())

    def _lose(self, why: str) -> None:
        """Say in a file of its own that what follows is not recorded."""
        name = os.path.join(self.folder, f"{os.getpid()}-{time.time_ns()}.lost")
        with suppress(OSError), open(name, "w") as file:
            file.write(why)

    def _opened(self) -> tuple[int, int]:
        """The two files. A daemon closes all that it knows of, and their numbers are used again."""
        if self._files is None:
            self._open()
            self._begin()
        elif any(_identity(number) != self._files[number] for number in self._files):
            self._open(0)
        log, data = self._files  # type: ignore[misc]
        return log, data

    def _open(self, new: int = os.O_CREAT | os.O_EXCL) -> None:
        if new:
            self._name = os.path.join(self.folder, f"{os.getpid()}-{time.time_ns()}")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | new
        numbers = [os.open(f"{self._name}.{end}", flags, 0o666) for end in ("log", "bin")]
        self._files = {number: _identity(number) for number in numbers}

    def _begin(self) -> None:
        about: dict[str, Any] = {"kind": "process", "protocol": PROTOCOL, "pid": os.getpid()}
        command = list(map(str, getattr(sys, "argv", ())))
        about.update(
            time=time.time(), command=command, python=".".join(map(str, sys.version_info[:3]))
        )
        about.update(about_here())
        _write(next(iter(self._files or ())), (json.dumps(about) + "\n").encode())


def _identity(file: int) -> tuple[int, int] | None:
    """Which file an open one is; None: it is closed."""
    try:
        found = os.fstat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _write(file: int, content: Bytes) -> None:
    written, size = os.write(file, content), memoryview(content).nbytes
    while written < size:
        written += os.write(file, memoryview(content).cast("B")[written:])


class Sites:
    """Names the lines of a program, "train.py:88".

    Args:
        origin: the folder in which the command was started.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        try:
            self._folder = os.getcwd()  # relative names of source files are relative to it
        except OSError:  # it is gone
            self._folder = origin
        self._skipped: dict[str, str] = {}  # folders of libraries that are loaded, by their names
        self._named: dict[CodeType, str | None] = {}
        self._purposes: dict[CodeType, tuple[str | None, bool]] = {}

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

    def is_of_libraries(self) -> bool:
        """Whether a library draws for itself: where it is imported, or names of temporary files.

        No function of the program stands between. SciPy draws to explain its distributions, sympy
        the names of symbols, and websockets the masks of its frames.
        """
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if file in _OF_FILE_NAMES or file.startswith(_IMPORTING):
                return True
            names_symbol = code.co_name == "Dummy" and file.endswith(_OF_SYMBOLS)
            if names_symbol or _OF_MASKS in file:
                return any(part in file for part in _INSTALLED)
            if self._named.get(code) is not None:
                return False
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def of(self, function: Any) -> str:
        """The line at which a function begins; a partial or a decorated one is what it is of."""
        while hasattr(function, "__wrapped__") or hasattr(function, "func"):
            function = getattr(function, "__wrapped__", None) or function.func
        code = getattr(function, "__code__", None)
        name = None if code is None else self._name(code.co_filename)
        return NOWHERE if name is None or code is None else f"{name}:{code.co_firstlineno}"

    def purpose(self, of_library: bool = False) -> str | None:
        """What the functions that led here draw for: "model" or "data"; None: they do not say.

        Args:
            of_library: only those of torch count, and no name of the program's own.
        """
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code not in self._purposes:
                self._purposes[code] = _purpose(code)
            found, is_of_library = self._purposes[code]
            if found is not None and (is_of_library or not of_library):
                return found
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def _name(self, file: str) -> str | None:
        if file.startswith("<"):
            return None if file.startswith("<frozen") else file
        path = os.path.normpath(os.path.join(self._folder, file))
        installed = any(part in path.split(os.sep) for part in _INSTALLED)
        skipped = (_OWN, *self._libraries())
        if path.startswith(skipped) or (path.startswith(_LIBRARY) and not installed):
            return None
        places = [self._origin, *sorted(filter(None, sys.path), key=len, reverse=True)]
        for place in places if not installed else places[1:]:
            if path.startswith(os.path.join(place, "")):
                return os.path.relpath(path, place)
        return path

    def _libraries(self) -> Iterable[str]:
        for name in _LIBRARIES:
            file = getattr(sys.modules.get(name), "__file__", None)
            if name not in self._skipped and file and file.endswith("__init__.py"):
                self._skipped[name] = os.path.dirname(file) + os.sep
        return self._skipped.values()


def _purpose(code: CodeType) -> tuple[str | None, bool]:
    """What a function draws for, and whether its file says so instead of its name."""
    file, name = code.co_filename, code.co_name.lower()
    if file.startswith(_LIBRARY) and not any(part in file for part in _INSTALLED):
        return None, False  # such as Popen.__init__, in which a fork begins
    of_models = file.endswith(_OF_MODELS) or (_OF_LAYERS in file and "reset_parameters" in name)
    of_data = any(place in file for place in _OF_DATA)
    if of_models or any(word in name for word in _MAKING_MODELS):
        return "model", of_models
    if of_data or any(word in name for word in _MAKING_DATA):
        return "data", of_data
    return None, False
