"""Calls of gRPC: what the serializers of clients and servers make, and what they are given.

Unary and streaming calls alike pass the serializers, one message at a time. The channel of a client
is ">grpc:PORT", and that of its server "grpc:PORT>": a server does not know the port of a client,
whose receipts say what it was answered.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING, Any

from ..log import NOWHERE
from .decoding import contents_in, tell_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channels import Channels

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
SERIALIZERS = ("request_deserializer", "response_serializer")


def hook_grpc(grpc: Any, channels: Channels) -> None:
    """Each channel and each server that a program makes."""

    def intercept(interceptor: Any, continuation: Any, details: Any) -> Any:
        return interceptor.wrapped(continuation(details), details)

    _hook(grpc, _interceptors(grpc.ServerInterceptor, intercept), channels)


def hook_grpc_aio(aio: Any, channels: Channels) -> None:
    """The same of ``grpc.aio``."""

    async def intercept(interceptor: Any, continuation: Any, details: Any) -> Any:
        return interceptor.wrapped(await continuation(details), details)

    _hook(aio, _interceptors(aio.ServerInterceptor, intercept), channels)


def _interceptors(base: type, intercept: Callable[..., Any]) -> type:
    return type("Recording", (Server, base), {"intercept_service": intercept})


class Server:
    """Sees the calls of one server."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self.channel: str | None = None  # there where it listens first

    def wrapped(self, handler: Any, details: Any) -> Any:
        """A handler whose serializers are seen; the line of a reply is that of its function."""
        if handler is None or not hasattr(handler, "_replace"):
            return handler
        function = next((f for f in (getattr(handler, kind) for kind in KINDS) if f), None)
        site, method = self._channels.site_of(function), _text(details.method)
        tell_head(f"{name}: {value}" for name, value in details.invocation_metadata or ())
        read, write = (getattr(handler, name) for name in SERIALIZERS)

        def deserialized(data: Any) -> Any:
            self._note(f"grpc.{method}", bytes(data), None, True)
            return data if read is None else read(data)

        def serialized(message: Any) -> Any:
            data = message if write is None else write(message)
            self._note(f"grpc.{method}.reply", bytes(data), site, False)
            return data

        return handler._replace(request_deserializer=deserialized, response_serializer=serialized)

    def _note(self, operator: str, data: bytes, site: str | None, back: bool) -> None:
        if self.channel is not None:
            crc32, contents = zlib.crc32(data), contents_in(data)
            self._channels.posted(operator, f"{self.channel}>", contents, site, crc32, back)


def _hook(grpc: Any, interceptors: type, channels: Channels) -> None:
    for name in ("insecure_channel", "secure_channel"):
        setattr(grpc, name, _opening(getattr(grpc, name), channels))
    serve = grpc.server

    @functools.wraps(serve)
    def server(*given: Any, **named: Any) -> Any:
        seen = interceptors(channels)
        if len(given) > 2:
            given = (*given[:2], (*(given[2] or ()), seen), *given[3:])
        else:
            named["interceptors"] = (*(named.get("interceptors") or ()), seen)
        made = serve(*given, **named)
        for name in ("add_insecure_port", "add_secure_port"):
            setattr(made, name, _listening(getattr(made, name), seen, channels))
        return made

    grpc.server = server


def _listening(own: Any, seen: Any, channels: Channels) -> Callable[..., Any]:
    @functools.wraps(own)
    def listening(address: str, *given: Any, **named: Any) -> Any:
        port = own(address, *given, **named)
        channel = channel_of(address if "unix" in address else f":{port}")
        channels.took(f">{channel}")
        seen.channel = seen.channel or channel
        return port

    return listening


def _opening(own: Any, channels: Channels) -> Callable[..., Any]:
    @functools.wraps(own)
    def opened(target: str, *given: Any, **named: Any) -> Any:
        made, channel = own(target, *given, **named), channel_of(target)
        channels.took(f"{channel}>")
        for kind in KINDS:
            setattr(made, kind, _calling(getattr(made, kind), f">{channel}", channels))
        return made

    return opened


def _calling(own: Any, channel: str, channels: Channels) -> Callable[..., Any]:
    @functools.wraps(own)
    def callable_for(
        method: Any,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        *given: Any,
        **named: Any,
    ) -> Any:
        said = _text(method)
        line = [said]  # line of the last call, for threads of gRPC that ask for what is sent

        def note(operator: str, data: bytes, back: bool) -> None:
            site = channels.site()
            line[0] = line[0] if site == NOWHERE else site
            contents, crc32 = contents_in(data), zlib.crc32(data)
            channels.posted(operator, channel, contents, line[0], crc32, back)

        def serialized(message: Any) -> Any:
            data = message if request_serializer is None else request_serializer(message)
            note(f"grpc.{said}", bytes(data), False)
            return data

        def deserialized(data: Any) -> Any:
            note(f"grpc.{said}.reply", bytes(data), True)
            return data if response_deserializer is None else response_deserializer(data)

        return own(method, serialized, deserialized, *given, **named)

    return callable_for


def _text(method: Any) -> str:
    return method.decode() if isinstance(method, bytes) else str(method)


def channel_of(target: str) -> str:
    """Both ends have the port of an address in common, or the path of a socket."""
    end = target.rpartition(":")[2]
    return f"grpc:{end if end.isdigit() else target}"
