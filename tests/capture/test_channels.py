"""Messages on pipes and sockets: every one on its link, with the numbers that it holds."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from dpaudit.capture.channels import routed
from dpaudit.capture.process_logs import Process
from dpaudit.capture.run import Options, capture
from dpaudit.recorder.transports.decoding import contents_in

from .sheets import GUESTS, assert_every_message_on_its_channel


@pytest.mark.parametrize(
    "how",
    ["fork", "socket", *(pytest.param(one, marks=pytest.mark.slow) for one in ("http", "spawn"))],
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


def process(name: str, *records: dict[str, Any]) -> Process:
    return Process(Path(name), records)


def posted(channel: str, crc32: int | None = None, operator: str = "pipe") -> dict[str, Any]:
    about = {"kind": "posted", "operator": operator, "channel": channel, "crc32": crc32}
    return {**about, "back": False}


def took(channel: str, crc32: int | None = None) -> dict[str, Any]:
    return {"kind": "took", "channel": channel, "crc32": crc32}


def sent_in(processes: list[Process]) -> list[tuple[int, list[int]]]:
    return [(r["source"], r["destinations"]) for p in processes for r in p.of_kind("sent")]


def test_of_several_readers_a_message_is_for_the_one_that_read_it() -> None:
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
    assert left_out == ["1 messages went to processes that were not recorded: 1 by socket"]
    beside = [process("a", posted("pipe:1"), {"kind": "sent"}), process("b", took("pipe:1"))]
    found, [said] = routed(beside)
    assert len(found[0].of_kind("sent")) == 1
    assert said.startswith("1 messages of pipes, sockets, HTTP or gRPC beside")


def test_ranks_are_the_numbers_of_multiprocessing() -> None:
    def numbered(name: str, *identity: int) -> Process:
        about = {"kind": "process", "identity": list(identity)}
        return process(name, about, posted("pipe:1"), took("pipe:1"))

    found, _ = routed([numbered("main"), numbered("b", 2), numbered("a", 1)])
    assert sent_in(found) == [(2, [0, 1]), (1, [0, 2]), (0, [1, 2])]
