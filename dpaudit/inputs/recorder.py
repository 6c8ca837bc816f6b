"""The recorder: what this process, and the Python processes it starts, read of the user's files.

Audit events (PEP 578) report each file that Python opens, each folder that it lists and each
program that it starts; a finder that finds nothing reports each module that is looked for. What
lies in the standard library, among installed packages, in dpaudit itself or in the system's folders
is left out. Each entry is a line of JSON, appended to the log in one write, so that processes share
it; it is hashed when it is read, so that a run that is killed leaves what it read until then.

This module needs the standard library of Python 3.8 alone: ``inside/sitecustomize.py`` runs it in
children, which may be of another environment.
"""

from __future__ import annotations

import _imp
import hashlib
import importlib.util
import json
import os
import stat
import sys
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, all_suffixes
from types import FrameType, ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
MISSING, FOLDER, ENDLESS = "missing", "folder", "endless"  # stand for a file's hash
VARIABLE = "DPAUDIT_INPUTS"  # environment variable: JSON, {"log": a file, "exempt": [paths]}
INSIDE = os.path.join(_HERE, "inside")
SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/lib64", "/bin", "/sbin", "/run")
PACKAGES = ("site-packages", "dist-packages")
# Programs that installed packages ask about the machine: they read nothing of a user.
HARMLESS = ("uname", "fc-list", "ldconfig", "lscpu", "nvidia-smi", "sysctl")
# Packages that open files by native code, which no audit event reports.
NATIVE = ("h5py", "netCDF4", "tables", "pyarrow", "cv2", "lmdb", "duckdb", "polars", "soundfile")


class Recorder:
    """Where entries go: into a log, or kept until there is one."""

    def __init__(self, log: str | None, exempt: Iterable[str] = ()) -> None:
        self.log, self.exempt = log, tuple(exempt)
        self._said: set[str] = set()
        self._pending: list[tuple[str, ...]] = []

    def say(self, kind: str, path: str, *more: str) -> None:
        """One entry, once. Those on exempt paths are left out."""
        if kind != "unknown" and _is_below(path, self.exempt):
            return
        line = json.dumps((kind, path, *more))
        if line in self._said:
            return
        self._said.add(line)
        if self.log is None:
            self._pending.append((kind, path, *more))
            return
        try:
            file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return  # the run directory is gone, and its run will say so
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def write_to(self, log: str, exempt: Iterable[str]) -> None:
        """From now on entries go here, those of before first."""
        self.log, self.exempt = log, (*self.exempt, *exempt)
        pending, self._pending = self._pending, []
        self._said.clear()
        for entry in pending:
            self.say(*entry)


def _is_below(path: str, places: Iterable[str]) -> bool:
    """Whether it is one of these files and folders, or lies in one."""
    return any(path == one or path.startswith(f"{one}{os.sep}") for one in places)


_recorder: Recorder | None = None
_hooked = False
_busy: set[int] = set()  # threads in which the recorder itself opens files


def start(exempt: Iterable[str] = ()) -> None:
    """Record from now on, in this process; ``write_to`` says where to.

    Modules that were imported before count as read now.

    Args:
        exempt: files and folders that are no inputs, because something else binds them.
    """
    if _recorder is None:
        _begin(Recorder(None, map(os.path.abspath, exempt)))


def follow() -> None:
    """Record as the environment says, in a process that a recorded one started."""
    global _recorder
    given = json.loads(os.environ.get(VARIABLE, "{}"))
    if not given:
        _recorder = None
    elif _recorder is None or _recorder.log != given["log"]:
        _begin(Recorder(given["log"], given["exempt"]))


def write_to(log: str, exempt: Iterable[str]) -> None:
    """Write what is recorded to a log, in this process and those that it starts from now on."""
    if _recorder is None:
        return
    if not os.path.exists(log):
        os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666))
    _recorder.write_to(os.path.abspath(log), map(os.path.abspath, exempt))
    os.environ[VARIABLE] = json.dumps({"log": _recorder.log, "exempt": _recorder.exempt})
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([INSIDE, *([] if before is None else [before])])


@contextmanager
def recording(exempt: Iterable[str] = ()) -> Iterator[None]:
    """Record in the block, and from before where that has begun."""
    start(exempt)
    try:
        yield
    finally:
        stop()


def stop() -> None:
    """Record no more, in this process and those that it starts from now on."""
    global _recorder
    _recorder = None
    if os.environ.pop(VARIABLE, None) is not None:
        _, _, rest = os.environ["PYTHONPATH"].partition(INSIDE)
        os.environ["PYTHONPATH"] = rest.removeprefix(os.pathsep)
        if not os.environ["PYTHONPATH"]:
            del os.environ["PYTHONPATH"]


def note_unseen(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Note a command that dpaudit starts for the user, if what it reads cannot be seen."""
    if _recorder is not None and not _is_seen(command[0], command, environment):
        _recorder.say("unknown", _starts(command[0]))


def _begin(recorder: Recorder) -> None:
    global _recorder, _hooked
    _recorder = recorder
    _note_loaded(recorder)
    if not _hooked:
        _hooked = True
        sys.meta_path.insert(0, _Sought())
        sys.addaudithook(_audit)


def _note_loaded(recorder: Recorder) -> None:
    """The modules that are imported already, and where else they would have been looked for."""
    loaded = dict(sys.modules)
    for module in loaded.values():
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isabs(file) and not _is_installed_module(file):
            _read(recorder, file)
    names = [name for name in loaded if "." not in name and not _is_fixed(name)]
    for folder in _theirs(sys.path):
        there = {name.partition(".")[0] for name in names_in(folder)}
        for name in names:
            value = module_place(folder, name, False) if name in there else ""
            recorder.say("sought", folder, name, value)


class _Sought:
    """First on ``sys.meta_path``: notes what is looked for, and leaves it to others to find."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not _is_fixed(name):
            places = sys.path if path is None else path
            _follow(f"it imports {name}, which could not be followed", _sought, name, places)
        return None


def _follow(what: str, act: Callable[..., None], *arguments: Any) -> None:
    """Note what happens, but for what the recorder itself does; raises nothing in the program."""
    recorder, thread = _recorder, get_ident()
    if recorder is None or thread in _busy:
        return
    _busy.add(thread)
    try:
        act(recorder, *arguments)
    except Exception as error:  # such as an unreadable folder; Python will report it
        recorder.say("unknown", f"{what}: {error}")
    finally:
        _busy.discard(thread)


def _sought(recorder: Recorder, name: str, path: Iterable[str]) -> None:
    path = list(path)
    folders = _theirs(path)
    if not folders and name not in NATIVE:
        return
    spec = PathFinder.find_spec(name, path)
    tail, origin = name.rpartition(".")[2], None if spec is None else spec.origin
    regular = spec is not None and spec.loader is not None and origin is not None
    for folder in folders:
        kind = "sought" if regular else "sought with portions"
        recorder.say(kind, folder, tail, module_place(folder, tail, not regular))
    if origin is not None and os.path.isabs(origin):
        _read(recorder, origin)
    if name in NATIVE and spec is not None and any(map(_is_theirs_code, _stack())):
        recorder.say("unknown", f"it imports {name}, whose native code opens files unseen")


def _is_fixed(name: str) -> bool:
    """Whether no folder can hold another module in the place of this one."""
    return name in sys.builtin_module_names or _imp.is_frozen(name)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _ACTS:
        _follow(f"an event could not be followed: {event}", _ACTS[event], *arguments)


def _opened(recorder: Recorder, path: Any, mode: str | None, flags: int) -> None:
    if isinstance(path, int):
        return
    name = os.fsdecode(path)
    reads, empties = flags & os.O_ACCMODE != os.O_WRONLY, flags & os.O_TRUNC
    if reads and not empties and not flags & os.O_EXCL:
        _read(recorder, name)
    elif not os.path.exists(name) or (empties and os.access(name, os.W_OK)):
        _wrote(recorder, name)  # and what is only added to keeps what it held


def _wrote(recorder: Recorder, name: str) -> None:
    if not is_installed(name):
        recorder.say("wrote", os.path.abspath(name))


def _read(recorder: Recorder, path: str) -> None:
    path = os.path.abspath(path)
    if os.path.basename(os.path.dirname(path)) == "__pycache__":
        try:
            path = importlib.util.source_from_cache(path)
        except ValueError:
            return  # another cache, of numba for example, which its own source decides
    if is_installed(path):
        return
    value = content(path)
    if value == ENDLESS:
        recorder.say("unknown", f"it reads {path}, which is no regular file")
    elif value != FOLDER:
        recorder.say("read", path, value)
    is_native = path.endswith((".so", ".dylib", ".pyd")) or ".so." in os.path.basename(path)
    if is_native and value != MISSING:
        recorder.say("unknown", f"it loads {path}, native code that opens files unseen")


def _listed(recorder: Recorder, path: Any = None, *_: Any) -> None:
    folder = "." if path is None or isinstance(path, int) else os.fsdecode(path)
    if isinstance(path, int) or is_installed(folder) or not os.path.isdir(folder):
        return
    stack = _stack()
    first = stack[0] if stack else ""
    imports = first.startswith("<frozen importlib") or f"{os.sep}importlib{os.sep}" in first
    if not imports and not _is_own(stack):  # Python looks for modules, or dpaudit for its files
        recorder.say("listed", os.path.abspath(folder), "/".join(names_in(folder)))


def _renamed(recorder: Recorder, old: Any, new: Any, *_: Any) -> None:
    """Note a renamed file: what is read under its new name was the old one's content."""
    old, new = (os.path.abspath(os.fsdecode(path)) for path in (old, new))
    if not is_installed(old):
        recorder.say("moved", old, new, content(old))


def _linked(recorder: Recorder, to: Any, name: Any, *_: Any) -> None:
    folder = os.path.dirname(os.path.abspath(os.fsdecode(name)))
    _renamed(recorder, os.path.join(folder, os.fsdecode(to)), name)


def _made(recorder: Recorder, path: Any, *_: Any) -> None:
    if not isinstance(path, int) and not os.path.exists(path):
        _wrote(recorder, os.fsdecode(path))


def _database(recorder: Recorder, path: Any, *_: Any) -> None:
    if not isinstance(path, int) and os.fsdecode(path) != ":memory:":
        _read(recorder, os.fsdecode(path))


def _library(recorder: Recorder, name: Any, *_: Any) -> None:
    if isinstance(name, str) and os.sep in name:
        _read(recorder, name)


def _started(recorder: Recorder, program: Any, arguments: Any = (), *more: Any) -> None:
    """Note a started program. Popen gives (executable, arguments, cwd, env), others env next."""
    given = next((one for one in reversed(more) if isinstance(one, dict)), None)
    listed = arguments if isinstance(arguments, (list, tuple)) else [str(arguments)]
    command = [os.fsdecode(one) for one in listed]
    name = os.fsdecode(program) if program is not None else command[0]
    known = os.path.basename(name) in HARMLESS or _is_own(_stack())
    if not known and any(map(_is_theirs_code, _stack())) and not _is_seen(name, command, given):
        recorder.say("unknown", _starts(name))


def _shell(recorder: Recorder, command: Any, *_: Any) -> None:
    recorder.say("unknown", _starts(os.fsdecode(command)))


def _connected(recorder: Recorder, socket: Any, address: Any) -> None:
    host = str(address[0]) if isinstance(address, tuple) else ""
    if host and host not in ("localhost", "::1", "0.0.0.0") and not host.startswith("127."):
        recorder.say("unknown", f"it connects to {host}, and what it receives is not known")


_ACTS: dict[str, Callable[..., None]] = {
    "open": _opened,
    "os.listdir": _listed,
    "os.scandir": _listed,
    "os.mkdir": _made,
    "os.rename": _renamed,
    "os.link": _renamed,
    "os.symlink": _linked,
    "sqlite3.connect": _database,
    "ctypes.dlopen": _library,
    "subprocess.Popen": _started,
    "os.exec": _started,
    "os.posix_spawn": _started,
    "os.spawn": lambda recorder, mode, *more: _started(recorder, *more),
    "os.system": _shell,
    "pty.spawn": _shell,
    "socket.connect": _connected,
}


def _starts(program: str) -> str:
    return f"it starts {os.path.basename(program.split()[0])}, and what that reads is not known"


def _is_seen(program: str, command: Sequence[str], environment: Mapping[Any, Any] | None) -> bool:
    """Whether a program is Python that will record itself."""
    if not _is_python(program):
        return False
    given = {os.fsdecode(k): os.fsdecode(v) for k, v in (environment or os.environ).items()}
    if VARIABLE not in given or INSIDE not in given.get("PYTHONPATH", "").split(os.pathsep):
        return False
    for option in command[1:]:
        if not option.startswith("-") or option.startswith(("-c", "-m", "--")):
            break
        if set("IES") & set(option):  # isolated, or without sitecustomize
            return False
    return True


def _is_python(program: str) -> bool:
    """By its name, or by the first line of a script."""
    import shutil

    found = shutil.which(program)
    if found is None:
        return False
    if os.path.basename(found).startswith("python"):
        return True
    with open(found, "rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first.split(b"/")[-1]


def _theirs(path: Iterable[Any]) -> list[str]:
    """The folders of a module path that are the user's."""
    places = [os.path.abspath(place) for place in path if isinstance(place, str)]
    return [place for place in places if place != INSIDE and not is_installed(place)]


def is_installed(path: str) -> bool:
    """Whether a path, and what links in it lead to, are part of what is installed."""
    path = os.path.abspath(path)
    if not _is_installed_folder(os.path.dirname(path)) and not _lies_in_installed(path):
        return False
    return not os.path.islink(path) or _lies_in_installed(os.path.realpath(path))


@lru_cache(maxsize=10_000)
def _is_installed_module(file: str) -> bool:
    """Whether an imported module is installed; links count as where they led then."""
    return is_installed(file)


@lru_cache(maxsize=10_000)
def _is_installed_folder(folder: str) -> bool:
    return _lies_in_installed(folder) and _lies_in_installed(os.path.realpath(folder))


def _lies_in_installed(path: str) -> bool:
    return _is_below(path, _roots()) or _is_package(path)


@lru_cache(maxsize=1)
def _roots() -> tuple[str, ...]:
    """The standard library, dpaudit, the system, and what matplotlib keeps of its fonts."""
    own = os.path.dirname(_HERE)
    above, library = os.path.dirname(own), os.path.dirname(os.path.abspath(os.__file__))
    fonts = [os.environ.get("MPLCONFIGDIR", "")]
    fonts += [os.path.expanduser(f"~/{place}/matplotlib") for place in (".cache", ".config")]
    places = [*SYSTEM, library, os.path.realpath(library), os.path.join(sys.prefix, "bin"), own]
    if os.path.isfile(os.path.join(above, "pyproject.toml")):
        places += [os.path.join(above, name) for name in BESIDE]
    if sys.base_prefix not in ("/usr", "/usr/local", os.sep):
        places += [sys.base_prefix, os.path.realpath(sys.base_prefix)]
    return tuple(place for place in (*places, *fonts) if place)


BESIDE = ("attacks", "defenses", "recorder", "reports")  # packages of dpaudit in a repository


def _stack() -> list[str]:
    """The files of the code that runs, the innermost first."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            found.append(frame.f_code.co_filename)
        frame = frame.f_back
    return found


def _is_own(stack: Sequence[str]) -> bool:
    """Whether dpaudit itself calls the standard library."""
    library = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    outside = (f for f in stack if not f.startswith((library, "<")) or _is_package(f))
    own = os.path.dirname(_HERE)
    beside = os.path.join(os.path.dirname(own), "recorder")  # in a repository
    return next(outside, "").startswith((own + os.sep, beside + os.sep))


def _is_package(path: str) -> bool:
    return any(part in PACKAGES for part in path.split(os.sep))


def _is_theirs_code(file: str) -> bool:
    return not file.startswith("<") and not is_installed(file)


def content(path: str) -> str:
    """The SHA-256 of a file; MISSING, FOLDER, or ENDLESS for a pipe or a device."""
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            return FOLDER
        if not stat.S_ISREG(kind):
            return ENDLESS
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
        return digest.hexdigest()
    except (OSError, ValueError):
        return MISSING


def names_in(path: str) -> list[str]:
    """What a folder holds, in order, without hidden names and compiled modules."""
    try:
        found = os.listdir(path)
    except (OSError, ValueError):
        return []
    return sorted(name for name in found if name[0] != "." and name != "__pycache__")


def module_place(folder: str, name: str, portions: bool) -> str:
    """Ends of the names under which Python would import a module from a folder.

    Args:
        portions: whether a folder without ``__init__`` counts, a portion of a namespace package.
    """
    place = os.path.join(folder, name)
    ends = [end for end in all_suffixes() if os.path.isfile(place + end)]
    inits = [f"/__init__{end}" for end in all_suffixes()]
    ends += [end for end in inits if os.path.isfile(place + end)]
    if portions and os.path.isdir(place):
        ends.append("/")
    return " ".join(ends)
