"""What a world changes in a program: its draws of noise, by name, and one record of a batch.

Draws are replayed, silent, signed or drawn anew. A record is changed whatever form its batch has.
"""

import hashlib
import random
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from dpaudit.errors import RunError
from dpaudit.files.world import How, Noise, World

FACTORS = {"scaled": 10.0, "negated": -10.0, "zeroed": 0.0}  # of the inputs of a record


class NoiseTape:
    """The draws of a world, by their keys."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._stored = {} if world.tape is None else load_file(world.tape)

    def draw(self, key: str, own: Tensor, scale: float, family: Noise) -> Tensor:
        """What this world has in the place of a draw, of its shape and dtype.

        Raises RunError for a draw that the tape does not have.
        """
        if key in self.world.same:
            other, sign = self.world.same[key]
            return sign * self.draw(other, own, scale, family)
        if key in self.world.silent:
            return torch.zeros_like(own)
        if key in self.world.signs:
            generator = _generator(self.world.sign_seed, key)
            signs = generator.integers(0, 2, own.numel()) * 2.0 - 1
            return torch.from_numpy(scale * signs).reshape(own.shape).to(own.dtype)
        if key in self.world.fresh:
            generator = _generator(self.world.noise_seed, key)
            kind = generator.standard_normal if family == "gaussian" else generator.laplace
            values = scale * np.asarray(kind(size=own.numel()))
            return torch.from_numpy(values).reshape(own.shape).to(own.dtype)
        if self.world.tape is None:
            return own
        found = self._stored.get(key)
        if found is None or found.shape != own.shape:
            agent_said, occurrence, name = key.split("/", 2)
            raise RunError(
                "DPA062",
                f'draw {int(occurrence) + 1} of "{name}" by agent {agent_said} has another shape '
                "or is not there in the first run: which draws are made depends on the noise or "
                "the record, and such runs cannot be compared",
            )
        return found


def seed_all(seed: int) -> None:
    """Seed the generators that programs use without asking for one of their own."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  what programs use
    torch.manual_seed(seed)


def as_noise(name: str, draw: Any) -> Tensor:
    """The numbers of a draw that the tap is shown. Raises RunError where they are whole."""
    own = as_tensor(draw)
    if not own.is_floating_point():
        raise RunError("DPA061", f'tap.noise: "{name}" draws {own.dtype}; expected floating point')
    return own


def as_tensor(value: Any) -> Tensor:
    """A tensor, array or number, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return torch.as_tensor(np.asarray(value))


def like(found: Tensor, given: Any) -> Any:
    """As what was given: a tensor on its device, an array or a number."""
    if isinstance(given, Tensor):
        return found.to(given.device)
    array = found.numpy()
    return array if isinstance(given, np.ndarray) else type(given)(array)


def _generator(seed: int, key: str) -> np.random.Generator:
    digest = hashlib.sha256(key.encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest[:16], np.uint32).tolist()])


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
