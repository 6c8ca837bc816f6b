"""Bodies of HTTP, seen at clients and servers of aiohttp.

Both write by one class. The line of a message is where the program asked for the request, or made
the response.
"""

from __future__ import annotations

import contextvars
import functools
import zlib
from typing import TYPE_CHECKING, Any

from ..log import NOWHERE
from .decoding import contents_in, tell_head
from .sockets import channel_of, note_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channels import Channels

_BODY = "_dpaudit_body"  # attribute of a writer: what was written, and how its record began
_CHANNEL = "_dpaudit_channel"  # attribute of a response that was not read yet
_site: contextvars.ContextVar[str] = contextvars.ContextVar("dpaudit_site", default=NOWHERE)


def hook_writer(module: Any, channels: Channels) -> None:
    """Hook ``aiohttp.http_writer``: a body is complete at its end."""
    kind = module.StreamWriter

    def writing(own: Any, is_end: bool) -> Callable[..., Any]:
        @functools.wraps(own)
        async def write(self: Any, chunk: Any = b"", *given: Any, **named: Any) -> Any:
            found = self.__dict__.get(_BODY)
            if found is None and len(chunk):
                found = bytearray(), channels.begun(_operator(self), _site.get())
                setattr(self, _BODY, found)
            if found is not None:
                found[0].extend(chunk)
            if is_end and found is not None:
                finish(self, *found)
            return await own(self, chunk, *given, **named)

        return write

    def finish(writer: Any, body: bytearray, begun: dict[str, Any]) -> None:
        del writer.__dict__[_BODY]
        socket = None if writer.transport is None else writer.transport.get_extra_info("socket")
        channel = None if socket is None else channel_of(socket)
        if channel is not None:
            note_end(socket, channels)
            channels.posted("", channel, contents_in(bytes(body)), begun=begun)

    write_headers = kind.write_headers

    @functools.wraps(write_headers)
    async def headers_written(self: Any, line: str, headers: Any) -> Any:
        tell_head([line, *(f"{name}: {value}" for name, value in headers.items())])
        return await write_headers(self, line, headers)

    kind.write_headers = headers_written
    kind.write, kind.write_eof = writing(kind.write, False), writing(kind.write_eof, True)


def hook_client(module: Any, channels: Channels) -> None:
    """Hook ``aiohttp.client``: the line of a request, and its answer."""
    kind, reply = module.ClientSession, module.ClientResponse
    request, start, read = kind._request, reply.start, reply.read

    @functools.wraps(request)
    def requested(self: Any, *given: Any, **named: Any) -> Any:
        site = channels.site()

        async def later() -> Any:
            _site.set(site)
            return await request(self, *given, **named)

        return later()

    @functools.wraps(start)
    async def started(self: Any, connection: Any) -> Any:
        socket = connection.transport.get_extra_info("socket")
        setattr(self, _CHANNEL, (channel_of(socket), _site.get()))
        return await start(self, connection)

    @functools.wraps(read)
    async def was_read(self: Any) -> Any:
        data = await read(self)
        channel, site = self.__dict__.pop(_CHANNEL, (None, ""))
        if channel is not None and data:
            crc32, contents = zlib.crc32(data), contents_in(data)
            channels.posted("http.reply", channel, contents, site, crc32, back=True)
        return data

    kind._request, reply.start, reply.read = requested, started, was_read


def hook_server(module: Any, channels: Channels) -> None:
    """Hook ``aiohttp.web_response``: the line of a response."""
    kind = module.StreamResponse
    begin = kind.__init__

    @functools.wraps(begin)
    def begun(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        _site.set(channels.site())

    kind.__init__ = begun


def hook_request(module: Any, channels: Channels) -> None:
    """Hook ``aiohttp.web_request``: requests of clients that are not recorded."""
    kind = module.BaseRequest
    read = kind.read

    @functools.wraps(read)
    async def was_read(self: Any) -> Any:
        known = self._read_bytes is not None
        data = await read(self)
        socket = None if self.transport is None else self.transport.get_extra_info("socket")
        channel = None if socket is None or known else channel_of(socket)
        if channel is not None and data:
            crc32, contents = zlib.crc32(data), contents_in(data)
            channels.posted(f"http.{self.method}", channel, contents, None, crc32, back=True)
        return data

    kind.read = was_read


def _operator(writer: Any) -> str:
    """The operator of a writer: a reply if a server writes."""
    is_server = type(getattr(writer, "_protocol", None)).__name__ == "RequestHandler"
    return "http.reply" if is_server else "http.request"
