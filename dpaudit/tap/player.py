"""A world inside the process that runs it: draws are replayed, one record differs, all is noted."""

import atexit
import hashlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from dpaudit.files.recorded import Draw, Event, SentTensor, write_at_once
from dpaudit.files.world import (
    BATCHES,
    ERROR,
    PROCESS,
    RECORDS,
    TAPE,
    Noise,
    Taken,
    World,
    draw_key,
    record_key,
)

from .changes import digests_of, in_world, n_records, parts_of
from .tape import Tape, as_noise, as_tensor, like

CONTENT = "transcript/messages.safetensors"


Given = ParamSpec("Given")
Result = TypeVar("Result")


class Ended(SystemExit):
    """All that a world asks for is sent."""


def _in_turn(
    method: "Callable[Concatenate[Player, Given], Result]",
) -> "Callable[Concatenate[Player, Given], Result]":
    """A method that threads, which agents may be, call one after the other."""

    @wraps(method)
    def called(player: "Player", *given: Given.args, **named: Given.kwargs) -> Result:
        with player.lock:
            return method(player, *given, **named)

    return called


class Player:
    """What a process does of one world, and what it has seen; written when it ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lock = threading.Lock()
        self._tape = Tape(world)
        self._drawn: dict[str, Tensor] = {}
        self._contents: dict[str, Tensor] = {}
        self._records: dict[str, Tensor] = {}
        self._events: list[Event] = []
        self._draws: list[Draw] = []
        self._batches: list[Taken] = []
        self._sequence = 0
        self._times: Counter[Any] = Counter()  # that something was called
        self._round: Counter[int] = Counter()  # of an agent's last message
        self._sent: Counter[int] = Counter()  # messages of an agent

    @classmethod
    def started(cls, path: str) -> "Player":
        """The world of this process, written when it ends."""
        world = World.model_validate_json(Path(path).read_text())
        if os.environ[PROCESS] != str(os.getpid()):
            _refuse_process(world)
        player = cls(world)
        atexit.register(player.close)
        return player

    @_in_turn
    def batch(self, agent: int, records: Any) -> Any:
        self._end_if_over()
        taken = self._count("batch", agent) + 1
        self._batches.append(
            Taken(
                agent=agent,
                sequence=self._next(),
                records=n_records(records),
                digests=digests_of(records) if self.world.tape is None else (),
            )
        )
        found = in_world(self.world, agent, taken, records)
        if self.world.keeps_records:
            for i, part in enumerate(parts_of(found)):
                self._records[record_key(agent, taken, i)] = part.clone().contiguous()
        return found

    @_in_turn
    def noise(self, agent: int, name: str, draw: Any, scale: float, family: Noise) -> Any:
        occurrence = self._count("noise", agent, name)
        key, own = draw_key(agent, occurrence, name), as_noise(name, draw)
        self._draws.append(
            Draw(
                process=0, rank=agent, sequence=self._next(), time=time.time(), operator=family,
                call_site=name, occurrence=occurrence, round=self._round[agent] + 1,
                shape=tuple(own.shape), dtype=str(own.dtype).removeprefix("torch."),
                parameters=(0.0, float(scale)),
            )
        )  # fmt: skip
        value = self._tape.draw(key, own, float(scale), family)
        self._drawn[key] = value.clone()
        return like(value, draw)

    @_in_turn
    def send(self, source: int, destinations: tuple[int, ...], name: str, value: Any) -> None:
        self._end_if_over()
        to = tuple(sorted(set(destinations) - {source}))
        occurrence = self._count("send", source, to, name)
        self._sent[source] += 1
        content = as_tensor(value).clone().contiguous()
        raw = content.reshape(-1).view(torch.uint8).numpy().tobytes()
        key = hashlib.sha256(raw + repr((content.shape, content.dtype)).encode()).hexdigest()
        self._contents[key] = content
        self._round[source] = max(self._round[source], occurrence + 1)
        sent = SentTensor(
            name=name, shape=tuple(content.shape), dtype=str(content.dtype).removeprefix("torch."),
            file=CONTENT, key=key, sha256=hashlib.sha256(raw).hexdigest(),
        )  # fmt: skip
        self._events.append(
            Event(
                process=0, rank=source, sequence=self._next(), time=time.time(), operator="tap",
                call_site=name, occurrence=occurrence, group=(), tag=None, source=source,
                destinations=to, round=occurrence + 1, tensors=(sent,), inconsistent=False,
            )
        )  # fmt: skip

    def _end_if_over(self) -> None:
        """Once every agent has sent all that this world asks for."""
        last = self.world.last
        if last and all(self._sent[agent] >= n for agent, n in last.items()):
            raise Ended(0)

    def close(self) -> None:
        """Write what was seen."""
        out = self.world.out
        (out / CONTENT).parent.mkdir(parents=True, exist_ok=True)
        save_file(self._contents, out / CONTENT)
        save_file({k: v.contiguous() for k, v in self._drawn.items()}, out / TAPE)
        save_file(self._records, out / RECORDS)
        for name, values in (
            ("events.jsonl", self._events),
            ("draws.jsonl", self._draws),
            (BATCHES, self._batches),
        ):
            write_at_once(out / name, values)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _count(self, *what: Any) -> int:
        """How often it was called before."""
        self._times[what] += 1
        return self._times[what] - 1


def _refuse_process(world: World) -> NoReturn:
    """End the run: what this process would note takes the place of what the others did."""
    (world.out / ERROR).write_text(
        "dpaudit.tap is called in a process that the program starts; expected a simulation in one "
        "process, or program.ranks, the number of processes that call it"
    )
    os.kill(int(os.environ[PROCESS]), signal.SIGKILL)
    os._exit(2)
