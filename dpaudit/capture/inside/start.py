"""What is to be recorded is hooked as soon as the program has imported it."""

import atexit
import importlib.util
import json
import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from .log import Log, Sites
from .transports import OtherTransport, record_sockets

OPTIONS = (
    "DPAUDIT_CAPTURE"  # a JSON object: inside, folder, origin, most_bytes, cpu, transport, world
)
TORCH = ("2.13",)  # the versions whose internals the hooks were tried on
REFUSED = 70  # exit code of a process that cannot be recorded
OVER, LEFT = "over", "left"  # notes: the end of the program was reached; it says that it failed
logs: list[Log] = []  # of this process, where dpaudit.tap finds it


class AfterImport:
    """Calls something once for each module named, right after its first import."""

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        then = self._then.pop(name, None)
        spec = None if then is None else importlib.util.find_spec(name)
        if then is None or spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_call(module: ModuleType) -> None:
            load(module)
            then(module)

        spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec


def _record_torch(torch: ModuleType, log: Log, options: dict[str, Any]) -> None:
    version = str(torch.__version__)
    if ".".join(version.split(".")[:2]) not in TORCH:
        supported = " and ".join(TORCH)
        log.note("refused", f"torch {version} is not supported; supported are: {supported}")
        os._exit(REFUSED)
    if options["cpu"]:
        from . import cpu

        cpu.answer_for_cuda()
    from . import draws, messages

    where = Sites(options["origin"])
    player = _player(log) if options["world"] else None
    messages.record(log, where, player)
    draws.record(log, where, player)
    if player is not None:
        draws.hook_loaders(player)


def start() -> None:
    """Record this process from now on, and those that it starts."""
    options = json.loads(os.environ[OPTIONS])
    log = Log(options["folder"], options["most_bytes"])
    logs[:] = [log]

    hooks: dict[str, Callable[[ModuleType], None]] = {
        "torch": lambda torch: _record_torch(torch, log, options),
        "zmq": lambda zmq: record_sockets(zmq, log, Sites(options["origin"])),
    }
    if "torch" in sys.modules:  # by the fork of a process that had imported it
        hooks["torch"](sys.modules["torch"])
    if options["transport"]:
        del hooks["zmq"]  # the adapter shows what is sent, and each message counts once
        adapter = runpy.run_path(options["transport"], run_name="_dpaudit_transport")
        hooks[adapter["MODULE"]] = lambda found: adapter["hook"](
            found, OtherTransport(log, Sites(options["origin"]))
        )
    sys.meta_path.insert(0, AfterImport(hooks))
    _note_what_ends_it(log)
    _note_that_it_is_over(log)


def _player(log: Log) -> Any:
    """What a world of an audit does in this process; it needs dpaudit, which a recording does not.

    A world is refused, and not recorded as if it were one, where dpaudit cannot be imported.
    """
    try:
        tap = importlib.import_module("dpaudit.tap.player")
    except ImportError as error:
        log.note("refused", f"the program's Python cannot import dpaudit: {error}")
        os._exit(REFUSED)
    return tap.begin(log)


def _note_what_ends_it(log: Log) -> None:
    """The exception that ends the program is for the launcher's last line too."""
    shown = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = str(error).strip()
        said = [line for line in text.splitlines() if line.strip("=- ")]
        log.note("failed", f"{kind.__name__}: {said[-1].strip() if said else ''}")
        shown(kind, error, trace)

    sys.excepthook = note


def _note_that_it_is_over(log: Log) -> None:
    """A process that reaches the end of its program has sent everything, however it ends then."""
    leave, exit_now = sys.exit, os._exit

    def over(status: Any = None) -> None:
        if log.is_used and not status:
            log.note(OVER, "")

    def over_but_for_threads() -> None:
        others = [one for one in threading.enumerate() if not one.daemon]
        if others == [threading.main_thread()]:
            over()

    def noted_leave(status: Any = None) -> NoReturn:
        if status and log.is_used:
            log.note(LEFT, str(status))
        leave(status)

    def noted_exit_now(status: int) -> NoReturn:
        over(status)
        exit_now(status)

    sys.exit, os._exit = noted_leave, noted_exit_now
    atexit.register(over)
    threading._register_atexit(over_but_for_threads)  # type: ignore[attr-defined]  # before others
