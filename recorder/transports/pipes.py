"""Pipes, queues and listeners of ``multiprocessing``.

What is sent is read as the object that the program hands over, arrays and tensors with their own
bytes. An object that holds no numbers is recorded as it is pickled, and never unpickled.
"""

from __future__ import annotations

import functools
import os
import socket
import stat
import sys
import threading
import zlib
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from ..log import NOWHERE, Content
from . import sockets
from .decoding import contents_in, numbers_in
from .raw_bytes import copied

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channels import Channels

_sending = threading.local()  # the object that this thread hands over
# By channel: what was put into a queue, whose own thread sends it, and how its record begins.
_waiting: defaultdict[str, deque[Any]] = defaultdict(deque)


def hook_connections(connection: Any, channels: Channels) -> None:
    """See every ``Connection`` send and receive."""
    kind = connection.Connection
    send, send_bytes, receive = kind.send, kind._send_bytes, kind._recv_bytes
    pipe = connection.Pipe

    def sent(self: Any, value: Any) -> Any:
        if _is_of_manager(sys._getframe(1)):
            channels.unseen("what passes a manager of multiprocessing is not recorded")
            return _unwatched(send)(self, value)
        _sending.value = (value,)
        try:
            return send(self, value)
        finally:
            _sending.value = None

    def sent_bytes(self: Any, data: Any) -> Any:
        if getattr(_sending, "is_unwatched", False):
            return send_bytes(self, data)
        channel, _ = ends_of(self.fileno())
        held, site, begun = getattr(_sending, "value", None), channels.site(), None
        if held is None and site == NOWHERE and _waiting[channel]:
            *held, begun = _waiting[channel].popleft()
        whole = copied(data)
        if held is None:
            contents = contents_in(whole)
        else:
            contents = numbers_in(held[0]) or [Content("0", (len(whole),), "uint8", whole)]
        channels.posted("pipe", channel, contents, site, zlib.crc32(whole), begun=begun)
        with channels.within():
            return send_bytes(self, data)

    def received(self: Any, *given: Any, **named: Any) -> Any:
        with channels.within():
            result = receive(self, *given, **named)
        of_manager = _is_of_manager(sys._getframe(2))  # behind recv()
        if not (of_manager or getattr(_sending, "is_unwatched", False)):
            channels.took(ends_of(self.fileno())[1], result.getbuffer())
        return result

    @functools.wraps(pipe)
    def piped(duplex: bool = True) -> Any:
        ends = pipe(duplex)
        if duplex:
            channels.paired(*(ends_of(end.fileno())[0] for end in ends))
        return ends

    kind.send, kind._send_bytes, kind._recv_bytes = sent, sent_bytes, received
    connection.Pipe = piped
    for name in ("deliver_challenge", "answer_challenge"):  # both ends prove their key by these
        setattr(connection, name, _unwatched(getattr(connection, name)))


def _unwatched(own: Any) -> Callable[..., Any]:
    """The same, but nothing that it sends or receives is a message."""

    @functools.wraps(own)
    def call(*given: Any, **named: Any) -> Any:
        _sending.is_unwatched = True
        try:
            return own(*given, **named)
        finally:
            _sending.is_unwatched = False

    return call


def hook_queues(queues: Any, channels: Channels) -> None:
    """Keep when, and at which lines, objects are put into queues, whose own threads send them."""

    def putting(own: Any, is_later: bool) -> Callable[..., Any]:
        @functools.wraps(own)
        def put(self: Any, value: Any, *given: Any, **named: Any) -> Any:
            if not is_later:
                _sending.value = (value,)
                try:
                    return own(self, value, *given, **named)
                finally:
                    _sending.value = None
            waiting = _waiting[ends_of(self._writer.fileno())[0]]
            waiting.append((value, channels.begun("pipe")))
            try:
                return own(self, value, *given, **named)
            except BaseException:
                waiting.pop()
                raise

        return put

    failed = queues.Queue._on_queue_feeder_error

    def dropped(error: Any, value: Any) -> Any:
        """An object that could not be pickled is never sent, and those after it are not it."""
        for waiting in _waiting.values():
            kept = [one for one in waiting if one[0] is not value]
            waiting.clear()
            waiting.extend(kept)
        return failed(error, value)

    queues.Queue._on_queue_feeder_error = staticmethod(dropped)
    os.register_at_fork(after_in_child=_waiting.clear)  # the parent's thread sends these
    for kind in (queues.Queue, queues.JoinableQueue):
        kind.put = putting(kind.put, True)
    queues.SimpleQueue.put = putting(queues.SimpleQueue.put, False)


def _is_of_manager(caller: Any) -> bool:
    """Whether a manager serves, or is asked: most of that is no message of the program's."""
    return str(caller.f_globals.get("__name__")) == "multiprocessing.managers"


def ends_of(file: int) -> tuple[str, str]:
    """The channel that is written to and the one that is read from.

    Both ends of a pipe have one number, in whatever process, and both of a connection know their
    addresses. One of a Unix socket is that of the listener; the other has the process's number.
    """
    found = os.fstat(file)
    both = f"pipe:{found.st_ino}"
    if not stat.S_ISSOCK(found.st_mode):
        return both, both
    link = socket.socket(fileno=file)
    try:
        channel = sockets.channel_of(link) or _of_unix(link)
    finally:
        link.detach()  # the file stays open
    if channel is None:
        return both, both
    here, _, there = channel.partition(">")
    return channel, f"{there}>{here}"


def _of_unix(link: Any) -> str | None:
    """Name a connection as one of TCP; None for ends of a pipe, or if the other end has gone."""
    try:
        here, there = link.getsockname(), link.getpeername()
    except OSError:
        return None
    if there:
        return f"pipe:{there!r} {os.getpid()}>pipe:{there!r}"
    if not here or not hasattr(socket, "SO_PEERCRED"):
        return None
    client = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)  # process id of the client
    return f"pipe:{here!r}>pipe:{here!r} {int.from_bytes(client, sys.byteorder)}"
