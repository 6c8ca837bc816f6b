"""Ways between processes of which the contents are not recorded: that they are used is named.

An audit in which something was not seen supports no claim. Modules of Python that use such a way
for themselves, as ``multiprocessing`` does pipes, are left out.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import sysconfig
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..log import Log

PRINTED = "printed: "  # before a line that a process printed to the one that started it
BEGAN = "DPAUDIT_BEGAN"  # when the program began, in its environment
_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Packages that open files, pipes and sockets of their own.
_SERVICES = ("ray", "mpi4py", "zmq", "grpc")
_FOR_ITSELF = ("multiprocessing", "asyncio", "concurrent", "subprocess.py")  # of Python
_SUBPROCESS = tuple(f"{folder}subprocess.py" for folder in _STANDARD)
_SHARED_MAPS = (0, 2)  # ways to open a map: as the file allows, and to write to it
_READING = ("read", "read1", "readline", "readlines")
_STORE = ("set", "compare_set", "add", "append", "multi_set", "queue_push")


class UnseenWays:
    """The hooks of one process."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._own_files: set[str] = set()  # files that this process has written
        os.environ.setdefault(BEGAN, repr(time.time()))

    def watch(self) -> None:
        """From now on, name what this process opens."""
        sys.addaudithook(self._opened)
        make = os.pipe

        @functools.wraps(make)
        def pipe() -> Any:
            if _is_program():
                self._log.unseen("what passes by os.pipe is not recorded")
            return make()

        os.pipe = pipe

    def _opened(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            self._file(*given)
        elif event == "mmap.__new__" and given[2] in _SHARED_MAPS and _is_program():
            self._log.unseen("what is written into memory that mmap shares is not recorded")
        elif event == "sqlite3.connect" and str(given[0]) != ":memory:" and _is_program():
            self._log.unseen("what is written into a database of sqlite3 is not recorded")

    def _file(self, path: Any, mode: Any, flags: Any) -> None:
        """A file that is read and that another process has written since the program began."""
        if isinstance(path, int) or not isinstance(flags, int) or not self._log.folder:
            return
        try:
            name = os.path.abspath(os.fsdecode(path))
        except OSError:  # the working folder is gone: what is raised here, open() raises
            return
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._own_files.add(name)
        if flags & os.O_WRONLY or name in self._own_files or name.endswith((".pyc", ".py")):
            return
        if name.startswith(("/proc/", "/sys/", self._log.folder)):
            return
        try:
            found = os.stat(name)
        except OSError:
            return
        is_new = stat.S_ISREG(found.st_mode) and found.st_mtime > float(
            os.environ.get(BEGAN, "inf")
        )
        if (is_new or stat.S_ISFIFO(found.st_mode)) and _is_program():
            place = os.path.basename(name)
            self._log.unseen(f"a file that the program writes and reads is not recorded: {place}")

    def hook_shared_memory(self, module: Any) -> None:
        """Hook ``multiprocessing.shared_memory``."""
        self._name(module.SharedMemory, "__init__", "multiprocessing.shared_memory")

    def hook_shared_values(self, module: Any) -> None:
        """Hook ``multiprocessing.sharedctypes``, which also makes Value and Array."""
        for name in ("RawValue", "RawArray"):
            self._name(module, name, "Value and Array of multiprocessing")

    def hook_torch(self, torch: Any) -> None:
        """Tensors in shared memory, and what ``torch.distributed`` has beside its operators."""
        for kind, name in ((torch.Tensor, "share_memory_"), (torch.nn.Module, "share_memory")):
            self._name(kind, name, "tensors of torch that processes share", "torch")
        store = getattr(getattr(torch, "distributed", None), "Store", None)
        for name in _STORE if store is not None else ():
            if hasattr(store, name):
                self._name(store, name, "stores of torch.distributed", "torch")

    def hook_rpc(self, module: Any) -> None:
        """Hook ``torch.distributed.rpc``."""
        self._name(module, "init_rpc", "calls of torch.distributed.rpc")

    def hook_starting(self, subprocess: Any) -> None:
        """Pipes to and from Python programs that are started; what they print is read as text."""
        own, whole = subprocess.Popen.__init__, subprocess.Popen.communicate

        @functools.wraps(own)
        def begun(of: Any, args: Any, *given: Any, **named: Any) -> None:
            """Watch a new process's pipes, which are arguments three and four of Popen."""
            own(of, args, *given, **named)
            words = [os.fsdecode(w) for w in (args if isinstance(args, (list, tuple)) else [args])]
            is_ray = any(f"{os.sep}ray{os.sep}" in word for word in words)
            if is_ray or not any("python" in word for word in words[:2]):
                return
            if of.stdin is not None:
                self._log.unseen("what is written to the input of a process is not recorded")
            if of.stdout is not None and f"{os.sep}asyncio{os.sep}" in _caller():
                self._log.unseen("what a process prints into a pipe is not recorded")
            elif of.stdout is not None:
                of.stdout = Printed(of.stdout, self._log)

        @functools.wraps(whole)
        def communicate(of: Any, *given: Any, **named: Any) -> Any:
            out, error = whole(of, *given, **named)
            if isinstance(of.stdout, Printed) and out is not None:
                of.stdout.tell_once(out)
            return out, error

        subprocess.Popen.__init__, subprocess.Popen.communicate = begun, communicate

    def _name(self, of: Any, name: str, what: str, by: str = "") -> None:
        """Name the use of a function or a method that writes where nothing is recorded.

        Args:
            by: a package whose own calls do not count.
        """
        own: Callable[..., Any] = getattr(of, name)

        @functools.wraps(own)
        def call(*given: Any, **named: Any) -> Any:
            if not by or f"{os.sep}{by}{os.sep}" not in sys._getframe(1).f_code.co_filename:
                self._log.unseen(f"what is written into {what} is not recorded")
            return own(*given, **named)

        setattr(of, name, call)


class Printed:
    """What a process prints into a pipe, from which the program reads."""

    def __init__(self, own: Any, log: Log) -> None:
        self._own, self._log, self._told = own, log, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name)
        if name not in _READING:
            return found

        @functools.wraps(found)
        def read(*given: Any, **named: Any) -> Any:
            data = found(*given, **named)
            self._tell(type(data[0])().join(data) if name == "readlines" and data else data)
            return data

        return read

    def __iter__(self) -> Any:
        for line in self._own:
            self._tell(line)
            yield line

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *about: Any) -> None:
        self._own.close()

    def tell_once(self, whole: Any) -> None:
        """What was read by another way; nothing if it came by this one."""
        if not self._told:
            self._tell(whole)

    def _tell(self, data: Any) -> None:
        text = data if isinstance(data, str) else bytes(data or b"").decode("utf-8", "replace")
        self._told |= bool(text)
        for line in text.splitlines():
            self._log.beside(f"{PRINTED}{line}")


def begin_anew() -> None:
    """A run of the program begins in this process, which was made before."""
    os.environ[BEGAN] = repr(time.time())


def _caller() -> str:
    """The file of what starts a process."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((_OWN, *_SUBPROCESS)):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else frame.f_code.co_filename


def _is_program() -> bool:
    """Whether what led here is no module of Python, of the recorder, or of a service that does so
    for itself.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        parts = file.split(os.sep)
        if file.startswith(_OWN):
            if file != __file__:
                return False
        elif any(one in parts for one in _INSTALLED):
            return not any(one in parts for one in _SERVICES)
        elif file.startswith(_STANDARD):
            if any(one in parts for one in _FOR_ITSELF):
                return False
        elif not file.startswith("<frozen"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
