"""The folder that a capture leaves.

- ``events.jsonl``: one line for each message that was sent, an Event
- ``draws.jsonl``: one line for each call that drew random numbers, a Draw
- ``batches.jsonl``: one line for each batch of records that an agent took, a Batch
- ``transcript/*.safetensors``: what was sent
- ``unseen.txt``: what could not be recorded; not there if there is nothing
- ``captured.toml``: a draft of its audit
- ``capture.html``: who sent what to whom in which round
"""

import json
import mmap
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import safetensors
from torch import Tensor

from dpaudit.errors import RunError
from dpaudit.files.atomic_files import writing
from dpaudit.files.recorded import (
    BATCHES,
    DRAWS,
    EVENTS,
    TRANSCRIPT,
    UNSEEN,
    RecordedBatch,
    RecordedDraw,
    RecordedEvent,
    SentTensor,
    read_lines,
)

from .log_lines import dtype_called
from .process_logs import Process, Record, events_of

MOST_TENSORS, MOST_BYTES = 10_000, 2**29  # of one file, at most
DTYPES = {"bfloat16": "BF16", "bool": "BOOL"} | {
    f"{kind}{bits}": f"{letter}{bits}"
    for kind, letter in (("float", "F"), ("int", "I"), ("uint", "U"))
    for bits in (8, 16, 32, 64)
}  # dtypes of safetensors; others are stored as bytes


class CaptureFolder:
    """The folder of a capture, read when asked. Raises RunError for what is missing or damaged."""

    def __init__(
        self, path: Path, warning: str | None = None, children: Collection[int] = ()
    ) -> None:
        self.path = path
        self.warning = warning  # about the command that it was made of
        self.children = children  # processes that others of it have started

    @cached_property
    def events(self) -> tuple[RecordedEvent, ...]:
        """All messages, in the order of ``time``, each process's in the order of ``sequence``."""
        return tuple(read_lines(self.path / EVENTS, RecordedEvent))

    @cached_property
    def draws(self) -> tuple[RecordedDraw, ...]:
        """All draws, in the same order."""
        return tuple(read_lines(self.path / DRAWS, RecordedDraw))

    @cached_property
    def batches(self) -> tuple[RecordedBatch, ...]:
        """All batches that agents took, each process's in the order of ``sequence``."""
        return tuple(read_lines(self.path / BATCHES, RecordedBatch))

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """What could not be recorded, a sentence each."""
        path = self.path / UNSEEN
        return tuple(path.read_text("utf-8").splitlines()) if path.exists() else ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that sent or received, ascending."""
        sides = ((event.source, *event.destinations) for event in self.events)
        return tuple(sorted({rank for side in sides for rank in side}))

    def content(self, sent: SentTensor) -> Tensor:
        """A tensor as it was sent, of its shape and dtype, on the CPU."""
        path = self.path / sent.file
        dtype = dtype_called(sent.dtype)
        if dtype is None or ".." in Path(sent.file).parts:
            raise RunError(
                "DPA066", f"{self.path / EVENTS}: no tensor of {sent.dtype} in {sent.file}"
            )
        try:
            with safetensors.safe_open(path, "pt") as file:
                stored: Tensor = file.get_tensor(sent.key)
            return stored.flatten().view(dtype).reshape(sent.shape)
        except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            raise RunError(
                "DPA066", f"{path}: {' '.join(str(error).split())}", "capture again"
            ) from None


def write_transcript(processes: Sequence[Process], folder: Path) -> list[RecordedEvent]:
    """All messages, by time, with their contents in the transcript. Raises RunError."""
    receipts = Receipts(processes)
    with writing(folder / TRANSCRIPT):
        (folder / TRANSCRIPT).mkdir(parents=True, exist_ok=True)
        sent = [SentContents(number, process) for number, process in enumerate(processes)]

        def about(number: int, record: Record) -> dict[str, Any]:
            listed = [LoggedTensor(*one) for one in record.get("tensors", ())]
            checksums = record.get("checksums") or list(map(sent[number].checksum, listed))
            return {
                "tensors": tuple(map(sent[number].store, listed)),
                "inconsistent": receipts.contradict(number, record, checksums),
            }

        events = events_of(processes, about)
        for contents in sent:
            contents.write(folder)
    return events


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
                if record["anyone"]:  # numbered when complete, maybe out of order
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


class LoggedTensor(NamedTuple):
    """A tensor in the file that a process wrote, as its log has it."""

    name: str
    shape: list[int]
    dtype: str
    at: int
    size: int


class SentContents:
    """What one process sent: every content has a key, and a file of the transcript."""

    def __init__(self, number: int, process: Process) -> None:
        self._number, path = number, process.path.with_suffix(".bin")
        self._raw = memoryview(b"")
        if path.stat().st_size:
            with open(path, "rb") as file:
                self._raw = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._known: dict[tuple[str, str], tuple[str, str]] = {}  # content -> its file and key
        self._files: dict[str, list[tuple[str, LoggedTensor]]] = {}
        self._room = 0

    def _bytes(self, tensor: LoggedTensor) -> memoryview:
        return self._raw[tensor.at : tensor.at + tensor.size]

    def checksum(self, tensor: LoggedTensor) -> int:
        """The CRC-32, as receivers know it."""
        return crc32(self._bytes(tensor))

    def store(self, tensor: LoggedTensor) -> SentTensor:
        """Where its content will be."""
        digest = sha256(self._bytes(tensor)).hexdigest()
        if (digest, tensor.dtype) not in self._known:
            self._known[digest, tensor.dtype] = self._add(tensor)
        file, key = self._known[digest, tensor.dtype]
        name, shape, dtype = tensor.name, tuple(tensor.shape), tensor.dtype
        return SentTensor(name=name, shape=shape, dtype=dtype, file=file, key=key, sha256=digest)

    def _add(self, tensor: LoggedTensor) -> tuple[str, str]:
        last = list(self._files.values())[-1] if self._files else []
        if not last or len(last) == MOST_TENSORS or self._room + tensor.size > MOST_BYTES:
            name = f"{TRANSCRIPT}/process-{self._number:04}-{len(self._files):04}.safetensors"
            last, self._room = self._files.setdefault(name, []), 0
        key = str(len(self._known))
        last.append((key, tensor))
        self._room += tensor.size
        return next(reversed(self._files)), key

    def write(self, folder: Path) -> None:
        """Write the files."""
        for name, listed in self._files.items():
            header, end = {}, 0
            for key, tensor in listed:
                typed = tensor.dtype in DTYPES
                header[key] = {
                    "dtype": DTYPES.get(tensor.dtype, "U8"),
                    "shape": tensor.shape if typed else [tensor.size],
                    "data_offsets": [end, end + tensor.size],
                }
                end += tensor.size
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            with open(folder / name, "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for _, tensor in listed:
                    file.write(self._bytes(tensor))
