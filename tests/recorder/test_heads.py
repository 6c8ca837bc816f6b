"""Addresses and headers of HTTP are texts beside the numbers of its bodies."""

import subprocess
import sys
from collections import namedtuple
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from dpaudit.recorder.transports import decoding
from dpaudit.recorder.transports.grpc_calls import Server

TELLS = """
import asyncio, http.client, http.server, sys, threading, urllib.request
from unittest.mock import MagicMock
from dpaudit.recorder.transports import (
    aiohttp_streams, decoding, http_client, http_server, httpx_client
)

told = []
decoding.tell_beside(told.append)
http_server.hook_http(http.server, MagicMock())

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *about):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("X-Round", "3")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url, headers = f"http://127.0.0.1:{server.server_port}/model?loss=0.25", {"X-Norm": "1.5"}

def ask_http():
    http_client.hook_http(http.client, MagicMock())
    for _ in range(2):
        urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read()

def ask_httpx():
    import httpx
    httpx_client.hook_httpx(httpx, MagicMock())
    httpx.get(url, headers=headers).read()

def ask_aiohttp():
    import aiohttp
    aiohttp_streams.hook_writer(aiohttp.http_writer, MagicMock())
    async def main():
        async with aiohttp.ClientSession() as session:
            await (await session.get(url, headers=headers)).read()
    asyncio.run(main())

locals()["ask_" + sys.argv[1]]()
assert sum(line.startswith("GET ") and "/model?loss=0.25" in line for line in told) == 1, told
assert [line for line in told if line.lower() == "x-norm: 1.5"], told
assert "X-Round: 3" in told
varying = ("date:", "host:", "content-length:")
assert not [line for line in told if line.lower().startswith(varying)], told
"""


@pytest.mark.parametrize("library", ["http", "httpx", "aiohttp"])
def test_heads_of_http_are_told_but_for_what_varies(library: str) -> None:
    pytest.importorskip(library)  # users have httpx and aiohttp, dpaudit needs neither
    subprocess.run([sys.executable, "-c", TELLS, library], check=True)


def test_metadata_of_grpc_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(decoding, "_tell", [told.append])
    names = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    serializers = ("request_deserializer", "response_serializer")
    kind = namedtuple("kind", (*names, *serializers))  # type: ignore[misc]  # as grpc's handlers
    handler = kind(print, *[None] * 5)
    details = SimpleNamespace(method="/a/b", invocation_metadata=[("loss", "0.25")])
    Server(MagicMock()).wrapped(handler, details)
    assert told == ["loss: 0.25"]
