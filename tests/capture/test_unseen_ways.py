"""Ways between processes that are not recorded: each is named, so that nothing is supported."""

import io
import pickle
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dpaudit.capture.process_logs import unseen_by
from dpaudit.capture.run import Options, capture
from dpaudit.recorder.transports import decoding, encoders

BEGINS = """
import json, multiprocessing, os, socket, subprocess, sys, time
from dpaudit_recorder import tap
tap.batch(0, [[1.0]])
tap.send(0, 1, "w", 1.0)
"""
READS = "import sys; print(open(sys.argv[1]).read())"
WAYS = {
    "shared memory": (
        """
from multiprocessing.shared_memory import SharedMemory
one = SharedMemory(create=True, size=8)
one.close()
one.unlink()
""",
        "multiprocessing.shared_memory is not",
    ),
    "a shared value": ("multiprocessing.Value('d', 1.0)", "Value and Array of multiprocessing"),
    "a map": ("import mmap; mmap.mmap(-1, 100)", "memory that mmap shares"),
    "a pipe": ("os.pipe()", "os.pipe is not"),
    "a database": ("import sqlite3; sqlite3.connect('one.db').close()", "database of sqlite3"),
    "a datagram": (
        """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.sendto(b"x", ("127.0.0.1", 9))
""",
        "UDP or Unix sockets",
    ),
    "a pair of sockets": (
        "one, other = socket.socketpair(); one.sendall(b'x')",
        "UDP or Unix sockets",
    ),
    "a file of a pair of sockets": (
        "one, other = socket.socketpair(); print('x', file=one.makefile('w'), flush=True)",
        "UDP or Unix sockets",
    ),
    "the input of a process": (
        "subprocess.run([sys.executable, '-c', 'input()'], input=b'x\\n')",
        "the input of a process",
    ),
    "a file": (
        f"""
time.sleep(0.05)
open("loss.txt", "w").write("1")
subprocess.run([sys.executable, "-c", {READS!r}, "loss.txt"])
""",
        "reads is not recorded: loss.txt",
    ),
}
SEEN = {
    "its own file": "open('x', 'w').write('1'); open('x').read()",
    "an old file": f"subprocess.run([sys.executable, '-c', {READS!r}, {__file__!r}])",
    "a barrier": "multiprocessing.Barrier(2); multiprocessing.Event(); multiprocessing.Queue()",
    "a loop": "import asyncio; asyncio.run(asyncio.sleep(0.01))",
    "what a process prints": """
with subprocess.Popen([sys.executable, "-c", "print(1)"], stdout=-1, text=True) as one:
    assert one.stdout.readline() == "1\\n"
assert subprocess.check_output([sys.executable, "-c", "print(2)"]) == b"2\\n"
assert subprocess.run(["echo", "3"], stdout=-1, stderr=-1).stdout == b"3\\n"
""",
}


PICKLED = pickle.dumps([np.ones(2)])


def npy() -> bytes:
    np.save(file := io.BytesIO(), np.ones(2))
    return file.getvalue()


def archive() -> bytes:
    np.savez(file := io.BytesIO(), w=np.ones(2))
    return file.getvalue()


def unseen(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(folder)
    command = [sys.executable, "-c", BEGINS + code]
    return capture(command, folder / "out", Options(seconds=60)).unseen


@pytest.mark.parametrize(("code", "said"), WAYS.values(), ids=WAYS)
def test_a_way_that_is_not_recorded_is_named(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [line] = unseen(code, tmp_path, monkeypatch)
    assert said in line


@pytest.mark.parametrize("code", SEEN.values(), ids=SEEN)
def test_what_is_seen_or_tells_nothing_is_not_named(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unseen(code, tmp_path, monkeypatch) == ()


def test_files_are_one_line_however_many_there_are() -> None:
    texts = [
        f"a file that the program writes and reads is not recorded: {i}.npy" for i in (0, 1, 2)
    ]
    notes = [{"text": text} for text in ("os.pipe", *texts, texts[0])]
    process: Any = SimpleNamespace(of_kind=lambda kind: notes)
    files = "files that the program writes and reads are not recorded: 0.npy and 2 more"
    assert unseen_by([process, process]) == ("os.pipe", files)


def test_texts_and_bytes_beside_numbers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(decoding, "_tell", [told.append])
    file = io.BytesIO()
    np.save(file, np.ones(2))
    [array] = decoding.contents_in(file.getvalue())
    assert (array.shape, told) == ((2,), [])
    [array] = decoding.contents_in(b"head" + file.getvalue() + b"1.5")
    assert (array.shape, told.pop()) == ((2,), f"0: 7 bytes {zlib.crc32(b'head1.5'):08x}")
    [number] = decoding.numbers_in({"w": 1.0, "note": "loss 0.3", "nothing": None})
    assert (number.name, told) == ("w", ["note: loss 0.3", "nothing: None"])
    assert decoding.numbers_in({"note": "loss 0.3", "of": object()}) == []
    assert len(told) == 2


@pytest.mark.parametrize(
    ("data", "rest"),
    [
        (zlib.compress(npy()) + b"1.5", b"1.5"),
        (archive() + b"1.5", b"1.5"),
        (save({"w": np.ones(2)}) + b"1.5", b"1.5"),
        (b"1." + PICKLED + b"5", b"1.5"),
        (len(PICKLED).to_bytes(4, "big") + PICKLED, b""),
    ],
    ids=["zlib", "zip", "safetensors", "pickle", "length"],
)
def test_bytes_around_what_is_read_are_told(
    data: bytes, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the length of what follows."""
    told: list[str] = []
    monkeypatch.setattr(decoding, "_tell", [told.append])
    encoders.keep([np.ones(2)], PICKLED)
    [array] = decoding.contents_in(data)
    assert array.shape == (2,)
    assert told == ([f"0: {len(rest)} bytes {zlib.crc32(rest):08x}"] if rest else [])
