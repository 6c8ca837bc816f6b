"""HTTP, seen at a server of ``http.server``, and at those that are built upon it."""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING, Any

from .decoding import contents_in, tell_head
from .sockets import channel_of

if TYPE_CHECKING:
    from .channels import Channels

LENGTH = "content-length:"


class _Body:
    """A file of a connection, of which what passes after the headers is kept."""

    def __init__(self, own: Any, channels: Channels, channel: str | None) -> None:
        self._own, self._channels, self.channel = own, channels, channel
        self.begin()

    def begin(self) -> None:
        """The next is of another message."""
        self.data, self.is_body, self.is_posted = bytearray(), False, False
        self.size: int | None = None  # of the body, if the headers give it
        self.begun: dict[str, Any] | None = None

    def write(self, data: Any) -> Any:
        if self.is_body and len(data):
            # before another thread sends what this reply has led to, or the program ends by it
            if self.begun is None:
                self.begun = self._channels.begun("http.reply")
            self.data += bytes(data)
            if len(self.data) == self.size:
                self.post()
        with self._channels.within():
            return self._own.write(data)

    def post(self) -> None:
        """Record what was written, once."""
        if self.begun is not None and self.channel is not None and not self.is_posted:
            self.is_posted, contents = True, contents_in(bytes(self.data))
            self._channels.posted("http.reply", self.channel, contents, begun=self.begun)

    def read(self, *given: Any) -> Any:
        data = self._own.read(*given)
        self.data += data or b""
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def hook_http(server: Any, channels: Channels) -> None:
    """See the body of each request that is read, and that of each reply."""
    kind = server.BaseHTTPRequestHandler
    setup, flush, handle = kind.setup, kind.flush_headers, kind.handle_one_request

    @functools.wraps(setup)
    def set_up(self: Any) -> None:
        setup(self)
        channel = channel_of(self.connection)
        self.rfile, self.wfile = (
            _Body(file, channels, channel) for file in (self.rfile, self.wfile)
        )

    @functools.wraps(flush)
    def flushed(self: Any) -> None:
        body = self.wfile
        if isinstance(body, _Body):
            body.is_body = False
        head = b"".join(getattr(self, "_headers_buffer", ())).decode("latin1").split("\r\n")
        tell_head(head)
        flush(self)
        if isinstance(body, _Body):
            sizes = [line[15:].strip() for line in head if line[:15].lower() == LENGTH]
            body.is_body, body.size = True, next(map(int, filter(str.isdigit, sizes)), None)

    @functools.wraps(handle)
    def handled(self: Any) -> None:
        asked, replied = self.rfile, self.wfile
        if not isinstance(asked, _Body) or not isinstance(replied, _Body):
            return handle(self)
        asked.begin()
        replied.begin()
        try:
            return handle(self)
        finally:
            _note(asked, replied, str(self.command), channels)

    kind.setup, kind.flush_headers, kind.handle_one_request = set_up, flushed, handled


def _note(asked: _Body, replied: _Body, method: str, channels: Channels) -> None:
    channel, data = asked.channel, bytes(asked.data)
    if channel is None:
        return
    if data:
        crc32 = zlib.crc32(data)
        channels.posted(f"http.{method}", channel, contents_in(data), None, crc32, back=True)
    replied.post()
