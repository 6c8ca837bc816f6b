"""How a message that did not pass torch.distributed is written down."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from .log import Content, Log
from .sites import Sites


class Sent:
    """Writes messages of other transports; an adapter is handed one of these to call.

    ``sent(source, destinations, parts)`` says that rank ``source`` sends the same parts to each
    of ``destinations``: tensors, or bytes, which are recorded as uint8.
    """

    def __init__(self, log: Log, sites: Sites) -> None:
        self._log, self._sites = log, sites

    def __call__(
        self, source: int, destinations: Sequence[int], parts: Sequence[Any], name: str = "send"
    ) -> None:
        ends = {"source": int(source), "destinations": sorted(map(int, destinations))}
        ranks = sorted({ends["source"], *ends["destinations"]})  # type: ignore[misc]
        self.write("sent", name, parts, {"ranks": ranks, **ends})

    def write(self, kind: str, name: str, parts: Sequence[Any], more: dict[str, Any]) -> None:
        """A record of a message, with what its transport knows of its ends."""
        site = self._sites.here()
        with self._log.lock:
            record = {
                "kind": kind,
                "sequence": self._log.number(),
                "time": time.time(),
                "operator": name,
                "site": site,
                "occurrence": self._log.count((name, site)),
                "group": "transport",
                "number": None,
                "tag": None,
                **more,
            }
            self._log.write(record, [_content(i, part) for i, part in enumerate(parts)])


def _content(i: int, part: Any) -> Content:
    try:
        data = memoryview(part).cast("B")
        return Content(str(i), (data.nbytes,), "uint8", data)
    except TypeError:
        if "torch" not in sys.modules or not isinstance(part, sys.modules["torch"].Tensor):
            raise TypeError(
                "sent(source, destinations, parts): expected a list of tensors or bytes; got a "
                f"{type(part).__name__} in it"
            ) from None
        from .contents import contents  # loads torch, which this process then has

        (content,) = contents([part])
        return content._replace(name=str(i), data=bytes(content.data))
