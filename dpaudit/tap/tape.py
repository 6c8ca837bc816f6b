"""Draws of noise by name: replayed, silent, signed or drawn anew, as a world wants them."""

import hashlib
import random
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from dpaudit.errors import RunError
from dpaudit.files.world import Noise, World


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
