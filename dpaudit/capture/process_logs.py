"""What each process of a program wrote down: its messages, draws and batches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpaudit.files.recorded import RecordedBatch, RecordedDraw, RecordedEvent
from dpaudit.recorder.start import LEFT, OVER
from dpaudit.text import one_line

from .log_lines import lines_of

Record = dict[str, Any]
Line = TypeVar("Line", RecordedDraw, RecordedEvent)
_OF_DRAW = ("sequence", "time", "operator", "occurrence", "shape", "dtype", "parameters")
_OF_EVENT = ("sequence", "time", "operator", "occurrence", "tag", "source", "destinations")
LEAST_DIGITS = 4  # least digits of a number that can be recognised as given by the system
_OF_A_FILE = "a file that the program writes and reads is not recorded: "
_OF_LAUNCHER = (  # torchrun's and mp.spawn's own, about a process that failed
    "ChildFailedError",
    "ProcessExitedException",
)


@dataclass(frozen=True)
class Process:
    """What one process wrote down."""

    path: Path  # the log; contents lie beside it
    records: tuple[Record, ...]

    @classmethod
    def read(cls, path: Path) -> "Process":
        """Raises RunError for a damaged log."""
        return cls(path, lines_of(path))

    def of_kind(self, *kinds: str) -> list[Record]:
        return [record for record in self.records if record["kind"] in kinds]

    @cached_property
    def rank(self) -> int | None:
        ranks = (
            r["source" if r["kind"] == "sent" else "rank"] for r in self.of_kind("sent", "received")
        )
        return next(ranks, None)

    @cached_property
    def only_rank(self) -> int | None:
        """Its rank; None of a simulation, which sends as several agents."""
        sources = {record["source"] for record in self.of_kind("sent")}
        return None if len(sources) > 1 else self.rank

    @cached_property
    def sent(self) -> dict[int, Record]:
        """Its messages by their sequence numbers."""
        return {record["sequence"]: record for record in self.of_kind("sent")}

    @cached_property
    def contents(self) -> bytes:
        """Contents of the process's messages, noise and batches, one after the other."""
        return self.path.with_suffix(".bin").read_bytes()

    def tensors(self, record: Record) -> list[Tensor]:
        """The contents that a record has, of their shapes and dtypes."""
        found = []
        for _, shape, name, at, size in record.get("tensors", ()):
            content, dtype = bytearray(self.contents[at : at + size]), getattr(torch, name)
            flat = torch.frombuffer(content, dtype=dtype) if size else torch.empty(0, dtype=dtype)
            found.append(flat.reshape(shape))
        return found


def processes_in(folder: Path) -> list[Process]:
    """The processes that wrote something down, in the order of rank and of beginning."""
    found = [Process.read(path) for path in sorted(folder.glob("*.log"))]

    def order(process: Process) -> tuple[float, float]:
        began = min((float(about["time"]) for about in process.of_kind("process")), default=0.0)
        return (float("inf") if process.rank is None else process.rank), began

    return sorted(found, key=order)


def first_failure(processes: Sequence[Process]) -> str | None:
    """The error that ended a process before any other: what others say may follow from it."""
    failed = [r for p in processes for r in p.of_kind("failed")]
    own = [r for r in failed if not r["text"].startswith(_OF_LAUNCHER)]
    return None if not own else one_line(min(own, key=lambda r: float(r["time"]))["text"])


def in_threads(processes: Iterable[Process]) -> bool:
    """Whether agents of a simulation send in other threads than the main one."""
    return any(process.of_kind("threads") for process in processes)


def unseen_by(processes: Iterable[Process]) -> tuple[str, ...]:
    """What the recorder could not hook, as it says it, once each; files are one of them."""
    notes = [note for process in processes for note in process.of_kind("unseen")]
    found = list(dict.fromkeys(one_line(note["text"]) for note in notes))
    files = [text for text in found if text.startswith(_OF_A_FILE)]
    if len(files) > 1:
        first = files[0].removeprefix(_OF_A_FILE)
        several = f"files that the program writes and reads are not recorded: {first}"
        found = [text for text in found if text not in files]
        found.append(f"{several} and {len(files) - 1} more")
    return tuple(found)


def given_by_system(processes: Iterable[Process]) -> frozenset[str]:
    """Numbers that the system gives to a run: ports of its connections, and its processes' own.

    Those of fewer than four digits are left out, which may mean anything.
    """
    found = {str(about["pid"]) for p in processes for about in p.of_kind("process")}
    for process in processes:
        channels = (str(r["channel"]) for r in process.of_kind("took", "posted"))
        ends = {end for channel in channels if ">" in channel for end in channel.split(">")}
        ends |= {str(record["address"]) for record in process.of_kind("bound", "connected")}
        found |= {end.rpartition(":")[2] for end in ends}
    return frozenset(n for n in found if n.isdecimal() and len(n) >= LEAST_DIGITS)


def without_given(tensors: list[Tensor], given: frozenset[str]) -> list[Tensor]:
    """The tensors of a message without numbers that the system gave, as ports that are told.

    That is of messages of whole numbers alone, as what agents say of themselves at first, and of
    tensors in which no other number has as many digits.
    """
    if any(t.is_floating_point() or t.is_complex() for t in tensors):
        return tensors
    return [_without_given(t, given) for t in tensors]


def _without_given(tensor: Tensor, given: frozenset[str]) -> Tensor:
    flat = tensor.flatten()
    large = flat.long() >= 10 ** (LEAST_DIGITS - 1)
    told = {*map(str, flat[large].tolist())}
    return flat[~large] if told and told <= given else tensor


def all_over(processes: Sequence[Process]) -> bool:
    """Whether each process that sent anything has reached the end of its program, and none failed.

    What goes wrong after that, as where a library is taken down, changes no message.
    """
    sending = [process for process in processes if process.of_kind("sent")]
    ended = all(process.of_kind(OVER) and not process.of_kind(LEFT) for process in sending)
    return bool(sending) and ended and first_failure(processes) is None


def events_of(
    processes: Sequence[Process], about: Callable[[int, Record], Mapping[str, Any]]
) -> list[RecordedEvent]:
    """All messages, by time, each process's in their order; threads may log them in another.

    Args:
        about: the tensors of a message and whether it is inconsistent, given the number of its
            process and its record.
    """
    return _by_time(
        [
            RecordedEvent(
                process=number,
                rank=record["source"],
                call_site=record["site"],
                group=tuple(sorted(record["ranks"])),
                round=None,
                **{key: record[key] for key in _OF_EVENT},
                **about(number, record),
            )
            for record in sorted(process.of_kind("sent"), key=lambda one: one["sequence"])
        ]
        for number, process in enumerate(processes)
    )


def draws_of(processes: Sequence[Process]) -> list[RecordedDraw]:
    """All draws, by time, each process's in their order."""
    return _by_time(
        [
            RecordedDraw(
                process=number,
                rank=record.get("rank", process.only_rank),
                round=None,
                call_site=record["site"],
                purpose=record.get("purpose"),
                crc32=record.get("crc32"),
                **{key: record[key] for key in _OF_DRAW},
            )
            for record in process.of_kind("drawn", "noise")  # the latter in worlds of an audit
        ]
        for number, process in enumerate(processes)
    )


def batches_of(processes: Sequence[Process]) -> list[RecordedBatch]:
    """All batches, each process's in their order."""
    keys = "agent", "number", "sequence", "records"
    return [
        RecordedBatch(process=number, **{key: record[key] for key in keys})
        for number, process in enumerate(processes)
        for record in process.of_kind("batch")
    ]


def _by_time(each: Iterable[list[Line]]) -> list[Line]:
    return list(merge(*each, key=lambda one: one.time))
