"""The lines of a process's log, checked: it was written by a program that is not trusted.

A line that is not as docs/recorder-protocol.md has it, or a content that is not in the file beside
it, is one error that says where.
"""

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from dpaudit.errors import RunError, shortened
from dpaudit.files.recorded import Purpose
from dpaudit.memory import size_text
from dpaudit.recorder import PROTOCOL
from dpaudit.text import one_line

MOST_BYTES = 2**30  # per log
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_Size = Annotated[int, Field(ge=0, lt=2**62)]
_Name = Annotated[str, Field(max_length=4096)]
_Rank = Annotated[int, Field(ge=0, lt=2**31)]
_Tensor = tuple[_Name, Annotated[list[_Size], Field(max_length=64)], _Name, _Size, _Size]


@with_config(_STRICT)
class ProcessLine(TypedDict):
    """The first line of a log."""

    kind: Literal["process"]
    protocol: int
    pid: NonNegativeInt
    time: float
    command: list[str]
    python: _Name
    identity: NotRequired[list[_Rank]]  # among the processes of multiprocessing
    rank: NotRequired[_Rank]
    ordered: NotRequired[bool]  # the rank is a number in an order, which no launcher has given
    place: NotRequired[list[_Rank]]  # path of child numbers, in the order of starting


@with_config(_STRICT)
class NoteLine(TypedDict):
    """What a process says about itself."""

    kind: Literal["unseen", "refused", "failed", "over", "left", "full", "threads"]
    text: NotRequired[str]
    time: NotRequired[float]


@with_config(_STRICT)
class BesideLine(TypedDict):
    """What a message holds beside numbers."""

    kind: Literal["beside"]
    text: _Name


class CallLine(TypedDict):
    """What messages and draws have in common."""

    sequence: _Size
    time: float
    operator: _Name
    site: _Name
    occurrence: _Size
    tensors: NotRequired[list[_Tensor]]


class LinkLine(CallLine):
    """A message on its way."""

    group: _Name
    number: NonNegativeInt | None
    tag: int | None


@with_config(_STRICT)
class SentLine(LinkLine):
    kind: Literal["sent"]
    source: _Rank
    destinations: list[_Rank]
    ranks: list[_Rank]
    checksums: NotRequired[list[NonNegativeInt]]  # of the objects that were sent


@with_config(_STRICT)
class AddressedLine(LinkLine):
    """A message whose ends are known when all processes have written down their addresses."""

    kind: Literal["addressed"]
    socket: int
    to: _Name | None
    crc32: NotRequired[NonNegativeInt]  # checksum of its last part


@with_config(_STRICT)
class HeardLine(TypedDict):
    """A socket of ZeroMQ that answers by names was sent a message by one of them."""

    kind: Literal["heard"]
    socket: int
    id: _Name
    crc32: NonNegativeInt


@with_config(_STRICT)
class PostedLine(LinkLine):
    """A message on a channel whose reader is known when all processes have written down theirs."""

    kind: Literal["posted"]
    channel: _Name
    crc32: NonNegativeInt | None
    back: bool
    framed: NotRequired[NonNegativeInt]  # the number of a message that is the length of this one


@with_config(_STRICT)
class TookLine(TypedDict):
    """A process reads from a channel, perhaps a message."""

    kind: Literal["took"]
    channel: _Name
    crc32: NonNegativeInt | None


@with_config(_STRICT)
class PairedLine(TypedDict):
    """Two channels, of which each has what is written to the other."""

    kind: Literal["paired"]
    channels: tuple[_Name, _Name]


@with_config(_STRICT)
class PassedLine(TypedDict):
    """Who reads from one channel, ``to``, is handed what is on another, too."""

    kind: Literal["passed"]
    channel: _Name
    to: _Name


@with_config(_STRICT)
class ReceivedLine(TypedDict):
    kind: Literal["received"]
    group: _Name
    tag: int | None
    anyone: bool
    source: _Rank
    rank: _Rank
    number: NonNegativeInt
    crc32: list[NonNegativeInt]


@with_config(_STRICT)
class DrawnLine(CallLine):
    kind: Literal["drawn", "noise"]
    shape: list[_Size]
    dtype: _Name
    parameters: list[float | None]
    rank: NotRequired[_Rank]
    purpose: NotRequired[Purpose | None]
    crc32: NotRequired[NonNegativeInt]


@with_config(_STRICT)
class BatchLine(TypedDict):
    kind: Literal["batch"]
    number: Annotated[int, Field(ge=1)]
    agent: _Rank
    records: _Size
    sequence: _Size
    digests: NotRequired[list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]]]
    tensors: NotRequired[list[_Tensor]]


@with_config(_STRICT)
class SocketLine(TypedDict):
    kind: Literal["bound", "connected"]
    address: _Name
    id: _Name
    socket: int


_LINE: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        ProcessLine
        | NoteLine
        | BesideLine
        | SentLine
        | AddressedLine
        | HeardLine
        | PostedLine
        | TookLine
        | PairedLine
        | PassedLine
        | ReceivedLine
        | DrawnLine
        | BatchLine
        | SocketLine,
        Field(discriminator="kind"),
    ]
)


def lines_of(path: Path) -> tuple[dict[str, Any], ...]:
    """The records of a log; a line that was being written when the process was killed is none.

    Raises RunError for what no recorder of this version has written.
    """
    contents = path.with_suffix(".bin")
    if not contents.is_file():
        raise _damaged(path, 0, f"no {contents.name} beside it, which has the contents")
    room, size = contents.stat().st_size, path.stat().st_size
    if size > MOST_BYTES:
        raise _damaged(path, 0, f"{size_text(size)} of lines; at most {size_text(MOST_BYTES)}")
    found = []
    whole = path.read_bytes().rpartition(b"\n")[0]
    _refuse_other_version(path, whole.partition(b"\n")[0])
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = _LINE.validate_json(line)
        except ValidationError as error:
            first: Any = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"][1:]))
            raise _damaged(path, number, f"{where}: {first['msg']}") from None
        for name, shape, dtype, at, content in record.get("tensors", ()):
            if why := _misfit(shape, dtype, at, content, room):
                raise _damaged(path, number, f'content "{name}": {why}')
        found.append(record)
    return tuple(found)


def _refuse_other_version(path: Path, first: bytes) -> None:
    """Before a line is read, because another version may have other keys."""
    try:
        about = json.loads(first)
    except (ValueError, RecursionError):
        return
    said = about.get("protocol", PROTOCOL) if isinstance(about, dict) else PROTOCOL
    if said != PROTOCOL:
        raise RunError(
            "DPA010",
            f"{path.name}: protocol {shortened(one_line(str(said)), 40)}; expected {PROTOCOL}: "
            "dpaudit and dpaudit-recorder are of different versions",
        )


@cache
def dtype_called(name: str) -> torch.dtype | None:
    """The dtype of torch with this name; None: there is none, or its numbers cannot be read.

    Those of quantised numbers, which have no scale here, would end the process.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of deprecated and experimental dtypes
            torch.ones(1, dtype=dtype).to(torch.complex128)
    except RuntimeError:  # torch computes nothing with such numbers
        return None
    return dtype


def _misfit(shape: list[int], name: str, at: int, size: int, room: int) -> str | None:
    """Why a content cannot be what its line says; None: it can."""
    dtype = dtype_called(name)
    if dtype is None:
        return f"no dtype of numbers is called {name}"
    if at + size > room:
        return f"bytes {at} to {at + size} of {room}"
    items = 1
    for n in shape:
        items *= n
    expected = items * dtype.itemsize
    return None if size == expected else f"{size} bytes; {shape} of {name} has {expected}"


def _damaged(path: Path, number: int, why: str) -> RunError:
    return RunError("DPA066", f"{path.name}:{number}: {why}", "capture again")
