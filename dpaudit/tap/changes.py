"""How one record of a batch is changed, whatever the form that the batch has."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpaudit.errors import RunError
from dpaudit.files.world import How

from .tape import as_tensor

FACTORS = {"scaled": 10.0, "negated": -10.0, "zeroed": 0.0}  # of the inputs of a record


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
    if isinstance(batch, Tensor | np.ndarray):
        return _changed(batch, how, i)
    if isinstance(batch, dict):
        return {key: _changed(part, how, i) for key, part in batch.items()}
    parts = [_changed(part, how, i) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _changed(part: Any, how: How, i: int) -> Any:
    """One tensor or array of a batch: inputs are of floating point, and labels are not."""
    if how == "absent":
        return part[[j for j in range(len(part)) if j != i]] if i else part[1:]
    tensor = isinstance(part, Tensor)
    inputs = part.is_floating_point() if tensor else np.issubdtype(part.dtype, np.floating)
    if inputs != (how in FACTORS):
        return part
    part = part.clone() if tensor else part.copy()
    if inputs:
        part[i] = part[i] * FACTORS[how]
    else:
        part[i] = next((label for label in part if not (label == part[i]).all()), part[i])
    return part


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
