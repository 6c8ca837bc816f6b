"""What another process is asked for, and what its answers come to: with answers that are given."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism import elsewhere
from dpaudit.mechanism.elsewhere import FunctionElsewhere
from dpaudit.mechanism.function import FunctionError, JaxDraws
from dpaudit.recorder.log import Content


def options(**asked: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:b", **{"shape": (2,), **asked}})


class Answering:
    """In the place of another process."""

    takes_generator = False

    def __init__(self, parts: Any = (((2,), "float64"),), calls: int | None = None, **more: Any):
        self.parts, self.calls, self.more = parts, calls, more
        self.headers: list[dict[str, Any]] = []
        self.contents: list[list[str]] = []

    def asked(self, header: dict[str, Any], contents: Any) -> Any:
        self.headers.append(header)
        self.contents.append([one.name for one in contents])
        each = [np.arange(1.0, 1 + np.prod(shape)).astype(dtype) for shape, dtype in self.parts]
        calls = header["turns"] * header["times"] * len(contents)
        calls = calls if self.calls is None else self.calls
        data = b"".join(one.tobytes() for one in each) * calls
        groups = [{"parts": [[list(s), d] for s, d in self.parts], "calls": calls}]
        answer = {"kind": "returned", "groups": groups, **self.more}
        return SimpleNamespace(header=answer, contents=[Content("", (len(data),), "uint8", data)])


VALUE, OTHER = (np.array([3.0, 4.0]),), (np.array([5.0, 6.0]),)


def called(process: Answering, **asked: Any) -> FunctionElsewhere:
    return FunctionElsewhere(process, options(**asked))  # type: ignore[arg-type]


def test_one_call_is_watched() -> None:
    process = Answering(seconds=0.25)
    found = called(process)
    assert found.tried(VALUE) == 0.25
    process.more["from"] = ["torch", 3]
    assert found.drawn_from(VALUE, 9) == {"torch", "3"}
    process.more["from"] = "torch"
    assert found.drawn_from(VALUE, 9) == set()
    common = {"turns": 1, "times": 1, "seeds": None, "watch": True, "draws": False}
    for header, seed in zip(process.headers, (0, 9, 9), strict=True):
        assert {key: header[key] for key in (*common, "seed")} == {**common, "seed": seed}
        assert (header["several"], header["returns_several"], header["library"]) == (
            *(False, False, "numpy"),
        )
    assert found.seeded(VALUE, 4).tolist() == [1.0, 2.0]
    assert process.headers[-1]["seed"] is None


@pytest.mark.parametrize(
    ("numbers", "most", "times", "turns"),
    [
        (12, 2000, 1, [3, 2]),  # 2 values of 2 numbers
        (13, 2000, 1, [3, 2]),
        (20, 2000, 1, [5]),
        (23, 2000, 2, [2, 2, 1]),
        (3, 2000, 1, [1] * 5),  # one at least
        (10**6, 3, 1, [3, 2]),
        (10**6, 9, 4, [2, 2, 1]),
        (10**6, 3, 4, [1] * 5),
    ],
)
def test_turns_are_asked_for_by_their_numbers(monkeypatch, numbers, most, times, turns) -> None:
    monkeypatch.setattr(elsewhere, "NUMBERS", numbers)
    monkeypatch.setattr(elsewhere, "MOST_CALLS", most)
    process = Answering()
    found = called(process).in_turn([VALUE, OTHER], 5, times=times)
    assert found.tolist() == [[[1.0, 2.0] * times] * 2] * 5
    assert [header["turns"] for header in process.headers] == turns
    assert {header["times"] for header in process.headers} == {times}
    assert process.contents[0] == ["0.0", "1.0"]


def test_several_tensors_are_sent_and_returned() -> None:
    process = Answering((((1,), "float64"), ((2,), "float64")), calls=1)
    found = called(process, shape=((1,), (2,)))
    value = np.zeros(1), np.zeros(2)
    assert found(value).tolist() == [1.0, 1.0, 2.0]
    assert process.contents == [["0.0", "0.1"]]
    assert process.headers[0]["several"] is process.headers[0]["returns_several"] is True


def test_an_answer_that_is_none_is_refused() -> None:
    for parts in ((((3,), "float64"),), (((2,), "float32"),)):
        with pytest.raises(FunctionError, match="returned"):
            called(Answering(parts))(VALUE)
    with pytest.raises(FunctionError, match="answered badly"):
        called(Answering((((2,), "none"),)[:0]))(VALUE)
    for kind, said in (
        ({"kind": "raised", "value": 1, "said": "why"}, r"raised why; called with .* 5 to 6"),
        ({"kind": "changed", "value": 0}, "changes its input in place; called with .* 3 to 4"),
        ({"kind": "odd", "said": "a list"}, "returned a list; expected an array"),
    ):
        with pytest.raises(FunctionError, match=said):
            called(Answering(**kind)).in_turn([VALUE, OTHER], 1)  # type: ignore[arg-type]


def drawn(keys: Any, calls: int = 2, family: str = "laplace", parts: Any = None) -> Any:
    more = {"kind": "drawn", "family": family, "keys": keys}
    process = Answering(parts or (((1,), "float64"), ((2,), "float64")), calls, **more)
    found = called(process).drawn_by_jax(VALUE, [7, 8])
    [header] = process.headers
    assert (header["seeds"], header["turns"], header["times"]) == ([7, 8], 1, 1)
    assert (header["draws"], header["watch"]) == (True, False)
    return found


def test_draws_by_keys_are_those_of_each_call() -> None:
    found = drawn([["a", "b"], ["c", 4]])
    assert found == JaxDraws("laplace", found.numbers, frozenset({"a", "b", "c", "4"}))
    assert found.numbers.tolist() == [[1.0, 1.0, 2.0]] * 2
    assert drawn([["a", "b"], ["c", "a"]]) is None
    assert drawn([["a"], ["b"]], family="uniform") is None
    with pytest.raises(FunctionError, match="answered badly"):
        drawn([1, 2])


def test_keys_that_calls_share_are_none() -> None:
    one, two = np.zeros(3), np.zeros(2)
    assert JaxDraws.of("gaussian", [one, two], [["a"], ["b"]]) is None
    assert JaxDraws.of("gaussian", [one, one], [["a", "a"], ["b"]]) is None
    found = JaxDraws.of("gaussian", [one, one + 1], [["a"], ["b"]])
    assert found is not None
    assert (found.family, found.numbers.tolist()) == ("gaussian", [[0, 0, 0], [1, 1, 1]])
    assert found.keys == {"a", "b"}
