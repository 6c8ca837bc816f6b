"""Files that are believed only as they were written, in their place, for the same computation.

A seal is a hash, no signature: it separates what is stale, damaged or edited by hand from the rest,
and does not keep out whoever computes the hash anew.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor


def sealed(tensors: Mapping[str, Tensor], note: str, binding: str) -> bytes:
    """A safetensors file with a text, and with a seal that no other content or place has."""
    flat = _apart({key: t.detach().cpu().contiguous() for key, t in tensors.items()})
    return save(flat, {"note": note, "seal": _seal(flat, note, binding)})


def unsealed(content: bytes, binding: str) -> tuple[dict[str, Tensor], str] | None:
    """Tensors and text of a file whose seal is right; None of any other."""
    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + size])["__metadata__"]
        note, seal = about["note"], about["seal"]
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return (tensors, note) if seal == _seal(tensors, note, binding) else None


def sealed_text(content: Any, binding: str) -> str:
    """JSON of a content and its seal."""
    seal = sha256(json.dumps([binding, content], sort_keys=True).encode()).hexdigest()
    return json.dumps({"seal": seal, "content": content}, indent=2) + "\n"


def unsealed_text(text: bytes, binding: str) -> Any:
    """The content of a text whose seal is right; None of any other."""
    try:
        content = json.loads(text)["content"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return content if text == sealed_text(content, binding).encode() else None


def bound_to(what: Any) -> str:
    """The binding of a computation that this, which JSON can hold, decides."""
    return sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory: safetensors refuses two names for one."""
    found, places = dict[str, Tensor](), set[int]()
    for key, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        found[key] = tensor.clone() if place in places else tensor
        places.add(place)
    return found


def _seal(tensors: Mapping[str, Tensor], note: str, binding: str) -> str:
    digest = sha256(json.dumps([binding, note]).encode())
    for key, tensor in sorted(tensors.items()):
        digest.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode())
        row = tensor.contiguous().flatten()
        row = row.as_strided(row.shape, (1,))  # one number may have any stride; view() needs 1
        digest.update(row.view(torch.uint8).numpy().data)
    return digest.hexdigest()
