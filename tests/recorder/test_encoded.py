"""Bytes that a program packs by struct, or encodes by base64, are known by what they hold."""

import base64
import io
import json
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recorder.log import Content
from recorder.transports import decoding, encoders
from recorder.transports.decoding import contents_in

X = np.array([0.5, -1.25, 3.0, 7.75, -0.125, 2.0])


@pytest.fixture
def packs() -> Any:
    """A struct module of its own, hooked."""
    own = SimpleNamespace(pack=struct.pack, unpack=struct.unpack)
    encoders.hook_packing(own)
    return own


@pytest.fixture
def texts() -> Any:
    """A base64 module of its own, hooked."""
    names = ("b64encode", "standard_b64encode", "urlsafe_b64encode")
    own = SimpleNamespace(**{name: getattr(base64, name) for name in names})
    encoders.hook_base64(own)
    return own


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
