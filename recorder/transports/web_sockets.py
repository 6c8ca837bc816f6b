"""Messages of the package ``websockets``: of its asyncio and threaded connections, and older ones.

On the socket they are masked by random numbers, packed, and cut into frames. So they are seen when
they are handed to the protocol, which all ways to send one have in common.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .decoding import contents_in
from .raw_bytes import copied
from .sockets import channel_of, note_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channels import Channels

_SOCKET = "_dpaudit_socket"  # attribute of a protocol: the socket that sends its frames
_BEFORE = "_dpaudit_before"  # attribute: what was sent of a message, and how its record begins
_OF_MESSAGES = (0, 1, 2)  # opcodes: the next part of a message, a text, and bytes


def hook_protocol(module: Any, channels: Channels) -> None:
    """See what is handed to the protocol of a connection, of ``websockets.protocol``."""

    def sending(own: Any) -> Callable[..., Any]:
        @functools.wraps(own)
        def send(self: Any, data: Any, fin: bool = True) -> Any:
            _note(self, getattr(self, _SOCKET, None), data, fin, channels)
            return own(self, data, fin)

        return send

    for name in ("send_continuation", "send_text", "send_binary"):
        setattr(module.Protocol, name, sending(getattr(module.Protocol, name)))


def hook_asyncio(module: Any, channels: Channels) -> None:
    """Find the socket of each connection of ``websockets.asyncio.connection``."""
    made = module.Connection.connection_made

    @functools.wraps(made)
    def connection_made(self: Any, transport: Any) -> Any:
        setattr(self.protocol, _SOCKET, transport.get_extra_info("socket"))
        return made(self, transport)

    module.Connection.connection_made = connection_made


def hook_threaded(module: Any, channels: Channels) -> None:
    """Find the socket of each connection of ``websockets.sync.connection``."""
    begin = module.Connection.__init__

    @functools.wraps(begin)
    def begun(self: Any, socket: Any, protocol: Any, *given: Any, **named: Any) -> None:
        setattr(protocol, _SOCKET, socket)
        begin(self, socket, protocol, *given, **named)

    module.Connection.__init__ = begun


def hook_legacy(module: Any, channels: Channels) -> None:
    """See each frame of a message of ``websockets.legacy.protocol``."""
    kind = module.WebSocketCommonProtocol
    write = kind.write_frame_sync

    @functools.wraps(write)
    def written(self: Any, fin: bool, opcode: int, data: Any) -> Any:
        if opcode in _OF_MESSAGES:
            _note(self, self.transport.get_extra_info("socket"), data, fin, channels)
        return write(self, fin, opcode, data)

    kind.write_frame_sync = written


def _note(holder: Any, socket: Any, data: Any, is_end: bool, channels: Channels) -> None:
    """A frame of a message, which is recorded when its last one is sent.

    Args:
        holder: keeps the frames until then.
        socket: None where a program, or trio, sends what the protocol gives out.
    """
    channel = None if socket is None else channel_of(socket)
    if channel is None:
        channels.unseen("messages of websockets without a socket of Python are not recorded")
        return
    begun, before = getattr(holder, _BEFORE, None) or (channels.begun("websocket"), b"")
    whole = before + copied(data)
    setattr(holder, _BEFORE, None if is_end else (begun, whole))
    if is_end:
        note_end(socket, channels)
        channels.posted("", channel, contents_in(whole), begun=begun)
