"""What a captured program sent, drew and took, a line each: events, draws and batches.jsonl.

Ranks are those of the program's default process group, which are the agents of an audit. A call
site is "train.py:88": the innermost line of the program itself, the file relative to the folder
that the command was started in, or to the place on the module path where it lies.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import NonNegativeInt, PositiveInt, ValidationError

from dpaudit.errors import RunError
from dpaudit.strict import Strict

from .atomic_files import write_whole
from .documents import reason

EVENTS, DRAWS, TRANSCRIPT = "events.jsonl", "draws.jsonl", "transcript"  # in a capture's folder
BATCHES = "batches.jsonl"
PAGE, DRAFT, UNSEEN = "capture.html", "captured.toml", "unseen.txt"
Purpose = Literal["model", "data"]  # purpose of draws other than noise: weights or dropout; records
_Line = TypeVar("_Line", bound=Strict)


class SentTensor(Strict):
    """One tensor of a message, and where its content is."""

    name: str  # its place in the message, "0", "1", ...: a call may send a list
    shape: tuple[NonNegativeInt, ...]
    dtype: str  # as torch names it, without "torch.": "float32", "bfloat16", "uint8"
    file: str  # relative to the capture's folder; equal contents may share file and key
    key: str  # its name in that safetensors file
    sha256: str  # hash of the content at the time of the call


class RecordedEvent(Strict):
    """One message: what one call of one process sent to each of its destinations alike.

    A call that sends something else to every destination (scatter, all_to_all, reduce_scatter) is
    an event for each of them, with the same call site and occurrence. Of a reduction, an event is
    the contribution of one rank; what an adversary learns from it is for an audit to say.
    Objects (``all_gather_object`` and the like) are the numbers that they hold, or their pickled
    bytes, as uint8, if they hold none.
    """

    process: NonNegativeInt  # number of the process, by rank and first event
    rank: NonNegativeInt  # rank of that process
    sequence: NonNegativeInt  # rises within a process, over events and draws together
    time: float  # seconds since 1970 when the call was made
    operator: str  # "send", "broadcast", "all_gather", "all_reduce", ...: see docs/capture.md
    call_site: str  # "train.py:88"
    occurrence: NonNegativeInt  # earlier calls of this operator at this call site by this process
    group: tuple[NonNegativeInt, ...]  # ranks of the process group of the call, ascending
    tag: int | None  # tag of a send
    source: NonNegativeInt  # the rank that sent
    destinations: tuple[NonNegativeInt, ...]  # ranks other than the source, ascending
    round: PositiveInt | None  # 1-based; None before the first and where no rounds were found
    tensors: tuple[SentTensor, ...]
    inconsistent: bool  # a destination received other bytes: the buffer changed on its way


class RecordedDraw(Strict):
    """One call that filled a tensor with random numbers."""

    process: NonNegativeInt
    rank: NonNegativeInt | None  # None before the process had one; in a simulation the agent
    sequence: NonNegativeInt  # rises within a process, over events and draws together
    time: float
    operator: str  # "normal_", "uniform_", "exponential_", ...: what the drawing came down to
    call_site: str
    occurrence: NonNegativeInt  # earlier draws at this call site by this process
    round: PositiveInt | None
    shape: tuple[NonNegativeInt, ...]
    dtype: str
    purpose: Purpose | None = None  # by the names of the calling functions; None: unknown
    parameters: tuple[float | None, ...]  # (mean, std) of normal_, (low, high) of uniform_, ...;
    # None for what is not a finite number
    crc32: NonNegativeInt | None = None  # checksum of its numbers, in runs of an audit


class RecordedBatch(Strict):
    """The records of one step of an agent: of tap.batch, or of a data loader of torch."""

    process: NonNegativeInt
    agent: NonNegativeInt
    number: PositiveInt  # 1 is the agent's first
    sequence: NonNegativeInt  # rises within a process, over events and draws too
    records: NonNegativeInt  # 0: what the program gave is no batch of records


def write_lines(
    path: Path, values: Iterable[RecordedEvent] | Iterable[RecordedDraw] | Iterable[RecordedBatch]
) -> None:
    """A file with one value a line, whole or not at all. Raises RunError."""
    write_whole(path, "".join(value.model_dump_json() + "\n" for value in values).encode())


def read_lines(path: Path, kind: type[_Line]) -> Iterator[_Line]:
    """The lines of one of these files. Raises RunError for what is missing or damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield kind.model_validate_json(line)
                except ValidationError as error:
                    first: Any = error.errors()[0]
                    said = f"{path}:{number}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
                    raise RunError("DPA066", said, "capture again") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(
            "DPA066", f"{path}: {reason(error)}; expected the folder of a capture"
        ) from None
