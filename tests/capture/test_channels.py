"""Messages on pipes and sockets: every one on its link, with the numbers that it holds."""

import gzip
import io
import lzma
import pickle
import socket
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from dpaudit.capture.channels import routed
from dpaudit.capture.process_logs import Process
from dpaudit.capture.process_ranks import ranks_of
from dpaudit.capture.run import Options, capture
from dpaudit.errors import RunError
from dpaudit.recorder.transports import encoders, pipes
from dpaudit.recorder.transports.decoding import contents_in

from .sheets import GUESTS, assert_every_message_on_its_channel


@pytest.mark.parametrize(
    "how",
    [
        *("fork", "socket", "unix"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("http", "spawn", "listener")),
    ],
)
def test_every_message_of_a_channel_is_on_its_link(
    how: str,
    tmp_path: Path,
    numpy_alone: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(GUESTS)
    options = Options(seconds=60, python=numpy_alone)
    recording = capture(["python", "channels.py", how], tmp_path / "out", options)
    assert_every_message_on_its_channel(recording, capfd.readouterr().out)
    assert recording.unseen == ()


def test_a_connection_that_was_reset_still_has_a_name() -> None:
    """Else the recorder would end the program."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    with one:
        written, read = pipes.ends_of(one.fileno())
        assert pipes.ends_of(other.fileno()) == (read, written)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        assert pipes.ends_of(one.fileno())[0].startswith("pipe:")


LATER = """
import multiprocessing as mp
import time
from dpaudit_recorder import tap

class Slow:
    def __reduce__(self):  # in the thread that sends what was put
        time.sleep(0.3)
        return Slow, ()

def putting(queue, done):
    for k in range(2):
        tap.batch(0, [[float(k)]])
        queue.put((Slow(), [k + 0.5, k]))
    done.get()

if __name__ == "__main__":
    fork = mp.get_context("fork")
    queue, done = fork.Queue(), fork.Queue()
    other = fork.Process(target=putting, args=(queue, done))
    other.start()
    got = [queue.get() for _ in range(2)]
    done.put("done")
    other.join()
"""


def test_a_message_is_sent_when_it_is_put_into_a_queue(
    tmp_path: Path, numpy_alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own thread sends it later, when its agent has taken the next batch."""
    monkeypatch.chdir(tmp_path)
    Path("later.py").write_text(LATER)
    options = Options(seconds=60, python=numpy_alone)
    recording = capture(["python", "later.py"], tmp_path / "out", options)
    sent = [event.sequence for event in recording.events if event.source == 0]
    taken = [batch.sequence for batch in recording.batches]
    assert len(sent) == len(taken) == 2
    assert taken[0] < sent[0] < taken[1] < sent[1]


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.array([True, False])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (saved(X), {"0": X}),
        (archive(a=X, b=Y), {"0.a": X, "0.b": Y}),
        (save({"w": torch.from_numpy(X)}), {"0.w": X}),
        (b"\x08\x96\x01\x12\x90" + saved(X) + b"\x1a\x05" + saved(Y), {"0": X, "0.1": Y}),
        (gzip.compress(saved(X)), {"0": X}),
        (lzma.compress(saved(X)), {"0": X}),
        (b'{"w": [1.5, 2], "round": 3, "of": "a"}', {"0.w": np.array([1.5, 2]), "0.round": np.array(3)}),
        (struct.pack("!I", 12) + b'{"w": [1.5]}', {"0.w": np.array([1.5])}),
        (struct.pack("<Q", len(saved(X))) + saved(X), {"0": X}),
        (struct.pack("!I", 13) + b'{"w": [1.5]}', {"0": np.frombuffer(b'\0\0\0\r{"w": [1.5]}', np.uint8)}),
        (b'{"of": "a"}', {"0": np.frombuffer(b'{"of": "a"}', np.uint8)}),
        (b"hello", {"0": np.frombuffer(b"hello", np.uint8)}),
        (b"PK\x03\x04 no archive", {"0": np.frombuffer(b"PK\x03\x04 no archive", np.uint8)}),
        (saved(X)[:-1], {"0": np.frombuffer(saved(X)[:-1], np.uint8)}),
        (saved(np.asfortranarray(X)), {"0": np.frombuffer(saved(np.asfortranarray(X)), np.uint8)}),
        (saved(np.array([{}])), {"0": np.frombuffer(saved(np.array([{}])), np.uint8)}),
        (struct.pack("<Q", 2**40) + b'{"a', {"0": np.frombuffer(struct.pack("<Q", 2**40) + b'{"a', np.uint8)}),
    ],
)  # fmt: skip
def test_bytes_are_read_as_the_arrays_that_they_hold(
    data: bytes, expected: dict[str, np.ndarray]
) -> None:
    """What is no array, or a pickled one, stays bytes."""
    found = {
        one.name: np.frombuffer(one.data, one.dtype).reshape(one.shape) for one in contents_in(data)
    }
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_objects_that_hold_each_other_are_looked_through_once() -> None:
    """As a message of NVFlare that leads to its engine: all paths through it are too many."""
    ring = [SimpleNamespace(others=[]) for _ in range(30)]
    for one in ring:
        one.others = ring
    encoders.keep({"shared": ring, "params": X}, data := b"0123456789abcdef")
    parts, rest = encoders.known_in(b"1" + data + b"2") or ({}, b"")
    assert (list(parts), rest) == (["params"], b"12")
    encoders.keep({"many": list(map(str, range(20_000))), "params": X}, data := b"fedcba9876543210")
    assert encoders.known_in(data) is None


def test_what_was_just_pickled_is_known_by_its_bytes() -> None:
    """As it was then, alone, inside of other bytes, and packed: as p2pfl does it."""
    array = X.copy()
    data = pickle.dumps({"params": [array], "info": {"clients": "a"}})
    encoders.keep({"params": [array], "info": {"clients": "a"}}, data)
    array[:] = 0
    outer = pickle.dumps({"byte_compressor": "zlib", "bytes": zlib.compress(data)})
    encoders.keep({"byte_compressor": "zlib", "bytes": zlib.compress(data)}, outer)
    for sent, name in (
        (data, "0.params.0"),
        (b"12" + data, "0.params.0"),
        (outer, "0.bytes.params.0"),
    ):
        [found] = contents_in(sent)
        assert (found.name, found.dtype, found.shape) == (name, "float32", (2, 3))
        assert bytes(found.data) == X.tobytes()
    [unknown] = contents_in(pickle.dumps([X + 1]))
    assert unknown.dtype == "uint8"


def test_pickled_lists_of_numbers_are_known() -> None:
    """As in most messages by msgpack; as they were when they were packed."""
    weights = [1.5, 2.5]
    encoders.keep({"w": weights, "of": "a"}, data := pickle.dumps({"w": weights, "of": "a"}))
    weights[0] = 0.0
    [found] = contents_in(data)
    assert (found.name, found.dtype, found.shape) == ("0.w", "float64", (2,))
    assert np.frombuffer(found.data).tolist() == [1.5, 2.5]


def test_tables_and_tensors_of_arrow_are_read_as_their_numbers() -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"w": arrow.array([1.5, 2.5]), "of": ["a", "b"], "v": [[1, 2], [3]]})
    stream = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    found = {one.name: one for one in contents_in(stream.getvalue().to_pybytes())}
    assert np.frombuffer(found["0.w"].data).tolist() == [1.5, 2.5]
    assert np.frombuffer(found["0.v"].data, np.int64).tolist() == [1, 2, 3]
    tensor = arrow.BufferOutputStream()
    arrow.ipc.write_tensor(arrow.Tensor.from_numpy(X), tensor)
    [one] = contents_in(tensor.getvalue().to_pybytes())
    assert (one.dtype, one.shape, bytes(one.data)) == ("float32", (2, 3), X.tobytes())


def process(name: str, *records: dict[str, Any]) -> Process:
    return Process(Path(name), records)


def posted(channel: str, crc32: int | None = None, operator: str = "pipe") -> dict[str, Any]:
    about = {"kind": "posted", "operator": operator, "channel": channel, "crc32": crc32}
    return {**about, "back": False}


def took(channel: str, crc32: int | None = None) -> dict[str, Any]:
    return {"kind": "took", "channel": channel, "crc32": crc32}


def sent_in(processes: list[Process]) -> list[tuple[int, list[int]]]:
    return [(r["source"], r["destinations"]) for p in processes for r in p.of_kind("sent")]


def test_a_message_is_for_the_reader_that_read_it() -> None:
    processes = [
        process("a", posted("pipe:1", 7), posted("pipe:1", 8), posted("pipe:1", 7)),
        process("b", took("pipe:1", 8)),
        process("c", took("pipe:1", 7), took("pipe:1", 7)),
    ]
    found, left_out = routed(processes)
    assert sent_in(found) == [(0, [2]), (0, [1]), (0, [2])]
    assert left_out == []


def test_messages_to_nobody_and_beside_the_tap_are_counted() -> None:
    alone = [process("a", posted("1.2.3.4:5>6.7.8.9:80", operator="socket"))]
    found, left_out = routed(alone)
    assert sent_in(found) == []
    assert left_out == ["1 message went to processes that were not recorded: 1 by socket"]
    beside = [process("a", posted("pipe:1"), {"kind": "sent"}), process("b", took("pipe:1"))]
    found, [said] = routed(beside)
    assert len(found[0].of_kind("sent")) == 1
    assert said.startswith(
        "1 message of pipe left out, beside those of torch.distributed, MPI, ZeroMQ"
    )
    both = [{"kind": "batch", "agent": agent} for agent in (0, 1)]  # of a simulation
    found, [said] = routed([process("a", posted("pipe:1"), {"kind": "sent"}, *both)])
    assert said.startswith("1 message of pipe left out, beside")


def shown(channel: str, crc32: int, back: bool, operator: str = "http.POST") -> dict[str, Any]:
    return {**posted(channel, crc32, operator), "back": back}


def test_a_message_that_both_sides_show_counts_once() -> None:
    """The bytes of the connection, below HTTP, do not count either."""
    client = [took("s:80>c:5"), posted("c:5>s:80", operator="socket")]
    client += [shown("c:5>s:80", 1, back=False), shown("c:5>s:80", 2, back=True)]
    server = [took("c:5>s:80"), shown("s:80>c:5", 1, back=True), shown("s:80>c:5", 2, back=False)]
    found, left_out = routed([process("client", *client), process("server", *server)])
    assert [len(p.of_kind("sent")) for p in found] == [1, 1]
    assert sorted(sent_in(found)) == [(0, [1]), (1, [0])]
    assert left_out == []


def test_what_only_the_receiver_shows_is_of_the_other_end() -> None:
    client = process("client", took("s:80>c:500"), shown("c:500>s:80", 2, back=True))
    found, _ = routed([client, process("server", took("c:500>s:80"))])
    assert sent_in(found) == [(0, [1])]  # the server has the lower port, and so the lower rank


def test_a_reply_of_grpc_is_for_the_client_that_was_answered_so() -> None:
    def client(name: str, crc32: int) -> Process:
        return process(name, took("grpc:9>"), shown(">grpc:9", crc32, back=True))

    server = [took(">grpc:9"), *(shown("grpc:9>", crc32, back=False) for crc32 in (7, 6))]
    processes = [process("server", *server), client("a", 6), client("b", 7)]
    found, _ = routed(processes)
    assert sent_in(found) == [(0, [2]), (0, [1])]


def test_the_rank_is_that_of_the_tap_and_then_its_place() -> None:
    def begun(name: str, *more: dict[str, Any], **about: Any) -> Process:
        return process(name, {"kind": "process", "pid": 1, **about}, took("pipe:1"), *more)

    batch = {"kind": "batch", "agent": 4}
    assert ranks_of([begun("a", rank=1), begun("b", batch, rank=0), begun("c")]) == {
        0: 1, 1: 4, 2: 5,
    }  # fmt: skip
    with pytest.raises(RunError, match="one process is agents 3, 4 to the tap"):
        ranks_of([begun("a", batch, {"kind": "batch", "agent": 3})])
    twice = [begun("a", place=[0]), replace_pid(begun("b", place=[0]))]
    with pytest.raises(RunError, match="two processes were started at one time"):
        ranks_of(twice)


def test_a_length_that_is_sent_before_is_no_message() -> None:
    ends = [took("c:5>s:80"), took("s:80>c:5")]
    length = {**posted("c:5>s:80", operator="socket"), "sequence": 3}
    whole = {**posted("c:5>s:80", operator="socket"), "sequence": 4, "framed": 3}
    alone = {**length, "sequence": 5}
    found, _ = routed([process("a", length, whole, alone, ends[1]), process("b", ends[0])])
    assert [record["sequence"] for record in found[0].of_kind("sent")] == [4, 5]


LENGTHS = """
import json
import os
import socket
import struct
from dpaudit_recorder import tap

one = socket.create_server(("127.0.0.1", 0))
if os.fork():
    link, _ = one.accept()
    while link.recv(100):
        pass
    os.wait()
else:
    data = json.dumps({"w": [0.25, 1.5]}).encode()
    with socket.create_connection(one.getsockname()) as other:
        for sent in (struct.pack(">I", len(data)), data, struct.pack("<q", 8), data, bytes(4)):
            other.sendall(sent)
"""


def test_lengths_of_messages_on_sockets_are_found(tmp_path: Path, numpy_alone: Path) -> None:
    """The third is a number that is no length, and the last one is followed by nothing."""
    (tmp_path / "program.py").write_text(LENGTHS)
    command = ["python", str(tmp_path / "program.py")]
    recording = capture(command, tmp_path / "out", Options(seconds=60, python=numpy_alone))
    sizes = [(t.dtype, t.shape) for event in recording.events for t in event.tensors]
    numbers, eight, four = ("float64", (2,)), ("uint8", (8,)), ("uint8", (4,))
    assert sizes == [numbers, eight, numbers, four]


def test_a_server_that_is_started_first_is_no_client() -> None:
    """Its number is a place in an order, and that of a client is given to the tap."""

    def begun(name: str, *more: dict[str, Any], **about: Any) -> Process:
        return process(name, {"kind": "process", "pid": 1, **about}, took("pipe:1"), *more)

    def client(agent: int) -> Process:
        batch = {"kind": "batch", "agent": agent}
        return begun(f"client {agent}", batch, rank=agent + 1, ordered=True)

    server = begun("server", rank=0, ordered=True)
    clients = [client(0), client(1)]
    assert ranks_of([server, *clients]) == {0: 2, 1: 0, 2: 1}
    assert ranks_of([server, client(1)]) == {0: 0, 1: 1}  # nobody else is 0
    launched = begun("server", rank=0)  # as by RANK, which its helpers inherit
    assert ranks_of([launched, *clients]) == {0: 0, 1: 0, 2: 1}
    noise = {"kind": "noise", "rank": 0, "site": "server.py:7"}
    noisy = begun("server", noise, rank=0, ordered=True)
    assert ranks_of([noisy, client(1)]) == {0: 0, 1: 1}
    with pytest.raises(RunError, match="server.py:7 draws noise in a process that has no number"):
        ranks_of([noisy, *clients])


SERVER_FIRST = """
import os
import socket
import subprocess
import sys
from dpaudit_recorder import tap

def serve(port):
    with socket.create_server(("127.0.0.1", port)) as listening:
        print("up", flush=True)
        links = [listening.accept()[0] for _ in range(2)]
        for link in links:
            link.recv(100)

def send(port, agent):
    tap.batch(agent, [[1.0]])
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(b"[0.5, %d]" % agent)

if len(sys.argv) > 1:
    port, agent = map(int, sys.argv[1:])
    serve(port) if agent < 0 else send(port, agent)
else:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, __file__, port]
    server = subprocess.Popen([*command, "-1"], stdout=subprocess.PIPE)
    server.stdout.readline()
    for client in [subprocess.Popen([*command, str(agent)]) for agent in range(2)]:
        client.wait()
    server.wait()
"""


def test_clients_send_to_a_server_that_was_started_first(tmp_path: Path, numpy_alone: Path) -> None:
    (tmp_path / "program.py").write_text(SERVER_FIRST)
    command = ["python", str(tmp_path / "program.py")]
    recording = capture(command, tmp_path / "out", Options(seconds=60, python=numpy_alone))
    assert {(e.source, e.destinations) for e in recording.events} == {(0, (2,)), (1, (2,))}
    assert recording.unseen == ()


def replace_pid(one: Process) -> Process:
    about, *rest = one.records
    return Process(one.path, ({**about, "pid": 2}, *rest))


def test_ranks_are_the_numbers_of_multiprocessing() -> None:
    def numbered(name: str, *identity: int) -> Process:
        about = {"kind": "process", "identity": list(identity)}
        return process(name, about, posted("pipe:1"), took("pipe:1"))

    found, _ = routed([numbered("main"), numbered("b", 2), numbered("a", 1)])
    assert sent_in(found) == [(2, [0, 1]), (1, [0, 2]), (0, [1, 2])]
