"""Bodies of HTTP, seen at clients of httpx, synchronous or not."""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING, Any

from .decoding import contents_in, tell_head
from .sockets import channel_of, note_end

if TYPE_CHECKING:
    from .channels import Channels

_REPLY = "_dpaudit_reply"  # attribute of an unread response: its channel, line and operator


def hook_httpx(httpx: Any, channels: Channels) -> None:
    """See each single request, also those of a redirection, and each reply that is read whole."""
    send, send_later = (kind._send_single_request for kind in (httpx.Client, httpx.AsyncClient))
    read, read_later = httpx.Response.read, httpx.Response.aread

    @functools.wraps(send)
    def sent(self: Any, request: Any) -> Any:
        request.read()
        begun = channels.begun(f"http.{request.method}")
        response = send(self, request)
        _note_request(request, response, begun, channels)
        return response

    @functools.wraps(send_later)
    async def sent_later(self: Any, request: Any) -> Any:
        await request.aread()
        begun = channels.begun(f"http.{request.method}")
        response = await send_later(self, request)
        _note_request(request, response, begun, channels)
        return response

    @functools.wraps(read)
    def was_read(self: Any) -> Any:
        data = read(self)
        _note_reply(self, data, channels)
        return data

    @functools.wraps(read_later)
    async def was_read_later(self: Any) -> Any:
        data = await read_later(self)
        _note_reply(self, data, channels)
        return data

    httpx.Client._send_single_request = sent
    httpx.AsyncClient._send_single_request = sent_later
    httpx.Response.read, httpx.Response.aread = was_read, was_read_later


def _note_request(request: Any, response: Any, begun: dict[str, Any], channels: Channels) -> None:
    stream = response.extensions.get("network_stream")
    socket = None if stream is None else stream.get_extra_info("socket")
    channel = None if socket is None else channel_of(socket)
    if channel is None:  # a transport of a test, or one that hides its socket
        channels.unseen("requests of httpx by a transport without a socket are not recorded")
        return
    note_end(socket, channels)
    headers = (f"{name}: {value}" for name, value in request.headers.items())
    tell_head([f"{request.method} {request.url.raw_path.decode('latin1')}", *headers])
    if request.content:
        channels.posted("", channel, contents_in(request.content), begun=begun)
    setattr(response, _REPLY, (channel, begun["site"], f"{begun['operator']}.reply"))


def _note_reply(response: Any, data: bytes, channels: Channels) -> None:
    found = response.__dict__.pop(_REPLY, None)
    if found is not None and data:
        channel, site, operator = found
        channels.posted(operator, channel, contents_in(data), site, zlib.crc32(data), back=True)
