"""Tensors of torch, arrays of NumPy and JAX, and plain numbers, alike.

Each is read as a ``Content``, which is its shape, dtype and bytes, and is made of one again.
No library is imported here: whoever hands over a tensor has imported torch.
"""

from __future__ import annotations

import copy
import sys
from array import array
from typing import TYPE_CHECKING, Any

from .errors import RecorderError
from .log import Content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FLOATS = ("float16", "bfloat16", "float32", "float64")
LARGEST_SCALAR = 8  # bytes, which a float of Python holds
_CODES = {"float64": "d", "float32": "f", "int64": "q"}  # dtype -> typecode


def library(name: str) -> Any:
    """A library that the program has imported; None if it has not."""
    module = sys.modules.get(name)
    return module if getattr(module, "__spec__", None) is not None else None


def is_tensor(value: Any) -> bool:
    torch = library("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_array(value: Any) -> bool:
    """Whether a value is an array of NumPy, of JAX, or of a library like them."""
    numpy = library("numpy")
    if numpy is None or is_tensor(value) or isinstance(value, type):
        return False
    return isinstance(value, (numpy.ndarray, numpy.generic)) or (
        hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape")
    )


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not is_array(value)


def is_one_number(value: Any) -> bool:
    """Whether a value is a number, of Python or a scalar of NumPy: those in lists are either."""
    if is_number(value):
        return True
    numpy = library("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return False
    return str(value.dtype.kind) in "iuf" and value.dtype.itemsize <= LARGEST_SCALAR


def is_whole(number: Any) -> bool:
    """Whether a number, of Python or a scalar of NumPy, is an integer."""
    return number.dtype.kind in "iu" if is_array(number) else isinstance(number, int)


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors, arrays, numbers and bytes of a message, by name, in their order."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _below(str(key), part)
    elif isinstance(value, (list, tuple)) and not is_numbers(value):
        for i, part in enumerate(value):
            yield from _below(str(i), part)
    else:
        yield "0", value


def _below(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list, tuple)) and not is_numbers(value):
        for inner, part in parts_of(value):
            yield f"{name}.{inner}", part
    else:
        yield name, value


def is_numbers(value: Any) -> bool:
    return is_list(value) and all(map(is_one_number, value))


def is_several(value: Any) -> bool:
    """Whether a value is a dict of tensors or the like, or a list of them."""
    return bool(value) if isinstance(value, dict) else is_list(value) and not is_numbers(value)


def is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value)


def with_each(several: Any, made: Callable[[str, Any], Any]) -> Any:
    """The same dict, list or tuple with something else in the place of each part, by its key."""
    if isinstance(several, dict):
        found = copy.copy(several)
        found.update({key: made(str(key), part) for key, part in several.items()})
        return found
    parts = [made(str(i), part) for i, part in enumerate(several)]
    return type(several)(*parts) if hasattr(several, "_fields") else type(several)(parts)


def content_of(value: Any, name: str = "0") -> Content:
    """What a value holds now. Raises RecorderError for what holds no numbers."""
    if is_tensor(value):
        return content_of_tensor(value, name)
    if is_array(value):
        return _content_of_array(library("numpy").asarray(value), name)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return Content(name, (len(data),), "uint8", data)
    numbers = as_numbers(value)
    if numbers is None:
        raise RecorderError(
            "DPA061",
            "dpaudit.tap: expected tensors, arrays, numbers or bytes, or lists and dicts of such; "
            f"got {type(value).__name__}",
        )
    shape = () if is_number(value) else (len(numbers),)
    dtype = next(name for name, code in _CODES.items() if code == numbers.typecode)
    return Content(name, shape, dtype, _own_bytes(numbers))


def _own_bytes(held: Any) -> bytes:
    """Bytes of an array by the unwrapped method, which records nothing."""
    method = type(held).tobytes
    return bytes(getattr(method, "__wrapped__", method)(held))


def as_numbers(value: Any) -> array[Any] | None:
    """A number, or a list of numbers, in the standard library's form; None of something else."""
    if isinstance(value, array):
        return value if value.typecode in _CODES.values() else None
    listed = [value] if is_number(value) else value
    if not (is_numbers(listed) or listed == []):
        return None
    try:
        return array(_code_of(listed), listed)
    except OverflowError:
        return array("d", listed)


def _code_of(numbers: Sequence[Any]) -> str:
    """The code of a list's numbers: single precision only where all are scalars of that dtype."""
    if numbers and all(is_array(one) and str(one.dtype.name) == "float32" for one in numbers):
        return "f"
    return "q" if numbers and all(map(is_whole, numbers)) else "d"


def _content_of_array(given: Any, name: str) -> Content:
    numpy = library("numpy")
    dtype = str(given.dtype.name)
    if given.dtype.kind not in "biufc" and dtype != "bfloat16":
        raise RecorderError("DPA061", f"expected an array of numbers; got one of {given.dtype}")
    if given.dtype.kind in "fc" and given.dtype.itemsize > (16 if given.dtype.kind == "c" else 8):
        given, dtype = given.astype("float64" if given.dtype.kind == "f" else "complex128"), ""
    held = numpy.ascontiguousarray(given, dtype=given.dtype.newbyteorder("="))
    shape = tuple(int(n) for n in given.shape)
    return Content(name, shape, dtype or str(held.dtype.name), _own_bytes(held))


def content_of_tensor(tensor: Any, name: str = "0") -> Content:
    """The same of a tensor, as its own bytes."""
    held = in_memory(tensor.detach())
    return Content(name, tuple(held.shape), dtype_name(held.dtype), bytes(bytes_of(held)))


def dtype_name(dtype: Any) -> str:
    """torch's name of a dtype, such as "float32"."""
    return str(dtype)[len("torch.") :]


def bytes_of(held: Any) -> Any:
    """The memory of a contiguous tensor on the CPU, to be read as long as that is held."""
    import ctypes

    size = held.numel() * held.element_size()
    return (ctypes.c_char * size).from_address(held.data_ptr()) if size else b""


def in_memory(tensor: Any) -> Any:
    """On the CPU, dense, in row-major order and with nothing left to be done lazily.

    Raises:
        RecorderError: it is a nested tensor, which has no shape.
    """
    if getattr(tensor, "is_nested", False):
        raise RecorderError("DPA061", "expected a tensor with one shape; got a nested one")
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.detach().to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    lazy = (tensor.is_conj() or tensor.is_neg()) if hasattr(tensor, "is_neg") else False
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not lazy:
        return tensor
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if lazy:
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def tensor_from(content: Content) -> Any:
    """A tensor of a content, with memory of its own."""
    torch = library("torch")
    dtype = getattr(torch, content.dtype)
    if not len(content.data):
        return torch.empty(content.shape, dtype=dtype)
    return torch.frombuffer(bytearray(content.data), dtype=dtype).reshape(content.shape)


def array_from(content: Content) -> Any:
    """An array of a content, with memory of its own."""
    numpy = library("numpy")
    return numpy.frombuffer(bytearray(content.data), dtype=content.dtype).reshape(content.shape)


def dtype_of(value: Any) -> str:
    """The name of a value's dtype, without reading the value."""
    if is_tensor(value):
        return dtype_name(value.dtype)
    return str(value.dtype.name) if is_array(value) else content_of(value).dtype


def shape_of(value: Any) -> tuple[int, ...]:
    if is_tensor(value) or is_array(value):
        return tuple(int(n) for n in value.shape)
    return content_of(value).shape


def made_of(content: Content, own: Any, scale: float | None = None) -> Any:
    """A content in the place of a value: of its library, device and dtype.

    Args:
        own: the value, of the same shape.
        scale: by which the numbers are multiplied before they get the dtype; None: by nothing.
    """
    if is_tensor(own):
        found = tensor_from(content)
        return (found if scale is None else scale * found).to(own.dtype).to(own.device)
    if is_array(own):
        numpy, found = library("numpy"), array_from(content)
        found = (found if scale is None else scale * found).astype(own.dtype)
        if isinstance(own, numpy.generic):
            return type(own)(found)
        return found if isinstance(own, numpy.ndarray) else _like_own(found, own)
    numbers: Sequence[float] = array(_CODES[content.dtype], bytes(content.data))
    numbers = [one if scale is None else scale * one for one in numbers]
    if isinstance(own, array):
        return array(own.typecode, numbers)
    if is_number(own):
        return numbers[0]
    return type(own)(type(of)(one) if is_array(of) else one for of, one in zip(own, numbers))


def _like_own(found: Any, own: Any) -> Any:
    """An array of JAX of an array of NumPy."""
    jax = library("jax")
    if jax is None or not isinstance(own, jax.Array):
        raise RecorderError("DPA061", f"{type(own).__name__}: noise of such a kind is not replayed")
    return jax.numpy.asarray(found)
