"""Messages of the package websockets, as its connections hand them to their protocol."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.recorder.log import Log, Sites
from dpaudit.recorder.transports import web_sockets
from dpaudit.recorder.transports.channels import Channels


class Protocol:
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.frames: list[tuple[Any, bool]] = []

    def send_continuation(self, data: Any, fin: bool) -> None:
        self.frames.append((data, fin))

    send_text = send_binary = send_continuation


class Threaded:
    def __init__(self, socket: Any, protocol: Protocol) -> None:
        self.protocol = protocol


class Later:
    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol

    def connection_made(self, transport: Any) -> None:
        self.transport = transport


class Legacy(Protocol):
    def write_frame_sync(self, fin: bool, opcode: int, data: Any) -> None:
        self.frames.append((data, fin))


KINDS = (Protocol, Threaded, Later, Legacy)


def transport(link: socket.socket) -> Any:
    return SimpleNamespace(get_extra_info={"socket": link}.get)


@pytest.fixture
def link() -> Iterator[socket.socket]:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()) as one:
        yield one


def hooked(folder: Path) -> tuple[type[Protocol], type[Threaded], type[Later], type[Legacy]]:
    """New classes each time, since the hooks replace their methods."""
    channels = Channels(Log(str(folder), 10**6), Sites(str(Path.cwd())))
    found = tuple(type(f"Own{kind.__name__}", (kind,), dict(vars(kind))) for kind in KINDS)
    protocol, threaded, later, legacy = found
    web_sockets.hook_protocol(SimpleNamespace(Protocol=protocol), channels)
    web_sockets.hook_threaded(SimpleNamespace(Connection=threaded), channels)
    web_sockets.hook_asyncio(SimpleNamespace(Connection=later), channels)
    web_sockets.hook_legacy(SimpleNamespace(WebSocketCommonProtocol=legacy), channels)
    return found  # type: ignore[return-value]


def written(folder: Path) -> list[dict[str, Any]]:
    [log] = folder.glob("*.log")
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("how", ["threads", "asyncio", "legacy"])
def test_a_message_is_one_however_many_frames_it_has(
    how: str, link: socket.socket, tmp_path: Path
) -> None:
    protocol, threaded, later, legacy = hooked(tmp_path)
    if how == "legacy":
        own: Any = legacy()
        own.transport = transport(link)
        own.write_frame_sync(False, 1, b"[1.5,")
        own.write_frame_sync(True, 9, b"")  # a ping
        own.write_frame_sync(True, 0, b" 2]")
    else:
        own = protocol()
        threaded(link, own) if how == "threads" else later(own).connection_made(transport(link))
        own.send_text(b"[1.5,", False)
        own.send_continuation(b" 2]", True)
    own.send_binary(b"[3.5]", True) if how != "legacy" else own.write_frame_sync(True, 2, b"[3.5]")
    sent = [one for one in written(tmp_path) if one["kind"] == "posted"]
    assert [one["operator"] for one in sent] == ["websocket"] * 2
    assert [one["tensors"][0][1:3] for one in sent] == [[[2], "float64"], [[1], "float64"]]
    here, there = link.getsockname(), link.getpeername()
    channel = f"{here[0]}:{here[1]}>{there[0]}:{there[1]}"
    assert {one["channel"] for one in sent} == {channel}
    assert b"".join(bytes(data) for data, _ in own.frames) == b"[1.5, 2][3.5]"


def test_a_message_without_a_socket_is_named(tmp_path: Path) -> None:
    protocol, *_ = hooked(tmp_path)
    protocol().send_binary(b"1", True)
    assert "websockets without a socket" in written(tmp_path)[-1]["text"]
