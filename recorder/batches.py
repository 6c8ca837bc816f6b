"""The records of a batch in any form: how many, their digests, and one of them changed."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

from .errors import RecorderError
from .log import Content
from .values import (
    content_of,
    dtype_of,
    is_array,
    is_numbers,
    is_one_number,
    is_tensor,
    is_whole,
    library,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTORS = {"scaled": 10.0, "negated": -10.0, "zeroed": 0.0}  # times a record's inputs
OTHER_LABEL = "other-label"
PUT_LAST = "put-last"  # a record comes after all others of its batch
LABELS = frozenset((-1.0, 0.0, 1.0))  # floating point labels
LARGEST = 1e6  # factor, above which a record that its dtype does not hold stays as it is
_EXPECTED = (
    "tap.batch: expected a tensor or array of records, a list of lists of numbers, or a tuple or "
    "dict of such"
)


def n_records(batch: Any) -> int:
    """Raises RecorderError for what is no batch."""
    sizes = {len(part) for part in _parts(batch)}
    if len(sizes) != 1 or 0 in sizes:
        raise RecorderError(
            "DPA061",
            f"{_EXPECTED} with as many each; got {type(batch).__name__} with {sorted(sizes)}",
        )
    return sizes.pop()


def contents_of(batch: Any) -> list[Content]:
    """Its tensors and arrays, in their order. Raises RecorderError for what is no batch."""
    return [_content(part, str(i)) for i, part in enumerate(_parts(batch))]


def _content(part: Any, name: str) -> Content:
    if not isinstance(part, list):
        return content_of(part, name)
    return content_of(list(_numbers(part)), name)._replace(shape=_shape(part))


def digests_of(batch: Any) -> tuple[str, ...]:
    """The identity of each record of a batch: equal records have equal ones."""
    found = [hashlib.blake2b(digest_size=8) for _ in range(n_records(batch))]
    for content in contents_of(batch):
        size = len(content.data) // len(found)
        for i, digest in enumerate(found):
            digest.update(content.data[i * size : (i + 1) * size])
    return tuple(digest.hexdigest() for digest in found)


def changed(batch: Any, how: str, i: int = 0) -> Any:
    """The batch with its i-th record changed; the same one where a change has no place in it."""
    if how == "present":
        return batch
    if _is_part(batch):
        return _changed(batch, how, i)
    with_labels = ":" in how or how == OTHER_LABEL
    if with_labels and all(_is_one_each(part) for part in _parts(batch)):
        with_labels = False  # inputs of one number each are not told from labels

    def other(part: Any) -> Any:
        if with_labels and _holds_labels(part):
            return _written(part, i, _other_label(part, i)) if how.endswith(OTHER_LABEL) else part
        return _changed(part, how, i)

    if isinstance(batch, dict):
        return {key: other(part) for key, part in batch.items()}
    parts = [other(part) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _is_one_each(part: Any) -> bool:
    """Whether a part has one number for each record, in a row or in a column."""
    shape = _shape(part) if isinstance(part, list) else tuple(part.shape)
    return shape[1:] in ((), (1,))


def _holds_labels(part: Any) -> bool:
    """Whether a part holds labels of two classes, which may be of floating point.

    Beside inputs that are put far out these stay labels: one that grew with its input would never
    be a wrong one, so that no loss would be large.
    """
    if not _is_one_each(part):
        return False
    numbers = _numbers(part) if isinstance(part, list) else part.reshape(-1).tolist()
    return LABELS.issuperset(numbers)


def _changed(part: Any, how: str, i: int) -> Any:
    """One tensor or array of a batch: inputs are of floating point, and labels are not."""
    if how in ("absent", PUT_LAST):
        own = [i] if how == PUT_LAST else []
        order = [j for j in range(len(part)) if j != i] + own
        numpy = library("numpy")
        if is_array(part) and not isinstance(part, numpy.ndarray):  # an array of JAX
            return part[numpy.asarray(order)]
        if isinstance(part, list):
            return [part[j] for j in order]
        return part[order] if i or own else part[1:]
    if isinstance(part, list):
        if not all(is_whole(number) for number in _numbers(part)):
            return [*part[:i], _other_record(part[i], how), *part[i + 1 :]]
    elif dtype_of(part).startswith(("float", "bfloat")):
        return _other_inputs(part, how, i)
    return _written(part, i, _other_label(part, i)) if how.endswith(OTHER_LABEL) else part


def _other_inputs(part: Any, how: str, i: int) -> Any:
    """Inputs times a factor; or "DIRECTION:FACTOR", far out in one of three directions.

    These are the record's own, that of all inputs alike, and that of a few inputs alone: of any
    norm but that of L2 they have other lengths.
    """
    if how in FACTORS:
        return _written(part, i, part[i] * FACTORS[how])
    direction, _, rest = how.partition(":")
    if not rest:
        return part
    factor = float(rest.partition(":")[0])
    if direction == "own":
        value = part[i] * factor
        held = abs(factor) <= LARGEST or bool((abs(value) < math.inf).all())
        return _written(part, i, value) if held else part
    part = _written(part, i, part[i] * 0 + (factor if direction == "level" else 0))
    sizes = tuple(part.shape[1:])
    for place in _few(math.prod(sizes)) if direction == "few" else ():
        part = _written(part, (i, *_unravelled(place, sizes)), factor)
    return part


def _few(n: int) -> list[int]:
    """Spread sqrt(n) indices over n inputs, so that each layer or half has some."""
    k = max(1, math.isqrt(n))
    return [(2 * j + 1) * n // (2 * k) for j in range(k)]


def _unravelled(place: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The index of a number of an array, of its place in a row of all."""
    index = []
    for size in reversed(sizes):
        index.append(place % size)
        place //= size
    return tuple(reversed(index))


def _other_record(record: Any, how: str) -> Any:
    """The same of a record as a number, or as lists of numbers."""
    direction, _, rest = how.partition(":")
    numbers = list(_numbers(record))
    if how in FACTORS or (rest and direction == "own"):
        factor = FACTORS[how] if how in FACTORS else float(rest.partition(":")[0])
        numbers = [number * factor for number in numbers]
    elif rest:
        factor = float(rest.partition(":")[0])
        there = range(len(numbers)) if direction == "level" else _few(len(numbers))
        numbers = [factor if j in there else 0.0 for j in range(len(numbers))]
    given = iter(numbers)

    def made(like: Any) -> Any:
        return next(given) if is_one_number(like) else [made(one) for one in like]

    return made(record)


def _written(part: Any, place: Any, value: Any) -> Any:
    """A copy with another value at a place."""
    if hasattr(part, "at"):  # an array of JAX, which cannot be written to
        return part.at[place].set(value)
    part = part.clone() if is_tensor(part) else part.copy()  # a list has such a copy too
    part[place] = value
    return part


def _other_label(part: Any, i: int) -> Any:
    def differs(label: Any) -> bool:
        same = label == part[i]
        return not (same if isinstance(same, bool) else bool(same.all()))

    return next(filter(differs, part), part[i])


def _parts(batch: Any) -> list[Any]:
    """Parts of a batch; a list of plain numbers is refused, as it may be one record or several."""
    if _is_part(batch) and not is_numbers(batch):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)) and all(map(_is_part, batch)):
        return list(batch)
    raise RecorderError("DPA061", f"{_EXPECTED}; got {type(batch).__name__}")


def _is_part(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and _shape(value) != ()
    return (is_tensor(value) or is_array(value)) and len(value.shape) > 0


def _shape(value: Any) -> tuple[int, ...]:
    """Shape of nested lists of numbers; empty for a number, and for what has no shape."""
    if not isinstance(value, list) or not value:
        return ()
    inner = {_shape(one) for one in value}
    numbers = {is_one_number(one) for one in value}
    if len(inner) > 1 or len(numbers) > 1 or not (numbers == {True} or inner != {()}):
        return ()
    return len(value), *inner.pop()


def _numbers(value: Any) -> Iterator[float]:
    """Numbers in nested lists, in order."""
    if is_one_number(value):
        yield value
        return
    for one in value:
        yield from _numbers(one)
