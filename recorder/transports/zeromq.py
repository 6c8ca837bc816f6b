"""Messages that do not pass torch.distributed: of ZeroMQ sockets, or shown by an adapter.

Messages of sockets have the addresses that these are bound and connected to. Which process an
address belongs to is known when all have written down theirs.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from ..errors import RecorderError
from ..log import Content
from ..values import content_of, is_array, is_tensor
from .decoding import contents_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..log import Log, Sites


class OtherTransport:
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
        contents = [_content(i, part) for i, part in enumerate(parts)]
        self.write("sent", name, contents, {"ranks": ranks, **ends})

    def write(
        self, kind: str, name: str, contents: Sequence[Content], more: dict[str, Any]
    ) -> None:
        """A record of a message, with what its transport knows of its ends."""
        site = self._sites.here()
        with self._log.lock:
            begun = self._log.begun(kind, name, site, (name, site))
            record = {**begun, "group": "transport", "number": None, "tag": None, **more}
            self._log.write(record, contents)


def _content(i: int, part: Any) -> Content:
    if is_tensor(part) or is_array(part):
        return content_of(part, str(i))
    try:
        data = memoryview(part).cast("B")
    except TypeError:
        raise TypeError(
            "sent(source, destinations, parts): expected a list of tensors, arrays or bytes; got "
            f"a {type(part).__name__} in it"
        ) from None
    return Content(str(i), (data.nbytes,), "uint8", data)


def _read(data: Any) -> Content | bytes:
    try:
        return content_of(data) if is_array(data) else _bytes_of(data)
    except RecorderError:  # an array of something else than numbers
        return _bytes_of(data)


def _bytes_of(part: Any) -> bytes:
    return bytes(memoryview(getattr(part, "buffer", part)).cast("B"))


def record_sockets(zmq: Any, log: Log, sites: Sites) -> None:
    """See every ZeroMQ socket of the process bind, connect and send."""
    sent = OtherTransport(log, sites)
    parts: dict[int, list[Any]] = {}  # socket -> parts of an incomplete message
    socket: Any = zmq.Socket
    bind, connect, send = socket.bind, socket.connect, socket.send

    def noted(what: str, own: Any) -> Any:
        def call(self: Any, address: Any, *given: Any, **named: Any) -> Any:
            result = own(self, address, *given, **named)
            last = self.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
            if what == "bound":
                address = last
            elif isinstance(address, bytes):
                address = address.decode()
            identity = self.getsockopt(zmq.ROUTING_ID).hex()
            of = {"address": str(address), "id": identity, "socket": self.underlying}
            log.write({"kind": what, **of})
            return result

        return call

    def recorded(self: Any, data: Any, flags: int = 0, *given: Any, **named: Any) -> Any:
        message = parts.setdefault(self.underlying, [])
        whole = not flags & zmq.SNDMORE
        content = _read(data)
        if whole:
            name = zmq.SocketType(self.getsockopt(zmq.TYPE)).name
            frames = [*message, content]
            to = frames.pop(0).hex() if name == "ROUTER" else None
            last = content.data if isinstance(content, Content) else content
            more = {"socket": self.underlying, "to": to, "crc32": zlib.crc32(last)}
            sent.write("addressed", f"zmq.{name}", _contents(frames), more)
        result = send(self, data, flags, *given, **named)
        message[:] = [] if whole else [*message, content]
        return result

    socket.bind, socket.connect, socket.send = (
        noted("bound", bind),
        noted("connected", connect),
        recorded,
    )
    socket.recv = _hearing(zmq, log, socket.recv)


def _contents(frames: Sequence[Any]) -> list[Content]:
    found: list[Content] = []
    for i, frame in enumerate(frames):
        is_content = isinstance(frame, Content)
        found += [frame._replace(name=str(i))] if is_content else contents_in(frame, str(i))
    return found


def _hearing(zmq: Any, log: Log, own: Any) -> Callable[..., Any]:
    """Receives as its own does, and says from whom: a ROUTER knows its peers by names alone."""
    names: dict[int, str] = {}  # socket -> the message that is being read

    def received(self: Any, *given: Any, **named: Any) -> Any:
        frame = own(self, *given, **named)
        if self.getsockopt(zmq.TYPE) == zmq.ROUTER:
            data, number = _bytes_of(frame), self.underlying
            if number not in names:
                names[number] = data.hex()
            elif not self.getsockopt(zmq.RCVMORE):
                crc32 = zlib.crc32(data)
                heard = {"socket": number, "id": names.pop(number), "crc32": crc32}
                log.write({"kind": "heard", **heard})
        return frame

    return received
