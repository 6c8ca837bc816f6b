"""Messages of ZeroMQ sockets, by the addresses that they are bound and connected to.

Which process an address belongs to is known when all have written down theirs.
"""

from typing import Any

import zmq

from .log import Log
from .sent import Sent
from .sites import Sites


def record(log: Log, sites: Sites) -> None:
    """See every socket of the process bind, connect and send."""
    sent = Sent(log, sites)
    parts: dict[int, list[bytes]] = {}  # of messages that are not complete, by socket
    socket: Any = zmq.Socket
    bind, connect, send = socket.bind, socket.connect, socket.send

    def noted(what: str, own: Any) -> Any:
        def call(self: Any, address: Any, *given: Any, **named: Any) -> Any:
            result = own(self, address, *given, **named)
            last = self.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
            address = last if what == "bound" else _text(address)
            identity = self.getsockopt(zmq.ROUTING_ID).hex()
            of = {"address": address, "id": identity, "socket": self.underlying}
            log.write({"kind": what, **of})
            return result

        return call

    def recorded(self: Any, data: Any, flags: int = 0, *given: Any, **named: Any) -> Any:
        message = parts.setdefault(self.underlying, [])
        whole = not flags & zmq.SNDMORE
        content = bytes(memoryview(getattr(data, "buffer", data)).cast("B"))
        if whole:
            name = zmq.SocketType(self.getsockopt(zmq.TYPE)).name
            frames = [*message, content]
            to = frames.pop(0).hex() if name == "ROUTER" else None
            sent.write("addressed", f"zmq.{name}", frames, {"socket": self.underlying, "to": to})
        result = send(self, data, flags, *given, **named)
        message[:] = [] if whole else [*message, content]
        return result

    socket.bind, socket.connect, socket.send = (
        noted("bound", bind),
        noted("connected", connect),
        recorded,
    )


def _text(address: Any) -> str:
    return address.decode() if isinstance(address, bytes) else str(address)
