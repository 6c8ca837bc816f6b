"""What the tap is shown where a program is recorded, and not audited: it is written down."""

import time
from typing import Any, Protocol

import torch
from torch import Tensor

from dpaudit.files.world import Noise

from .tape import as_noise, as_tensor


class Log(Protocol):
    """What the hooks write to."""

    lock: Any

    def number(self) -> int: ...
    def count(self, what: Any) -> int: ...
    def write(self, record: dict[str, Any], contents: Any = ...) -> None: ...


class Recorder:
    """Messages and noise by their names, in the log of the hooks; batches change nothing."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def batch(self, agent: int, records: Any) -> Any:
        return records

    def noise(self, agent: int, name: str, draw: Any, scale: float, family: Noise) -> Any:
        own = as_noise(name, draw)
        with self._log.lock:
            occurrence = self._log.count(("drawn", agent, name))
            self._log.write(
                drawn_record(self._log, name, own, scale, family, occurrence) | {"rank": agent}
            )
        return draw

    def send(self, source: int, destinations: tuple[int, ...], name: str, value: Any) -> None:
        to = sorted(set(destinations) - {source})
        with self._log.lock:
            record = {
                **about(self._log, "sent", name, "tap"),
                "occurrence": self._log.count(("tap", name)),
                "group": "tap",
                "ranks": sorted({source, *to}),
                "number": None,
                "tag": None,
                "source": source,
                "destinations": to,
            }
            self._log.write(record, [content_of(as_tensor(value))])


def drawn_record(
    log: Log, name: str, own: Tensor, scale: float, family: Noise, occurrence: int
) -> dict[str, Any]:
    """A draw that the tap was shown."""
    return {
        **about(log, "drawn", name, family),
        "occurrence": occurrence,
        "shape": tuple(own.shape),
        "dtype": str(own.dtype).removeprefix("torch."),
        "parameters": (0.0, float(scale)),
    }


def about(log: Log, kind: str, name: str, operator: str) -> dict[str, Any]:
    """What every record of the tap begins with."""
    begun = {"kind": kind, "sequence": log.number(), "time": time.time()}
    return {**begun, "operator": operator, "site": name}


def content_of(tensor: Tensor) -> tuple[str, tuple[int, ...], str, bytes]:
    """As the log takes it: name, shape, dtype and bytes."""
    held = tensor.detach().contiguous()
    data = held.reshape(-1).view(torch.uint8).numpy().tobytes()
    return "0", tuple(held.shape), str(held.dtype).removeprefix("torch."), data
