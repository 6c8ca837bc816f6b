"""What a captured program sent and drew: the files of a capture, and their content as values.

A capture is a folder of

    events.jsonl             one line for each message that was sent: an Event
    draws.jsonl              one line for each call that drew random numbers: a Draw
    transcript/*.safetensors what was sent
    captured.toml            a draft of its audit
    capture.html             who sent what to whom in which round

Ranks are those of the program's default process group, which are the agents of an audit. A call
site is "train.py:88": the innermost line of the program itself, the file relative to the folder
that the command was started in, or to the place on the module path where it lies.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import torch
from pydantic import NonNegativeInt, PositiveInt, ValidationError
from torch import Tensor

from dpaudit.errors import RunError
from dpaudit.files.documents import reason
from dpaudit.files.whole import write_whole
from dpaudit.strict import Strict

EVENTS, DRAWS, TRANSCRIPT = "events.jsonl", "draws.jsonl", "transcript"
_Line = TypeVar("_Line", bound=Strict)


class SentTensor(Strict):
    """One tensor of a message, and where its content is."""

    name: str  # its place in the message, "0", "1", ...: a call may send a list
    shape: tuple[NonNegativeInt, ...]
    dtype: str  # as torch names it, without "torch.": "float32", "bfloat16", "uint8"
    file: str  # relative to the capture's folder; equal contents may share file and key
    key: str  # its name in that safetensors file
    sha256: str  # of the content's bytes as they were when the call was made


class Event(Strict):
    """One message: what one call of one process sent to each of its destinations alike.

    A call that sends something else to every destination (scatter, all_to_all, reduce_scatter) is
    an event for each of them, with the same call site and occurrence. Of a reduction, an event is
    the contribution of one rank; what a reader of the link learns of it is for an audit to say.
    Objects (``all_gather_object`` and the like) are their pickled bytes, as uint8.
    """

    process: NonNegativeInt  # of the capture's processes, in the order of rank and of first event
    rank: NonNegativeInt  # of that process
    sequence: NonNegativeInt  # rises within a process, over events and draws together
    time: float  # seconds since 1970 when the call was made
    operator: str  # "send", "broadcast", "all_gather", "all_reduce", ...: see docs/capture.md
    call_site: str  # "train.py:88"
    occurrence: NonNegativeInt  # earlier calls of this operator at this call site by this process
    group: tuple[NonNegativeInt, ...]  # ranks of the process group of the call, ascending
    tag: int | None  # of a send
    source: NonNegativeInt  # the rank that sent
    destinations: tuple[NonNegativeInt, ...]  # ranks other than the source, ascending
    round: PositiveInt | None  # 1-based; None before the first and where no rounds were found
    tensors: tuple[SentTensor, ...]
    inconsistent: bool  # a destination received other bytes: the buffer changed on its way


class Draw(Strict):
    """One call that filled a tensor with random numbers."""

    process: NonNegativeInt
    rank: NonNegativeInt | None  # None before the process had one
    sequence: NonNegativeInt  # rises within a process, over events and draws together
    time: float
    operator: str  # "normal_", "uniform_", "exponential_", ...: what the drawing came down to
    call_site: str
    occurrence: NonNegativeInt  # earlier draws at this call site by this process
    round: PositiveInt | None
    shape: tuple[NonNegativeInt, ...]
    dtype: str
    parameters: tuple[float | None, ...]  # (mean, std) of normal_, (low, high) of uniform_, ...;
    # None for what is not a finite number


class Recording:
    """The folder of a capture, read when asked. Raises RunError for what is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All messages, in the order of ``time``, each process's in the order of ``sequence``."""
        return tuple(_read(self.path / EVENTS, Event))

    @cached_property
    def draws(self) -> tuple[Draw, ...]:
        """All draws, in the same order."""
        return tuple(_read(self.path / DRAWS, Draw))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that sent or received, ascending."""
        sides = ((event.source, *event.destinations) for event in self.events)
        return tuple(sorted({rank for side in sides for rank in side}))

    def content(self, sent: SentTensor) -> Tensor:
        """A tensor as it was sent, of its shape and dtype, on the CPU."""
        path = self.path / sent.file
        dtype = getattr(torch, sent.dtype, None)
        if not isinstance(dtype, torch.dtype) or ".." in Path(sent.file).parts:
            raise RunError(f"{self.path / EVENTS}: no tensor of {sent.dtype} in {sent.file}")
        try:
            with safetensors.safe_open(path, "pt") as file:
                stored: Tensor = file.get_tensor(sent.key)
            return stored.view(dtype).reshape(sent.shape)
        except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            raise RunError(f"{path}: {' '.join(str(error).split())}; capture again") from None


def write_lines(path: Path, values: Iterable[Event] | Iterable[Draw]) -> None:
    """A file with one value a line, whole or not at all. Raises RunError."""
    write_whole(path, "".join(value.model_dump_json() + "\n" for value in values).encode())


def _read(path: Path, kind: type[_Line]) -> Iterator[_Line]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield _parsed(path, number, line, kind)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: {reason(error)}; expected the folder of a capture") from None


def _parsed(path: Path, number: int, line: str, kind: type[_Line]) -> _Line:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(f"{path}:{number}: {where}: {first['msg']}; capture again") from None
