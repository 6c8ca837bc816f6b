"""A caller's own data set, of PyTorch or Hugging Face, as the tensors that an audit learns from.

Anything with a length and items by index: pairs of a record and its label, as ``TensorDataset``
gives them, or dictionaries, as ``datasets`` gives them.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from dpaudit.errors import DataError
from dpaudit.rng import Streams
from dpaudit.text import one_line

from .datasets import ONE_HOT, TEST_SHARE, Dataset, array_of, from_arrays, is_one_hot

MOST_TOKENS = 2**20  # size of a vocabulary, as in data.text.vocabulary
_LABELS, _RECORDS = ("label", "labels"), ("input_ids", "pixel_values")


@runtime_checkable
class IndexedRecords(Protocol):
    """A data set with records by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


def from_records(records: IndexedRecords | tuple[Any, Any], *, seed: int = 0) -> Dataset:
    """A data set from one of PyTorch or Hugging Face, or from arrays (x, y).

    Numbers are taken as ``from_arrays`` takes them. Integers [length] are token ids; without a
    label, or if that is the record itself, the last token is the label of those before it. Labels
    [length] are at positions: what the logits at each position are compared with, which for a
    language model is the token that follows.

    Raises:
        DataError: it is empty, its records differ in form, or are no numbers.
    """
    if isinstance(records, tuple):
        if len(records) != 2:
            said = f"data: a tuple of {len(records)}; expected two arrays (x, y)"
            raise DataError("DPA030", said)
        return from_arrays(*records, seed=seed)
    if isinstance(records, str | Mapping) or not isinstance(records, IndexedRecords):
        raise DataError(
            "DPA030",
            f"data: a {type(records).__name__}; expected arrays (x, y), or a data set with a "
            "length and items by index",
            _instead_of(records),
        )
    if not len(records):
        raise DataError("DPA030", "data: an empty data set; expected records")
    pairs = [_pair(_item(records, i), i) for i in range(len(records))]
    shapes = {x.shape for x, _ in pairs}
    if len(shapes) > 1:
        one, other = list(shapes)[:2]
        raise DataError(
            "DPA030",
            f"data: records of the shapes {one} and {other}; expected all alike: cut or pad them",
        )
    x = np.stack([record for record, _ in pairs])
    if not x.size:
        raise DataError(
            "DPA030", f"data: records of shape {x.shape[1:]} are empty; expected entries"
        )
    if x.dtype.kind not in "iu" or x.ndim != 2:
        if any(label is None for _, label in pairs):
            raise DataError("DPA030", f"data: records without a label; expected {_LABELS[0]!r}")
        return from_arrays(x, np.array([label for _, label in pairs]), seed=seed)
    own = all(label is None for _, label in pairs)
    y = x[:, -1] if own else _labels_of([label for _, label in pairs])
    return _of_tokens(x[:, :-1] if own else x, y, own or y.ndim > 1, seed)


def _instead_of(records: object) -> str:
    """What to give in the place of what is no data set."""
    if isinstance(records, str):
        return f'name it in the config of an audit: data = {{ name = "{records}" }}'
    if isinstance(records, Mapping) and records:
        keys = [repr(key) for key in records]
        return f"give one of its parts, as data[{keys[0]}], or a tuple of arrays (x, y)"
    if hasattr(records, "dataset"):
        return "give what it loads, its .dataset: batches are drawn by the audit"
    return ""


def _item(records: IndexedRecords, i: int) -> Any:
    """A record by its index. Raises DataError: there is none."""
    try:
        return records[i]
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise DataError(
            "DPA030",
            f"data: item {i} of {len(records):,} in this {type(records).__name__} cannot be had: "
            f"{said}; expected items by index",
        ) from error


def _labels_of(labels: list[Any]) -> np.ndarray[Any, Any]:
    """Labels [n], or at positions [n, length]. Raises DataError: some lack one, or are no ids."""
    kinds = {"none" if one is None else f"{np.ndim(one)}-D" for one in labels}
    if len(kinds) > 1:
        raise DataError(
            "DPA030",
            "data: some records have one label, others none or one at each position; expected all "
            "alike",
        )
    y = np.array(labels)
    if y.dtype.kind not in "iub":
        raise DataError("DPA030", f"data: labels of {y.dtype}; expected integers")
    return y.astype(np.int64)


def _pair(item: Any, i: int) -> tuple[np.ndarray[Any, Any], Any]:
    """A record, and its label; None where that is the record itself."""
    label = None
    if isinstance(item, Mapping):
        named = next((key for key in _LABELS if key in item), None)
        label = None if named is None else item[named]
        keys = [key for key in item if key not in (*_LABELS, "attention_mask", "token_type_ids")]
        key = next((key for key in _RECORDS if key in item), keys[0] if len(keys) == 1 else None)
        if key is None:
            raise DataError(
                "DPA030",
                f"data: item {i} has the keys {', '.join(map(str, item))}; expected input_ids or "
                "pixel_values, and label",
            )
        record = item[key]
    elif isinstance(item, tuple | list) and len(item) == 2:
        record, label = item
    else:
        raise DataError(
            "DPA030",
            f"data: item {i} is a {type(item).__name__}; expected a pair of a record and its "
            "label, or a dictionary with input_ids or pixel_values, and label",
        )
    array = array_of(record, f"item {i} has a record that")
    if array.dtype.kind not in "fiu":
        raise DataError("DPA030", f"data: item {i} has a record of {array.dtype}; expected numbers")
    label = None if label is None else array_of(label, f"item {i} has a label that")
    if label is not None and label.ndim:
        label = None if np.array_equal(label, array) else label
    if label is not None and label.size != 1:
        if label.shape != array.shape or array.dtype.kind not in "iu":
            raise DataError(
                "DPA030",
                f"data: item {i} has labels of shape {label.shape} on a record of shape "
                f"{array.shape}; expected one label, or for token ids one at each position",
                ONE_HOT if is_one_hot(label) else "",
            )
        if label.dtype.kind not in "iu":
            raise DataError(
                "DPA030", f"data: item {i} has labels of {label.dtype}; expected integers"
            )
        return array, label
    return array, None if label is None else label.reshape(()).item()


def _of_tokens(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], is_next: bool, seed: int
) -> Dataset:
    """Token ids [n, length], with a vocabulary up to the largest id."""
    if not x.size:
        raise DataError(
            "DPA030",
            "data: records of one token; expected two at least, of which the last is the label, or "
            "a label beside it",
        )
    largest = int(max(x.max(), y.max()))
    if largest >= MOST_TOKENS:
        raise DataError(
            "DPA030",
            f"data: a token id or label is {largest}; expected at most {MOST_TOKENS - 1}, of which "
            "an embedding has a row for each",
        )
    if min(x.min(), y.min()) < 0:
        raise DataError(
            "DPA030",
            f"data: a token id or label is {min(x.min(), y.min())}, under 0; expected ids from 0 "
            "on, at every position",
        )
    if len(x) < 2:
        raise DataError("DPA032", "data: one record; expected two at least, one of them to test")
    if y.ndim == 1 and (y == y[0]).all():
        said = f"data: labels are all {y[0]}; expected two classes at least"
        raise DataError("DPA031", said)
    n_tokens = 1 + int(max(x.max(), y.max() if is_next else 0))
    vocabulary = tuple(map(str, range(n_tokens)))
    classes = vocabulary if is_next else tuple(map(str, range(1 + int(y.max()))))
    order = Streams(seed).numpy("data", "test split").permutation(len(x))
    n_test = max(1, round(len(x) * TEST_SHARE))
    test, train = np.sort(order[:n_test]), np.sort(order[n_test:])
    ids, labels = (torch.from_numpy(a.astype(np.int64)) for a in (x, y))
    parts = (ids[train], labels[train], ids[test], labels[test])
    return Dataset("data", *parts, classes, (0.0, n_tokens - 1.0), vocabulary)
