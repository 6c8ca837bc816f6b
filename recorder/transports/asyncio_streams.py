"""Streams of asyncio: what a transport is handed to write, whenever the loop sends it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .raw_bytes import copied
from .sockets import channel_of, note_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channels import Channels


def hook_loop(module: Any, channels: Channels) -> None:
    """See the transports of sockets, and ``loop.sock_sendall``."""
    kind, loop = module._SelectorSocketTransport, module.BaseSelectorEventLoop
    begin, sendall = kind.__init__, loop.sock_sendall

    @functools.wraps(begin)
    def begun(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        note_end(self.get_extra_info("socket"), channels)

    @functools.wraps(sendall)
    def sent_all(self: Any, sock: Any, data: Any) -> Any:
        _post(sock, copied(data), channels)
        return sendall(self, sock, data)

    kind.__init__, loop.sock_sendall = begun, sent_all
    _hook_writing(kind, channels)


def hook_ssl(module: Any, channels: Channels) -> None:
    """See what is not yet encrypted."""
    _hook_writing(module._SSLProtocolTransport, channels)


def _hook_writing(kind: Any, channels: Channels) -> None:
    def writing(own: Any, is_list: bool) -> Callable[..., Any]:
        @functools.wraps(own)
        def write(self: Any, data: Any) -> Any:
            data = list(data) if is_list else data
            with channels.within() as outermost:
                result = own(self, data)
            protocol = type(getattr(self, "_protocol", None)).__name__
            if outermost and protocol != "SSLProtocol":  # it writes encrypted bytes
                whole = b"".join(map(copied, data)) if is_list else copied(data)
                _post(self.get_extra_info("socket"), whole, channels)
            return result

        return write

    for name, is_list in (("write", False), ("writelines", True)):
        if name in vars(kind):
            setattr(kind, name, writing(getattr(kind, name), is_list))


def _post(socket: Any, data: bytes, channels: Channels) -> None:
    channel = channel_of(socket)
    if channel is not None and data:
        note_end(socket, channels)
        channels.posted_bytes(channel, data)
