"""Sockets of TCP, as the bytes that a program writes in one call."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from ..log import NOWHERE
from .raw_bytes import copied

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channels import Channels

_FOR_ITSELF = ("asyncio", "multiprocessing", "websockets")


def hook_sockets(socket: Any, channels: Channels) -> None:
    """See every socket of the process connect, accept and send."""
    kind = socket.socket

    def joined(own: Any) -> Callable[..., Any]:
        @functools.wraps(own)
        def connect(self: Any, address: Any) -> Any:
            try:
                return own(self, address)
            finally:  # also where the connection is not there yet
                note_end(self, channels)

        return connect

    accept = kind.accept

    @functools.wraps(accept)
    def accepted(self: Any) -> Any:
        new, address = accept(self)
        note_end(new, channels)
        return new, address

    kind.connect, kind.connect_ex = joined(kind.connect), joined(kind.connect_ex)
    kind.accept = accepted
    hook_sending(kind, channels)


def hook_sending(kind: Any, channels: Channels) -> None:
    """Hook sending by sockets, or by those of ``ssl`` before bytes are encrypted."""

    def sending(own: Any, name: str) -> Callable[..., Any]:
        @functools.wraps(own)
        def send(self: Any, data: Any, *given: Any, **named: Any) -> Any:
            with channels.within() as outermost:
                begun = channels.begun("socket")  # before another thread sends what answers it
                result = own(self, data, *given, **named)
            outermost = outermost and not _is_of_asyncio()
            channel = channel_of(self) if outermost else None
            if channel is None:
                if outermost and not _is_for_itself():
                    channels.unseen("what passes UDP or Unix sockets is not recorded")
                return result
            whole = b"".join(map(copied, data)) if name == "sendmsg" else copied(data)
            sent = whole if result is None else whole[:result]
            if sent and begun["site"] != NOWHERE:
                note_end(self, channels)
                channels.posted_bytes(channel, sent, begun)
            return result

        return send

    def sent_to(own: Any) -> Callable[..., Any]:
        @functools.wraps(own)
        def send(self: Any, *given: Any) -> Any:
            channels.unseen("what passes UDP or Unix sockets is not recorded")
            return own(self, *given)

        return send

    kind.sendto = sent_to(kind.sendto)
    for name in ("send", "sendall", "sendmsg"):
        if hasattr(kind, name):
            setattr(kind, name, sending(getattr(kind, name), name))


def _is_of_asyncio() -> bool:
    """Whether a loop writes what a transport of asyncio was handed, which is recorded there."""
    return str(sys._getframe(2).f_globals.get("__name__")) == "asyncio.selector_events"


def _is_for_itself() -> bool:
    """Whether a library sends to its own process, as where a loop wakes itself up, or hands open
    files to another.
    """
    module = str(sys._getframe(2).f_globals.get("__name__"))
    return module.partition(".")[0] in _FOR_ITSELF


def note_end(socket: Any, channels: Channels) -> None:
    """What comes from the other end is read here."""
    channel = channel_of(socket)
    if channel is not None:
        there, _, here = channel.partition(">")
        channels.took(f"{here}>{there}")


def channel_of(socket: Any) -> str | None:
    """The addresses of both ends, the own one first; None of what is no connection of TCP."""
    try:
        here, there = socket.getsockname(), socket.getpeername()
        is_tcp = socket.type == 1 and isinstance(here, tuple) and isinstance(there, tuple)
    except (OSError, AttributeError):
        return None
    return f"{_said(here)}>{_said(there)}" if is_tcp else None


def _said(address: Any) -> str:
    host, port = address[:2]
    return f"{host[len('::ffff:') :] if host.startswith('::ffff:') else host}:{port}"
