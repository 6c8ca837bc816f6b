"""What the tap and the hooks do in one process of a program that is recorded or audited.

All is written to a log as it happens, so that nothing is lost by os._exit. In a run of an audit,
draws of noise are replayed and one record differs. Where processes are agents, the agent is the
rank, and draws have the names of their lines.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import PROTOCOL, batches, ranks
from .errors import RecorderError
from .tensor_file import TensorFile
from .transports.decoding import contents_in
from .values import FLOATS, content_of, dtype_of, is_several, made_of, parts_of, shape_of, with_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from .log import Content, Log

WORLD = "DPAUDIT_WORLD"  # the environment's name for the path of a world
PROCESS = "DPAUDIT_PROCESS"  # and of the id of the process that a simulation is
RANKS = ranks.WORKING
RAW = "raw"  # folder in that of a run, with what its processes write
SAID, ERROR = "said.txt", "error.txt"  # what a run printed, and an error that is refused
FAILED = "failed.txt"  # the error of the process that failed first
DONE = "done-"  # and a rank: it has sent all that the world asks for
REFUSED = 2  # exit status
FIRST = "0/MainProcess"  # the first process of a program
OF_LIBRARIES = ("uuid", "tempfile", "multiprocessing", "email", "ssl")  # they draw names
SEEDED = {"random": "seed", "numpy.random": "seed", "torch": "manual_seed"}  # module -> function


class Change(NamedTuple):
    """What becomes of one record of a batch."""

    agent: int
    batch: int  # 1 is the agent's first
    how: str
    record: int  # index of the record in the batch


class Batch(NamedTuple):
    """A batch of which records are changed."""

    contents: list[Content]
    records: int  # before one is left out


def _shown(part: Any, name: str) -> list[Content]:
    """A part of a message that the program shows, with the numbers that its bytes hold."""
    if isinstance(part, (bytes, bytearray, memoryview)):
        return contents_in(bytes(part), name)
    return [content_of(part, name)]


class World:
    """What a run is to be, as its auditor wrote it: see docs/recorder-protocol.md.

    Raises RecorderError for a file of another version of the recorder.
    """

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:
            given: dict[str, Any] = json.load(file)
        if given.get("protocol") != PROTOCOL:
            raise RecorderError(
                "DPA010",
                f"{path}: protocol {given.get('protocol')}; this recorder keeps protocol "
                f"{PROTOCOL}: dpaudit and dpaudit-recorder are of different versions",
            )
        self.out: str = given["out"]
        self.seed: int = given["seed"]
        self.tapes: list[str] = given["tapes"]  # draws in the place of its own; none: its own
        self.standard: str | None = given["standard"]  # draws in units of their scale
        self.sites = frozenset(given["sites"])
        self.changes = [Change(*one) for one in given["changes"]]
        self.keeps_records: bool = given["keeps_records"]
        self.last = {int(agent): n for agent, n in given["last"].items()}

    @property
    def is_over(self) -> bool:
        """Whether each agent has sent all that this world asks for."""
        return bool(self.last) and all(os.path.exists(self.done(i)) for i in self.last)

    def done(self, agent: int) -> str:
        """The file that says so of one."""
        return os.path.join(self.out, f"{DONE}{agent}")


class Tape:
    """The draws of a world, by their keys."""

    def __init__(self, world: World) -> None:
        self._standard = None if world.standard is None else TensorFile(world.standard)
        self._values = [TensorFile(path) for path in world.tapes]

    def draw(self, key: str, own: Any, scale: float) -> Any:
        """What this world has in the place of a draw, of its shape and dtype.

        Raises RecorderError for a draw that the tape does not have.
        """
        if not self._values and self._standard is None:
            return own
        shape = shape_of(own)
        if self._standard is not None and self._standard.shape(key) is not None:
            if self._standard.shape(key) == shape:
                return made_of(self._standard.content(key), own, scale)
        else:
            for tape in self._values:
                if tape.shape(key) == shape:
                    return made_of(tape.content(key), own)
                if tape.shape(key) is not None:
                    break
        agent, occurrence, name = key.split("/", 2)
        raise RecorderError(
            "DPA062",
            f'draw {int(occurrence) + 1} of "{name}" by agent {agent} has another shape or is not '
            "there in the first run: which draws are made depends on the noise or the record, and "
            "such runs cannot be compared",
        )


class Player:
    """Records what one process does and, in a run of an audit, changes it as the world says.

    Args:
        world: None where a program is recorded and not audited.
    """

    def __init__(self, log: Log, world: World | None = None) -> None:
        self._log, self.world = log, world
        self._tape = None if world is None else Tape(world)
        self._told: set[int] = set()  # agents that the program has named
        self.is_one_of_several = RANKS in os.environ  # the program may empty the environment later
        self.process = os.environ.get(PROCESS)
        self._thread = threading.local()  # thread -> the agent that took the last batch in it
        self._changed: dict[int, Batch] = {}  # agent -> the batch that it got last

    @property
    def rank(self) -> int | None:
        """The agent that this process is; None: it is not known yet."""
        if len(self._told) == 1 and self.is_one_of_several:
            return next(iter(self._told))
        return ranks.rank_here()

    def batch(self, agent: int, records: Any) -> Any:
        """The records of an agent's next step. Without a world, what is no batch has 0 records."""
        self._thread.agent = agent
        try:
            n = batches.n_records(records)
        except RecorderError as error:
            if self.world is not None:
                raise
            self._log.unseen(str(error))
            n = 0
        self._told.add(agent)
        with self._log.lock:
            number = self._log.count(("batch", agent)) + 1
            record: dict[str, Any] = {"kind": "batch", "number": number, "agent": agent}
            record.update(records=n, sequence=self._log.number())
            if self.world is None:
                self._log.write(record)
                return records
            if not self.world.tapes:
                record["digests"] = batches.digests_of(records)
            changes = [c for c in self.world.changes if (c.agent, c.batch) == (agent, number)]
            if changes:
                records, record["records"] = self._with_changes(agent, records, n, changes)
            parts = batches.contents_of(records) if self.world.keeps_records else ()
            self._log.write(record, parts)
        return records

    def _with_changes(
        self, agent: int, records: Any, n: int, changes: list[Change]
    ) -> tuple[Any, int]:
        """A batch with its changes, and how many records it has without them.

        A program may show once more what it was handed, as from one local step to the next.
        """
        before, last = batches.contents_of(records), self._changed.get(agent)
        if last is not None and last.contents == before:
            return records, last.records
        for change in changes:
            records = batches.changed(records, change.how, change.record)
        after = batches.contents_of(records)
        if after != before:
            self._changed[agent] = Batch(after, n)
        return records, n

    def noise(self, agent: int, name: str, draw: Any, scale: float, family: str) -> Any:
        """A draw of noise, or what takes its place; of several draws each has a name of its own."""
        if is_several(draw):
            return with_each(
                draw, lambda key, part: self.noise(agent, f"{name}.{key}", part, scale, family)
            )
        dtype = dtype_of(draw)
        if dtype not in FLOATS:
            raise RecorderError(
                "DPA061", f'tap.noise: "{name}" draws {dtype}; expected floating point'
            )
        self._told.add(agent)
        with self._log.lock:
            about = self._log.begun("drawn", family, name, ("drawn", agent, name))
            about.update(shape=shape_of(draw), dtype=dtype, rank=agent)
            if self.world is not None:
                return self._replayed(about, agent, draw, scale, family)
            self._log.write({**about, "parameters": (0.0, scale)})
        return draw

    def send(self, source: int, destinations: tuple[int, ...], name: str, value: Any) -> None:
        """A message."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main and not self._log.count("threads"):
            self._log.note("threads", "agents send in threads")
        to = sorted(set(destinations) - {source})
        contents = [one for within, part in parts_of(value) for one in _shown(part, within)]
        with self._log.lock:
            about = self._log.begun("sent", "tap", name, ("tap", name))
            about.update(group="tap", number=None, tag=None)
            about.update(source=source, destinations=to, ranks=sorted({source, *to}))
            self._log.write(about, contents)
            self.sent(source)

    def sent(self, agent: int | None = None) -> None:
        """Count a message; a file says when an agent, or this rank, has sent all that is asked."""
        agent = ranks.rank_here() if agent is None else agent
        if self.world is None or agent is None:
            return
        if self._log.count(("sent", agent)) + 1 == self.world.last.get(agent):
            open(self.world.done(agent), "w").close()
            if not self.is_one_of_several and self.world.is_over:
                os._exit(0)

    def is_noise(self, site: str) -> bool:
        """Whether an audit takes what a line draws for noise."""
        return self.world is not None and site in self.world.sites

    def at_line(self, record: dict[str, Any], own: Any, scale: float, family: str) -> Any:
        """What this world has in the place of a draw at a line of noise.

        It is of the agent whose batch this thread has taken last, or that this process is.
        """
        rank = getattr(self._thread, "agent", self.rank)
        if rank is None:
            self.refuse(
                f"{record['site']} draws noise in a process without a rank: expected one of "
                "torch.distributed, MPI or multiprocessing, RANK in its environment, or "
                "tap.batch before the draw"
            )
        # Of this agent: threads decide in which order several draw at one line.
        record["occurrence"] = self._log.count(("noise", rank, record["site"]))
        try:
            return self._replayed(record, rank, own, scale, family)
        except RecorderError as error:
            self.refuse(error.coded)

    def loaded(self, batch: Any) -> Any:
        """What a data loader hands out; what is no batch of records is left alone."""
        rank = self.rank
        try:
            batches.n_records(batch)
        except RecorderError:
            return batch
        return batch if rank is None else self.batch(rank, batch)

    def refuse_loader(self, why: str) -> None:
        """A loader that an audit cannot follow; one that is only recorded goes on."""
        if self.world is not None:
            self.refuse(why)
        self._log.unseen(why)

    def refuse(self, why: str) -> NoReturn:
        """End the process, whatever the program catches."""
        assert self.world is not None
        with open(os.path.join(self.world.out, ERROR), "w", encoding="utf-8") as file:
            file.write(why)
        os._exit(REFUSED)

    def _replayed(
        self, record: dict[str, Any], rank: int, own: Any, scale: float, family: str
    ) -> Any:
        assert self._tape is not None
        key = f"{rank}/{record['occurrence']}/{record['site']}"
        value = self._tape.draw(key, own, scale)
        replayed = {"kind": "noise", "rank": rank, "operator": family, "parameters": (0.0, scale)}
        self._log.write({**record, **replayed}, [content_of(value)])
        return value


def seed(module: str, number: int) -> None:
    """Seed the generator that programs use without asking for one of their own, of a library.

    Left alone, torch begins with one seed in every process, and NumPy and random with another in
    each: what agents draw from these must not be the same numbers. Generators that a program makes
    without a seed begin with numbers of this one, too.
    """
    if module in SEEDED:
        own = number if module == "torch" else _seed_here(number)
        getattr(sys.modules[module], SEEDED[module])(own)
        _seed_others(sys.modules, module, unseeded(f"{module}/{number}"))


def unseeded(seed: str) -> Callable[[int], int]:
    """Bits in the place of the system's: alike in all runs with a seed, and in no two processes."""
    calls = itertools.count()

    def bits(n: int) -> int:
        text = f"{seed}/{ranks.apart()}/{ranks.place_here()}/{next(calls)}"
        drawn = hashlib.shake_256(text.encode()).digest((n + 7) // 8)
        return int.from_bytes(drawn, "little") & ((1 << n) - 1)

    return bits


def _seed_others(modules: dict[str, Any], module: str, bits: Callable[[int], int]) -> None:
    """Where a library asks the system for a seed."""
    made = modules.get("numpy.random.bit_generator")
    if module == "numpy.random" and hasattr(made, "randbits"):
        made.randbits = bits  # type: ignore[union-attr]
    elif module == "torch":
        torch = modules["torch"]

        def seed_torch() -> int:
            number = bits(63)
            torch.manual_seed(number)
            return number

        torch.seed = torch.random.seed = seed_torch
        _seed_generators(torch, bits)
    elif module == "random":
        python = modules["random"]
        own = getattr(python.Random.seed, "__wrapped__", python.Random.seed)

        @functools.wraps(own)
        def seed_python(self: Any, a: Any = None, *given: Any, **named: Any) -> None:
            if a is None and _asks_for_itself():
                own(self)
            else:
                own(self, bits(128) if a is None else a, *given, **named)

        python.Random.seed = seed_python
        python.seed = python._inst.seed


def _seed_generators(torch: Any, bits: Callable[[int], int]) -> None:
    """Let ``seed`` of a generator of torch follow: its class cannot be changed, only replaced."""
    own = torch.Generator
    if not hasattr(own, "dpaudit_bits"):

        class OfEither(type(own)):  # type: ignore[misc]
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, own)

        def seed(self: Any) -> int:
            number = self.dpaudit_bits(63)
            self.manual_seed(number)
            return int(number)

        about = {"__doc__": own.__doc__, "__module__": "torch", "seed": seed}
        torch.Generator = OfEither("Generator", (own,), about)
    torch.Generator.dpaudit_bits = staticmethod(bits)


def _asks_for_itself() -> bool:
    """Whether a library of Python's makes a generator, as of names of temporary files."""
    caller = sys._getframe(2)
    frames = [caller] if caller.f_back is None else [caller, caller.f_back]
    names = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    return any(name.partition(".")[0] in OF_LIBRARIES for name in names)


def _seed_here(number: int) -> int:
    """The seed of this process: in every run the same, and of each rank or child another."""
    apart = ranks.apart()
    return number if apart == FIRST else zlib.crc32(f"{number}/{apart}".encode())


def refuse_other_process(player: Player, world: World) -> None:
    """A simulation has one process: what another one does would take the place of what that did."""
    if player.is_one_of_several or player.process == str(os.getpid()):
        return
    if player.process is not None:
        os.kill(int(player.process), signal.SIGKILL)
    with open(os.path.join(world.out, ERROR), "w", encoding="utf-8") as file:
        file.write(
            "dpaudit.tap is called in a process that the program starts; expected a simulation "
            "in one process, or program.ranks, the number of processes that call it"
        )
    os._exit(REFUSED)
