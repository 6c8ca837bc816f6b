"""From what each process wrote down to the files of a capture."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from pathlib import Path
from typing import Any

from dpaudit.files.recorded import Draw, Event
from dpaudit.text import one_line

from .inside.start import LEFT, OVER
from .transcript_files import Contents, TranscriptFiles

Record = dict[str, Any]
_OF_DRAW = ("sequence", "time", "operator", "occurrence", "shape", "dtype", "parameters")
_OF_LAUNCHER = (  # torchrun's and mp.spawn's own, about a process that failed
    "ChildFailedError",
    "ProcessExitedException",
)
_OF_EVENT = ("sequence", "time", "operator", "occurrence", "tag", "source", "destinations")


@dataclass(frozen=True)
class Process:
    """What one process wrote down."""

    path: Path  # of its log; the contents lie beside it
    records: tuple[Record, ...]

    @classmethod
    def read(cls, path: Path) -> "Process":
        """A line that was being written when the process was killed does not count."""
        whole = path.read_bytes().rpartition(b"\n")[0]
        return cls(path, tuple(json.loads(line) for line in whole.splitlines()))

    def of_kind(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    @cached_property
    def rank(self) -> int | None:
        for record in self.records:
            if record["kind"] in ("sent", "received"):
                rank: int = record["source" if record["kind"] == "sent" else "rank"]
                return rank
        return None

    @property
    def started(self) -> float:
        return min((float(about["time"]) for about in self.of_kind("process")), default=0.0)


def processes_in(folder: Path) -> list[Process]:
    """The processes that wrote something down, in the order of rank and of beginning."""
    found = [Process.read(path) for path in sorted(folder.glob("*.log"))]
    last = float("inf")
    return sorted(found, key=lambda p: (last if p.rank is None else p.rank, p.started))


def first_failure(processes: Sequence[Process]) -> str | None:
    """The error that ended a process before any other: what others say may follow from it."""
    failed = [r for p in processes for r in p.of_kind("failed")]
    own = [r for r in failed if not r["text"].startswith(_OF_LAUNCHER)]
    return None if not own else one_line(min(own, key=lambda r: float(r["time"]))["text"])


def all_over(processes: Sequence[Process]) -> bool:
    """Whether each process that sent anything has reached the end of its program, and none failed.

    What goes wrong after that, as where a library is taken down, changes no message.
    """
    sending = [process for process in processes if process.of_kind("sent")]
    ended = all(process.of_kind(OVER) for process in sending)
    left = any(process.of_kind(LEFT) for process in sending)
    return bool(sending) and ended and not left and first_failure(processes) is None


def events_of(processes: Sequence[Process], files: TranscriptFiles) -> list[Event]:
    """All messages, by time, each process's in their order; contents go to the files."""
    receipts = Receipts(processes)
    each = []
    for number, process in enumerate(processes):
        with files.contents_of(number, process.path.with_suffix(".bin")) as contents:
            sent = process.of_kind("sent")
            each.append([_event(number, record, contents, receipts) for record in sent])
    return list(merge(*each, key=lambda event: event.time))


def draws_of(processes: Sequence[Process]) -> list[Draw]:
    """All draws, by time, each process's in their order."""
    each = [
        [
            Draw(
                process=number,
                rank=record.get("rank", process.rank),
                round=None,
                call_site=record["site"],
                **{key: record[key] for key in _OF_DRAW},
            )
            for record in process.records
            if record["kind"] in ("drawn", "noise")  # the latter in worlds of an audit
        ]
        for number, process in enumerate(processes)
    ]
    return list(merge(*each, key=lambda draw: draw.time))


class Receipts:
    """What processes received, by the link and the number of the message on it.

    Several processes may have had one rank, one after the other, as when a command starts a program
    twice: the first with a rank exchanges messages with the first of every other rank.
    """

    def __init__(self, processes: Sequence[Process]) -> None:
        generations: defaultdict[int | None, int] = defaultdict(int)
        self._generation: dict[int, int] = {}
        self._numbered: dict[tuple[Any, ...], list[int]] = {}
        self._from_anyone: defaultdict[tuple[Any, ...], list[list[int]]] = defaultdict(list)
        for number, process in enumerate(processes):
            self._generation[number] = generations[process.rank]
            generations[process.rank] += 1
            for record in process.of_kind("received"):
                link = self._link(number, record, record["rank"])
                self._numbered[(*link, record["number"])] = record["crc32"]
                if record["anyone"]:  # which is numbered when it is complete, maybe out of order
                    self._from_anyone[link].append(record["crc32"])

    def contradict(self, process: int, record: Record, sent: list[int]) -> bool:
        """Whether a destination received other bytes than were sent, by the checksum of each."""
        for destination in record["destinations"]:
            link = self._link(process, record, destination)
            received = self._numbered.get((*link, record["number"]), sent)
            if received != sent and sent not in self._from_anyone.get(link, ()):
                return True
        return False

    def _link(self, process: int, record: Record, destination: int) -> tuple[Any, ...]:
        generation = self._generation[process]
        return generation, record["group"], record["tag"], record["source"], destination


def _event(process: int, record: Record, contents: Contents, receipts: Receipts) -> Event:
    listed = record.get("tensors", ())
    return Event(
        process=process,
        rank=record["source"],
        call_site=record["site"],
        group=tuple(sorted(record["ranks"])),
        round=None,
        tensors=tuple(map(contents.store, listed)),
        inconsistent=receipts.contradict(process, record, list(map(contents.checksum, listed))),
        **{key: record[key] for key in _OF_EVENT},
    )
