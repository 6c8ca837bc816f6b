"""A message begins before it is sent: who gets it may make another thread send at once."""

from contextlib import contextmanager
from itertools import count
from typing import Any

from dpaudit.recorder.transports.http_server import _Body
from dpaudit.recorder.transports.sockets import hook_sending


class Channels:
    """Numbers of messages in the order in which they begin, and which were posted."""

    def __init__(self) -> None:
        self.numbers, self.sent = count(), dict[bytes, int]()

    def begun(self, operator: str) -> dict[str, Any]:
        return {"site": "a.py:1", "sequence": next(self.numbers)}

    @contextmanager
    def within(self) -> Any:
        yield True

    def took(self, channel: str, data: Any = None) -> None:
        pass

    def posted_bytes(self, channel: str, data: bytes, begun: dict[str, Any]) -> None:
        self.sent[data] = begun["sequence"]

    def posted(self, operator: str, channel: str, contents: Any, begun: dict[str, Any]) -> None:
        self.sent[bytes(contents[0].data)] = begun["sequence"]


def test_a_reply_begins_before_what_it_leads_to() -> None:
    channels: Any = Channels()

    class File:
        def write(self, data: bytes) -> None:
            channels.begun("of another thread")
            assert bool(channels.sent) == (data == b"two")  # the program may end by the last part

    body = _Body(File(), channels, "a>b")
    body.write(b"head")
    body.is_body, body.size = True, 6
    for part in (b"one", b"", b"two"):
        body.write(part)
    body.post()
    assert channels.sent == {b"onetwo": 1}


def test_bytes_of_a_socket_begin_before_what_they_lead_to() -> None:
    channels: Any = Channels()

    class Socket:
        type = 1

        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", 1

        getpeername = getsockname

        def sendall(self, data: bytes) -> None:
            if data == b"asked":
                Socket().sendall(b"answered")  # as another thread does meanwhile

        send = sendmsg = sendto = sendall

    hook_sending(Socket, channels)
    Socket().sendall(b"asked")
    assert channels.sent == {b"asked": 0, b"answered": 1}
