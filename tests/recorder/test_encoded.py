"""Bytes that struct packs, tobytes makes or base64 encodes are known by what they hold."""

import array
import base64
import gzip
import io
import json
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recorder.log import Content
from recorder.transports import decoding, encoders, raw_bytes
from recorder.transports.decoding import contents_in
from recorder.values import content_of

KINDS = (np.ndarray, np.generic, array.array)
OF_STRUCT = ("pack", "pack_into", "unpack", "calcsize", "Struct")
X = np.array([0.5, -1.25, 3.0, 7.75, -0.125, 2.0])


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_bytes, "_latest", raw_bytes.Latest(raw_bytes.KEPT))


@pytest.fixture
def packs() -> Any:
    """A struct module of its own, hooked."""
    own = SimpleNamespace(**{name: getattr(struct, name) for name in OF_STRUCT})
    raw_bytes.hook_packing(own)
    return own


@pytest.fixture
def texts() -> Any:
    """A base64 module of its own, hooked."""
    names = ("b64encode", "standard_b64encode", "urlsafe_b64encode")
    own = SimpleNamespace(**{name: getattr(base64, name) for name in names})
    encoders.hook_base64(own)
    return own


@pytest.fixture
def tobytes() -> Iterator[None]:
    """The methods of NumPy's and Python's arrays, hooked until the test is over."""
    owned = [(kind, "tobytes", kind.__dict__["tobytes"]) for kind in KINDS]
    raw_bytes.hook_numpy(np)
    raw_bytes.hook_arrays(array)
    yield
    for kind, name, own in owned:
        raw_bytes.set_method(kind, name, own)


@pytest.fixture
def told() -> Iterator[list[str]]:
    found: list[str] = []
    decoding.tell_beside(found.append)
    yield found
    decoding._tell.clear()


def values(content: Content) -> list[float]:
    return np.frombuffer(bytes(content.data), content.dtype).tolist()


def test_packed_numbers_and_their_header_are_known(packs: Any) -> None:
    numbers, sender = contents_in(packs.pack("<i6d", 2, *X))
    assert (numbers.dtype, values(numbers)) == ("float64", X.tolist())
    assert (sender.dtype, values(sender)) == ("int64", [2])


def test_packed_numbers_are_recorded_as_they_were_rounded(packs: Any) -> None:
    [third] = contents_in(packs.pack("<6f", *(X / 3)))
    assert third.dtype == "float32"
    assert values(third) == (X / 3).astype(np.float32).tolist()


def test_layers_packed_one_by_one_are_known_by_place(packs: Any, told: list[str]) -> None:
    zeros, some = packs.pack("<4f", *[0.0] * 4), packs.pack("<6f", *X)
    found = contents_in(b"HEAD" + zeros + some + zeros + b"!")
    assert [values(one) for one in found] == [[0.0] * 4, X.tolist(), [0.0] * 4]
    assert len({one.name for one in found}) == 3
    [rest] = told
    assert "5 bytes" in rest


def test_packed_whole_numbers_stay_bytes(packs: Any) -> None:
    [found] = contents_in(packs.pack("<6q", *range(6)))
    assert found.dtype == "uint8"


def test_base64_in_json_is_read_beside_its_numbers(texts: Any, told: list[str]) -> None:
    file = io.BytesIO()
    np.save(file, X)
    text = texts.b64encode(file.getvalue()).decode()
    found = {one.name: one for one in contents_in(json.dumps({"w": text, "loss": 0.5}).encode())}
    assert values(found["0.w"]) == X.tolist()
    assert len(found) == 2
    assert told == []


@pytest.mark.parametrize("name", ["b64encode", "standard_b64encode", "urlsafe_b64encode"])
def test_arrays_are_known_by_their_base64(texts: Any, name: str) -> None:
    held = X.copy()
    text = getattr(texts, name)(held)
    held[:] = 0
    [alone] = contents_in(text + b"\n")
    assert (alone.dtype, values(alone)) == ("float64", X.tolist())


def test_bytes_in_base64_that_hold_no_numbers_are_no_text(texts: Any, told: list[str]) -> None:
    """Else runs would be compared by a text, and no record would seem to move the message."""
    text = texts.b64encode(X.tobytes()).decode()
    found = contents_in(json.dumps({"w": text, "round": 1}).encode())
    assert sorted(one.dtype for one in found) == ["int64", "uint8"]
    assert told == []


def test_a_text_that_only_looks_like_base64_stays_one(texts: Any, told: list[str]) -> None:
    contents_in(json.dumps({"id": "0123456789abcdef0123456789abcdef", "round": 1}).encode())
    assert told == ["0.id: 0123456789abcdef0123456789abcdef"]


def test_numbers_of_a_compiled_struct_are_known(packs: Any) -> None:
    form = packs.Struct("<i6d")
    numbers, sender = contents_in(form.pack(2, *X))
    assert (values(numbers), values(sender)) == (X.tolist(), [2])
    assert isinstance(form, struct.Struct)
    frame = bytearray(80)
    packs.Struct("<5d").pack_into(frame, 8, *X[1:])
    packs.pack_into("<2d", frame, -16, *X[:2])
    assert [values(one) for one in contents_in(bytes(frame))] == [X[1:].tolist(), X[:2].tolist()]


@pytest.mark.parametrize(
    ("held", "dtype"),
    [
        (X, "float64"),
        (X.astype("float32"), "float32"),
        (X.astype(">f8"), "float64"),
        (X.astype("float16"), "float16"),
        (X[0], "float64"),
        (torch.tensor(X, dtype=torch.float32).numpy(), "float32"),
        (array.array("d", X), "float64"),
        (array.array("f", X), "float32"),
        (np.arange(6, dtype=np.int32), "int32"),
        (array.array("i", range(6)), "int64"),
    ],
)
@pytest.mark.usefixtures("tobytes")
def test_arrays_are_known_by_their_own_bytes(held: Any, dtype: str) -> None:
    [found] = contents_in(held.tobytes())
    assert (found.dtype, values(found)) == (dtype, np.ravel(held).tolist())
    [packed] = contents_in(gzip.compress(held.tobytes()))
    assert (packed.dtype, values(packed)) == (dtype, np.ravel(held).tolist())


@pytest.mark.usefixtures("tobytes")
def test_an_array_in_its_own_order_is_flat() -> None:
    held = np.arange(6.0).reshape(2, 3)
    [rows] = contents_in(held.tobytes())
    [columns] = contents_in(held.tobytes("F"))
    assert (rows.shape, values(rows)) == ((2, 3), list(range(6)))
    assert (columns.shape, values(columns)) == ((6,), [0, 3, 1, 4, 2, 5])


@pytest.mark.usefixtures("tobytes")
def test_layers_and_a_loss_are_known_by_place(told: list[str]) -> None:
    """Numbers too short to be looked for are known where they fill what is left."""
    loss = struct.pack("<i", 3) + X.tobytes() + np.float32(0.5).tobytes() + (X[:3] * 2).tobytes()
    found = contents_in(b"GRAD" + loss)
    assert [values(one) for one in found] == [X.tolist(), [0.5], (2 * X[:3]).tolist()]
    [rest] = told
    assert "8 bytes" in rest


@pytest.mark.usefixtures("tobytes")
def test_an_archive_is_read_by_its_own_form(told: list[str]) -> None:
    """NumPy makes it by tobytes, too, beside checksums that differ with the numbers."""
    file = io.BytesIO()
    np.savez(file, w=X, v=2 * X)
    found = contents_in(file.getvalue())
    assert [(one.name, values(one)) for one in found] == [
        ("0.w", X.tolist()),
        ("0.v", (2 * X).tolist()),
    ]
    assert told == []


@pytest.mark.usefixtures("tobytes")
def test_bytes_that_are_mostly_others_stay_bytes(told: list[str]) -> None:
    zeros = np.zeros(2).tobytes()
    [found] = contents_in(b"x" * 2000 + zeros + b"y" * 2000)
    assert found.dtype == "uint8"
    assert told == []


@pytest.mark.usefixtures("tobytes")
def test_arrays_of_bytes_and_truths_stay_bytes() -> None:
    for held in (np.arange(32, dtype=np.uint8), X > 0, array.array("B", range(32))):
        [found] = contents_in(held.tobytes() * 4)
        assert found.dtype == "uint8"


@pytest.mark.parametrize(
    "sent", [X, X.data, memoryview(X).cast("B"), X[1:].data, array.array("d", X)]
)
def test_arrays_that_are_sent_themselves_are_known(sent: Any) -> None:
    [found] = contents_in(raw_bytes.copied(sent))
    assert found.dtype == "float64"
    assert bytes(found.data) == bytes(memoryview(sent))


@pytest.mark.usefixtures("tobytes")
def test_what_is_recorded_is_not_what_a_program_encodes() -> None:
    for held in (X, array.array("d", X)):
        content_of(held)
        [found] = contents_in(bytes(held))
        assert found.dtype == "uint8"


def test_no_more_bytes_are_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_bytes, "MOST_KEPT", 100)
    latest = raw_bytes.Latest(3)
    for i in range(4):
        latest.keep(bytes([i]) * 40, {})
    assert list(latest.within(100)) == [bytes([2]) * 40, bytes([3]) * 40]
    latest.keep(b"large" * 100, {})
    assert list(latest.within(1000)) == [b"large" * 100]
    for i in range(4):
        latest.keep(bytes([i]), i)
    assert [latest.of(bytes([i])) for i in range(4)] == [None, 1, 2, 3]
