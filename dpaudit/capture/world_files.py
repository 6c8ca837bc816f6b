"""A world as the recorder plays it: files that say which numbers take the place of each draw.

The recorder draws nothing itself. Draws that are replayed have their numbers in a tape, and all
others theirs in units of the scale that the program declares: see docs/recorder-protocol.md.
"""

import json
import os
import threading
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dpaudit.files.world import World
from dpaudit.recorder import PROTOCOL

WORLD_FILE = "world.json"  # in the folder of a run
STANDARD, SAME = "standard.safetensors", "same.safetensors"


def write_world(world: World) -> Path:
    """Write the files of a world into its folder.

    Returns:
        The path of the file that the recorder reads first.
    """
    numbers, tapes = ReplayedNumbers(world), []
    standard, same = numbers.standard(), numbers.same()
    if standard:
        save_file(standard, world.out / STANDARD)
    if world.tape is not None:
        tapes = [_written_once(same, world.tape.with_name(SAME))] if same else []
        tapes.append(world.tape)
    given = {
        "protocol": PROTOCOL,
        "out": str(world.out),
        "seed": world.seed,
        "tapes": list(map(str, tapes)),
        "standard": str(world.out / STANDARD) if standard else None,
        "sites": world.sites,
        "changes": [[c.agent, c.batch, c.how, c.record] for c in world.changes],
        "keeps_records": world.keeps_records,
        "last": world.last,
    }
    path = world.out / WORLD_FILE
    path.write_text(json.dumps(given))
    return path


def _written_once(tensors: dict[str, Tensor], path: Path) -> Path:
    """A file that all worlds of a tape share; they may write it at the same time."""
    if not path.exists():
        own = path.with_name(f"{path.name}.{threading.get_ident()}")
        save_file(tensors, own)
        os.replace(own, path)
    return path


class ReplayedNumbers:
    """What takes the place of the draws of a world, by their keys, but for its tape itself."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tape = {} if world.tape is None else load_file(world.tape)

    def standard(self) -> dict[str, Tensor]:
        """Numbers in units of the scale that the program declares, in float64."""
        world = self._world
        drawn = {*world.silent, *world.signs, *world.fresh}
        asked = {key for key in {*drawn, *world.same} if self._origin(key)[0] in drawn}
        return {key: self._standard(key) for key in sorted(asked) if key in self._tape}

    def same(self) -> dict[str, Tensor]:
        """Draws that are another one of the tape, or less it."""
        origins = {key: self._origin(key) for key in self._world.same}
        return {
            key: (sign * self._tape[other]).contiguous()
            for key, (other, sign) in origins.items()
            if other in self._tape
        }

    def _origin(self, key: str) -> tuple[str, int]:
        """The draw that a draw repeats, at the end of the chain, and its sign."""
        sign = 1
        while key in self._world.same:
            key, own = self._world.same[key]
            sign *= own
        return key, sign

    def _standard(self, key: str) -> Tensor:
        origin, sign = self._origin(key)
        shape = self._tape[key].shape
        n, world = self._tape[key].numel(), self._world
        if origin in world.silent:
            return torch.zeros(shape, dtype=torch.float64)
        if origin in world.signs:
            values = _generator(world.sign_seed, origin).integers(0, 2, n) * 2.0 - 1
        else:
            generator = _generator(world.noise_seed, origin)
            gaussian = world.fresh[origin] == "gaussian"
            draw = generator.standard_normal if gaussian else generator.laplace
            values = np.asarray(draw(size=n))
        return torch.from_numpy(sign * values).reshape(shape)


def _generator(seed: int, key: str) -> np.random.Generator:
    digest = sha256(key.encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest[:16], np.uint32).tolist()])
