"""What is to be recorded is hooked as soon as the program has imported it."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import sys
import threading
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from . import ranks
from .draws.python_draws import PythonDraws
from .errors import RecorderError
from .log import Log, Sites
from .player import SEEDED, WORLD, Player, World, refuse_other_process, seed
from .transports import (
    aiohttp_streams,
    asyncio_streams,
    encoders,
    grpc_calls,
    http_client,
    http_server,
    httpx_client,
    pipes,
    raw_bytes,
    sockets,
    web_sockets,
)
from .transports.channels import Channels
from .transports.decoding import tell_beside
from .transports.mpi import hook_mpi
from .transports.ray_objects import WORKER, RayObjects
from .transports.unseen import UnseenWays
from .transports.zeromq import OtherTransport, record_sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType

OPTIONS = "DPAUDIT_RECORDER"  # a JSON object: docs/recorder-protocol.md says of what
REFUSED = 70  # exit code of a process that cannot be recorded
OVER, LEFT = "over", "left"  # notes: the end of the program was reached; it says that it failed
_players: list[Player] = []  # players of this process, for the tap
_before_first: list[Callable[[], object]] = []  # called before the first call of the tap


class AfterImport:
    """Calls something once for each module named, right after its first import."""

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]) -> None:
        self._then = then
        self._looking = threading.local()  # module for which this thread asks the other finders

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        outer = getattr(self._looking, "name", None)
        if name not in self._then or outer == name:
            return None
        self._looking.name = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.name = outer
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_call(module: ModuleType) -> None:
            load(module)
            then = self._then.pop(name, None)  # not before: a program may only ask for the spec
            if then is not None:
                then(module)

        spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec


class Hooks:
    """What is hooked in one process, by the module that the program imports."""

    def __init__(self, log: Log, options: dict[str, Any]) -> None:
        self._log, self._options = log, options
        self._sites, self._player = Sites(options["origin"]), begun(log, options["world"])
        self._unseen = UnseenWays(log)
        self._unseen.watch()
        self.then: dict[str, Callable[[ModuleType], None]] = {
            **hooks_of_draws(log, self._sites, self._player),
            "torch": self._torch,
            "subprocess": self._subprocess,
            "multiprocessing.shared_memory": self._unseen.hook_shared_memory,
            "multiprocessing.sharedctypes": self._unseen.hook_shared_values,
            "torch.distributed.rpc": self._unseen.hook_rpc,
            "zmq": lambda zmq: record_sockets(zmq, log, self._sites),
            "mpi4py.MPI": lambda mpi: hook_mpi(mpi, log, self._sites, self._player),
        }
        if not options["transport"]:
            self.then.update(self._channels(Channels(log, self._sites)))
            ray = RayObjects(log, Channels(log, self._sites), self._seed_again)
            self.then["ray"] = ray.hook_ray
        else:
            import runpy

            del self.then["zmq"]  # the adapter shows what is sent, and each message counts once
            adapter = runpy.run_path(options["transport"], run_name="_dpaudit_transport")
            sent = OtherTransport(log, self._sites)
            self.then[adapter["MODULE"]] = lambda found: adapter["hook"](found, sent)

    def _channels(self, channels: Channels) -> dict[str, Callable[[ModuleType], None]]:
        hooks: dict[str, Callable[[Any, Channels], None]] = {
            "multiprocessing.connection": pipes.hook_connections,
            "multiprocessing.queues": pipes.hook_queues,
            "socket": sockets.hook_sockets,
            "ssl": lambda found, _: sockets.hook_sending(found.SSLSocket, channels),
            "asyncio.selector_events": asyncio_streams.hook_loop,
            "asyncio.sslproto": asyncio_streams.hook_ssl,
            "http.client": http_client.hook_http,
            "http.server": http_server.hook_http,
            "httpx": httpx_client.hook_httpx,
            "aiohttp.http_writer": aiohttp_streams.hook_writer,
            "aiohttp.client": aiohttp_streams.hook_client,
            "aiohttp.web_request": aiohttp_streams.hook_request,
            "aiohttp.web_response": aiohttp_streams.hook_server,
            "websockets.protocol": web_sockets.hook_protocol,
            "websockets.asyncio.connection": web_sockets.hook_asyncio,
            "websockets.sync.connection": web_sockets.hook_threaded,
            "websockets.legacy.protocol": web_sockets.hook_legacy,
            "grpc": grpc_calls.hook_grpc,
            "grpc.aio": grpc_calls.hook_grpc_aio,
        }
        found: dict[str, Callable[[ModuleType], None]] = {
            name: lambda module, hook=hook: hook(module, channels)  # type: ignore[misc]
            for name, hook in hooks.items()
        }
        return {**found, **hooks_of_encoders()}

    def install(self) -> None:
        """Hook what this process has imported already, and the rest when it is imported."""
        install({name: partial(self._hook, name, hook) for name, hook in self.then.items()})

    def _hook(self, name: str, hook: Callable[[ModuleType], None], module: ModuleType) -> None:
        """What cannot be hooked is named in the recording, and the program goes on."""
        if self._player is not None and self._player.world is not None:
            seed(name, self._player.world.seed)
        try:
            hook(module)
        except Exception as error:
            version = getattr(module, "__version__", "")
            said = f"{type(error).__name__}: {error}"
            self._log.unseen(f"{name} {version} could not be hooked: {said}")

    def _seed_again(self) -> None:
        """Seed again a process that learns late which agent it is."""
        world = None if self._player is None else self._player.world
        if world is not None:
            for name in SEEDED.keys() & sys.modules.keys():
                seed(name, world.seed)

    def _torch(self, torch: ModuleType) -> None:
        if self._options["cpu"]:
            from . import cpu_for_cuda

            cpu_for_cuda.answer_for_cuda()
        from .draws import loaders
        from .transports import torch_distributed

        hooks_of_draws(self._log, self._sites, self._player)["torch"](torch)
        encoders.hook_saving(torch)
        self._unseen.hook_torch(torch)
        torch_distributed.record(self._log, self._sites, self._player)
        loaders.hook_loaders(_players[0])

    def _subprocess(self, subprocess: ModuleType) -> None:
        keep_on_path(subprocess, self._options["start"])
        self._unseen.hook_starting(subprocess)


def hooks_of_draws(
    log: Log, sites: Sites, player: Player | None
) -> dict[str, Callable[[ModuleType], None]]:
    """What records the draws of each module, to be called with it."""
    draws = PythonDraws(log, sites, player)

    def hook_torch(_: ModuleType) -> None:
        from .draws.torch_draws import TorchDraws

        TorchDraws(log, sites, player).hook()

    def hook_jax(jax_random: ModuleType) -> None:
        from .draws import jax_draws

        jax_draws.hook_jax(jax_random, log, sites, player)

    return {
        "torch": hook_torch,
        "numpy.random": draws.hook_numpy,
        "random": draws.hook_random,
        "os": draws.hook_entropy,
        "jax.random": hook_jax,
    }


def hooks_of_encoders() -> dict[str, Callable[[ModuleType], None]]:
    """What knows of which objects bytes are made, by module."""
    return {
        **dict.fromkeys(encoders.ENCODERS, encoders.hook_encoder),
        "base64": encoders.hook_base64,
        "struct": raw_bytes.hook_packing,
        "array": raw_bytes.hook_arrays,
        "numpy": raw_bytes.hook_numpy,
    }


def know_encoded() -> None:
    """Bytes that a simulation shows to the tap may be of objects."""
    install({**hooks_of_encoders(), "torch": encoders.hook_saving})


def watch_draws(log: Log, player: Player | None) -> None:
    """Record what a simulation draws beside what it shows to the tap."""
    sites = Sites(json.loads(os.environ[OPTIONS])["origin"])
    install(hooks_of_draws(log, sites, player))


def install(hooks: dict[str, Callable[[ModuleType], None]]) -> None:
    """Call a hook for each module that is imported already, and for others after their import."""
    for name in [name for name in hooks if name in sys.modules]:
        hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(hooks))


def start() -> None:
    """Record this process from now on, and those that it starts."""
    if _is_a_service():
        return
    options = json.loads(os.environ[OPTIONS])
    log = Log(options["folder"], options["most_bytes"])
    ranks.follow()
    Hooks(log, options).install()
    _note_what_is_started_without(log)
    _note_what_ends_it(log)
    _note_that_it_is_over(log)


def _is_a_service() -> bool:
    """Whether this process is one that Ray keeps for itself: what it sends is not the program's."""
    words = " ".join(map(str, getattr(sys, "argv", ())[:1]))
    return f"{os.sep}ray{os.sep}" in words and not words.endswith(WORKER)


def begun(log: Log, in_world: bool) -> Player | None:
    """The player of this process; None where hooks leave draws alone.

    A world that cannot be played is refused, and not recorded as if it were one.
    """
    try:
        world = World(os.environ[WORLD]) if in_world else None
    except (OSError, ValueError, KeyError, RecorderError) as error:
        log.note("refused", f"the recorder cannot read its world: {error}")
        os._exit(REFUSED)
    _players[:] = [Player(log, world)]
    tell_beside(log.beside)
    return _players[0] if in_world else None


def seed_libraries(number: int) -> None:
    """Seed each of them that a program uses without a generator of its own, now or when it is
    imported.
    """
    install({name: partial(_seed, name, number) for name in SEEDED})


def _seed(name: str, number: int, _: ModuleType) -> None:
    seed(name, number)


def call_first(begin: Callable[[], object]) -> None:
    """Call something once, before the program's first call of the tap."""
    _before_first[:] = [begin]


def player_here() -> Player | None:
    """What the tap is shown to; None in a process that is not recorded."""
    while _before_first:
        _before_first.pop()()
    if not _players:
        return None
    if (world := _players[0].world) is not None:
        refuse_other_process(_players[0], world)
    return _players[0]


def keep_on_path(subprocess: ModuleType, folder: str) -> None:
    """Children start the recorder too, where a program makes them a PYTHONPATH of its own.

    Args:
        folder: of ``sitecustomize.py``.
    """
    own = subprocess.Popen.__init__

    @functools.wraps(own)
    def begun(self: Any, args: Any, *given: Any, **named: Any) -> None:
        """Add the recorder to a new process's environment, the tenth argument of Popen."""
        environment = given[9] if len(given) > 9 else named.get("env")
        asked = dict(os.environ if environment is None else environment)
        path = asked.get("PYTHONPATH", "")
        if OPTIONS in asked and folder not in path.split(os.pathsep):
            asked["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, path]))
            given = (*given[:9], asked, *given[10:]) if len(given) > 9 else given
            named = named if len(given) > 9 else {**named, "env": asked}
        own(self, args, *given, **named)

    subprocess.Popen.__init__ = begun


def _note_what_is_started_without(log: Log) -> None:
    """A program that is started with another environment is not recorded, and named."""

    def seen(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
            return
        given, words = arguments[-1], [os.fsdecode(word) for word in _words(*arguments[:2])]
        started = os.path.basename(words[0])
        if given is not None and not any(os.fsdecode(name) == OPTIONS for name in given):
            log.unseen(f"{started} is started with another environment, and is not recorded")
        alone = [word for word in takewhile(_is_option, words[1:]) if set(word) & set("EIS")]
        if started.startswith("python") and alone:
            log.unseen(f"{started} is started with {alone[0]}, and is not recorded")

    sys.addaudithook(seen)


def _words(executable: Any, command: Any = ()) -> list[Any]:
    """A program and its arguments, as the events of Python have them."""
    words = list(command) if isinstance(command, (list, tuple)) else [command]
    return [executable or (words[0] if words else "it"), *words[1:]]


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--")


def _note_what_ends_it(log: Log) -> None:
    """The exception that ends the program is for the launcher's last line too."""
    shown = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = str(error).strip()
        said = [line for line in text.splitlines() if line.strip("=- ")]
        if isinstance(error, RecorderError):  # of the tap, outside of an audit
            log.note("refused", error.coded)
        else:
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
    if hasattr(threading, "_register_atexit"):  # Python 3.9 or newer: before other exit handlers
        threading._register_atexit(over_but_for_threads)
