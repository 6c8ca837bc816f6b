"""Tensors, arrays and numbers as bytes, and made of these again."""

import warnings
from array import array
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.recorder.errors import RecorderError
from dpaudit.recorder.values import (
    as_numbers,
    content_of,
    dtype_of,
    is_array,
    is_number,
    made_of,
    parts_of,
    shape_of,
    tensor_from,
)

X = np.array([[1.5, -2.0, 0.25], [0.0, 4.0, -8.0]])
OF_EACH_KIND = {
    "a tensor": (torch.tensor(X), "float64", X),
    "a bfloat16 tensor": (torch.tensor(X).bfloat16(), "bfloat16", X),
    "a transposed tensor": (torch.tensor(X.T.copy()).T, "float64", X),
    "a sparse tensor": (torch.tensor(X).to_sparse(), "float64", X),
    "a conjugated tensor": (torch.tensor([1 + 2j]).conj(), "complex64", [1 - 2j]),
    "an array": (X.astype("float32"), "float32", X),
    "a big-endian array": (X.astype(">f8"), "float64", X),
    "a long double": (X.astype("longdouble"), "float64", X),
    "a bool array": (X > 0, "bool", X > 0),
    "a number of NumPy": (np.float32(1.5), "float32", np.float64(1.5)),
    "a float": (1.5, "float64", np.array(1.5)),
    "an int": (3, "int64", np.array(3)),
    "a large int": (2**70, "float64", np.array(2.0**70)),
    "floats": ([1.5, 2], "float64", np.array([1.5, 2.0])),
    "ints": ((3, -4), "int64", np.array([3, -4])),
    "scalars of NumPy": ([np.float64(1.5), np.int8(2)], "float64", np.array([1.5, 2.0])),
    "scalars of half precision": ([np.float16(1.5)], "float64", np.array([1.5])),
    "scalars of single precision": ([np.float32(1.5)], "float32", np.array([1.5])),
    "ints of NumPy": ([np.int64(3), -4], "int64", np.array([3, -4])),
    "an array of Python": (array("f", [1.5, 2]), "float32", np.array([1.5, 2.0])),
    "bytes": (b"\x01\xff", "uint8", np.array([1, 255])),
}


@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_a_value_is_its_shape_dtype_and_bytes(kind: str) -> None:
    value, dtype, expected = OF_EACH_KIND[kind]
    found = content_of(value, "w")
    assert (found.name, found.shape, found.dtype) == ("w", np.shape(expected), dtype)
    assert np.array_equal(tensor_from(found).to(torch.complex128), expected)
    assert shape_of(value) == np.shape(expected)


NO_NUMBERS = "text", None, {1}, [1, "a"], array("b", [1]), np.array(["a"]), np.array([{}])


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_holds_no_numbers_is_refused(value: Any) -> None:
    with pytest.raises(RecorderError, match="expected "):
        content_of(value)


def test_an_empty_list_holds_no_floats() -> None:
    assert content_of([]) == ("0", (0,), "float64", b"")


def test_parts_of_a_message_are_named_by_their_places() -> None:
    message = {"a": [1, 2], "b": [X, {"c": (3.0,)}], "d": 4}
    named = dict(parts_of(message))
    assert list(named) == ["a", "b.0", "b.1.c", "d"]
    assert named["a"] == [1, 2]
    assert [name for name, _ in parts_of([X, (X, 2)])] == ["0", "1.0", "1.1"]
    assert list(parts_of([1, 2])) == [("0", [1, 2])]
    scalars = list(X[0])
    assert list(parts_of(scalars)) == [("0", scalars)]


def test_numbers_and_arrays_are_told_apart() -> None:
    class Like:
        """As an array of another library; a class of it is none."""

        dtype, shape = "float32", (2,)

        def __array__(self) -> np.ndarray:
            return np.zeros(2)

    lacking = type("Lacking", (), {"dtype": "float32", "shape": (2,)})()
    assert is_array(Like())
    assert not any(map(is_array, (Like, lacking, torch.zeros(2), [1.0], 1.0)))
    assert is_array(np.float64(1))
    assert not is_number(np.float64(1))
    assert is_number(1.0)
    assert as_numbers([1, 2]) == array("q", [1, 2])
    assert as_numbers([1, 2.0]) == array("d", [1, 2])
    assert as_numbers("12") is None


OF_FLOATS = [kind for kind in OF_EACH_KIND if kind not in ("bytes", "a large int")]


@pytest.mark.parametrize("kind", OF_FLOATS)
def test_a_content_is_made_a_value_of_the_same_kind(kind: str) -> None:
    value, _, expected = OF_EACH_KIND[kind]
    made = made_of(content_of(value), value)
    assert type(made) is type(value)
    if isinstance(value, list):
        assert type(made[0]) is type(value[0])
    assert dtype_of(made) == dtype_of(value)
    assert np.array_equal(tensor_from(content_of(made)).to(torch.complex128), expected)
    if isinstance(made, torch.Tensor | np.ndarray):
        assert made is not value
    if "int" not in kind and "bool" not in kind:  # whose noise would be another kind of number
        twice = made_of(content_of(value), value, 2.0)
        assert dtype_of(twice) == dtype_of(value)
        assert np.array_equal(
            tensor_from(content_of(twice)).to(torch.complex128), 2 * np.array(expected)
        )


def test_quantised_numbers_are_those_that_they_stand_for() -> None:
    """Their bytes alone have no scale."""
    numbers = torch.tensor([0.0, 0.5, -0.75])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch will drop them
        quantised = torch.quantize_per_tensor(numbers, 0.25, 3, torch.quint8)
    content = content_of(quantised)
    assert content.dtype == "float32"
    assert tensor_from(content).tolist() == numbers.tolist()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_has_no_shape() -> None:
    with pytest.raises(RecorderError, match="expected a tensor with one shape"):
        content_of(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
