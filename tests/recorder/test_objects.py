"""Objects that torch.distributed sends as bytes, alone and filled up, or one after the other."""

import pickle

import numpy as np
import pytest

from dpaudit.recorder.transports import encoders
from dpaudit.recorder.transports.decoding import collective_in

ONE, OTHER, TEXT, UNKNOWN = ({"x": np.ones(2)}, {"x": np.zeros(3)}, {"x": "no"}, {"y": np.ones(4)})


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [(pickle.dumps(value), dict(value)) for value in (ONE, OTHER, TEXT)]
    monkeypatch.setattr(encoders, "_collective", known)


@pytest.mark.parametrize(
    ("objects", "is_filled", "found"),
    [
        ((ONE,), True, ["0.x"]),
        ((ONE, OTHER), True, ["0.x"]),  # which was in the memory behind it
        ((ONE, UNKNOWN), True, ["0.x"]),
        ((UNKNOWN, ONE), True, []),
        ((TEXT, ONE), True, []),
        ((ONE, OTHER), False, ["0.x", "0.1.x"]),
        ((TEXT, OTHER), False, ["0.1.x"]),
        ((ONE, UNKNOWN), False, []),
        ((UNKNOWN, ONE), False, []),
    ],
)
def test_numbers_of_known_objects_are_found(
    objects: tuple[object, ...], is_filled: bool, found: list[str]
) -> None:
    data = b"".join(map(pickle.dumps, objects))
    assert [content.name for content in collective_in(data, "0", is_filled)] == found


@pytest.mark.parametrize("behind", [b"\0\0", b"\x80\x04", b"K."])
def test_what_fills_an_object_up_is_left_out(behind: bytes) -> None:
    (content,) = collective_in(pickle.dumps(ONE) + behind, "0", is_filled=True)
    assert content.shape == (2,)
