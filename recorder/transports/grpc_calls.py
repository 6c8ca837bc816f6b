"""Calls of gRPC, seen at the client: what its serializers make, and what it is answered with.

Unary and streaming calls alike pass the serializers, one message at a time.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..log import NOWHERE
from .decoding import contents_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from .channels import Channels

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def hook_grpc(grpc: Any, channels: Channels) -> None:
    """Of ``grpc`` or ``grpc.aio``: each channel and each server that a program makes."""
    for name in ("insecure_channel", "secure_channel"):
        setattr(grpc, name, _opening(getattr(grpc, name), channels))
    serve = grpc.server

    @functools.wraps(serve)
    def server(*given: Any, **named: Any) -> Any:
        made = serve(*given, **named)
        for name in ("add_insecure_port", "add_secure_port"):
            setattr(made, name, _listening(getattr(made, name), channels))
        return made

    grpc.server = server


def _opening(own: Any, channels: Channels) -> Callable[..., Any]:
    @functools.wraps(own)
    def opened(target: str, *given: Any, **named: Any) -> Any:
        made, channel = own(target, *given, **named), channel_of(target)
        for kind in KINDS:
            setattr(made, kind, _calling(getattr(made, kind), channel, channels))
        return made

    return opened


def _listening(own: Any, channels: Channels) -> Callable[..., Any]:
    @functools.wraps(own)
    def listening(address: str, *given: Any, **named: Any) -> Any:
        port = own(address, *given, **named)
        channels.took(channel_of(address if "unix" in address else f":{port}"))
        return port

    return listening


def _calling(own: Any, channel: str, channels: Channels) -> Callable[..., Any]:
    @functools.wraps(own)
    def callable_for(
        method: Any,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        *given: Any,
        **named: Any,
    ) -> Any:
        said = method.decode() if isinstance(method, bytes) else str(method)
        line = [said]  # of the last call, where a thread of gRPC asks for what is sent

        def note(operator: str, data: bytes, back: bool) -> None:
            site = channels.site()
            line[0] = line[0] if site == NOWHERE else site
            channels.posted(operator, channel, contents_in(data), line[0], back=back)

        def serialized(message: Any) -> Any:
            data = message if request_serializer is None else request_serializer(message)
            note(f"grpc.{said}", bytes(data), False)
            return data

        def deserialized(data: Any) -> Any:
            note(f"grpc.{said}.reply", bytes(data), True)
            return data if response_deserializer is None else response_deserializer(data)

        return own(method, serialized, deserialized, *given, **named)

    return callable_for


def channel_of(target: str) -> str:
    """Both ends have the port of an address in common, or the path of a socket."""
    end = target.rpartition(":")[2]
    return f"grpc:{end if end.isdigit() else target}"
