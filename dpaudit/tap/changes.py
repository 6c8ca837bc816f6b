"""How one record of a batch is changed, whatever the form that the batch has."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpaudit.errors import RunError
from dpaudit.files.world import How

from .tape import as_tensor

FACTOR = 10.0  # of a record that is scaled up


def n_records(batch: Any) -> int:
    """Raises RunError for what is no batch."""
    sizes = {len(part) for part in _parts(batch)}
    if len(sizes) != 1 or 0 in sizes:
        raise RunError(
            "DPA061",
            "tap.batch: expected a tensor or array of records, or a tuple, list or dict of such "
            f"with as many each; got {type(batch).__name__} with {sorted(sizes)}",
        )
    return sizes.pop()


def parts_of(batch: Any) -> list[Tensor]:
    """Its tensors and arrays, in their order. Raises RunError for what is no batch."""
    return [as_tensor(part) for part in _parts(batch)]


def digests_of(batch: Any) -> tuple[str, ...]:
    """The identity of each record of a batch: equal records have equal ones."""
    found = [hashlib.blake2b(digest_size=8) for _ in range(n_records(batch))]
    for part in parts_of(batch):
        for record, digest in zip(part, found, strict=True):
            digest.update(record.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return tuple(digest.hexdigest() for digest in found)


def changed(batch: Any, how: How, i: int = 0) -> Any:
    """The batch with its i-th record changed; the same one where a change has no place in it."""
    if how == "present":
        return batch
    if how == "absent":
        return _mapped(batch, lambda part: _without(part, i))
    if how == "other-label":
        return _mapped(batch, lambda part: _with_other_label(part, i))
    factor = {"scaled": FACTOR, "negated": -FACTOR, "zeroed": 0.0}[how]
    return _mapped(batch, lambda part: _times(part, factor, i))


def _parts(batch: Any) -> list[Any]:
    if isinstance(batch, Tensor | np.ndarray):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, tuple | list) and all(isinstance(p, Tensor | np.ndarray) for p in batch):
        return list(batch)
    raise RunError(
        "DPA061",
        "tap.batch: expected a tensor or array of records, or a tuple, list or dict of such; got "
        f"{type(batch).__name__}",
    )


def _mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, Tensor | np.ndarray):
        return change(batch)
    if isinstance(batch, dict):
        return {key: change(part) for key, part in batch.items()}
    parts = [change(part) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _is_float(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.is_floating_point()
    return bool(np.issubdtype(part.dtype, np.floating))


def _copy(part: Any) -> Any:
    return part.clone() if isinstance(part, Tensor) else part.copy()


def _without(part: Any, i: int) -> Any:
    return part[[j for j in range(len(part)) if j != i]] if i else part[1:]


def _times(part: Any, factor: float, i: int) -> Any:
    """Of inputs; labels stay."""
    if not _is_float(part):
        return part
    part = _copy(part)
    part[i] *= factor
    return part


def _with_other_label(part: Any, i: int) -> Any:
    if _is_float(part):
        return part
    others = [j for j in range(len(part)) if not (part[j] == part[i]).all()]
    if not others:
        return part
    part = _copy(part)
    part[i] = part[others[0]]
    return part
