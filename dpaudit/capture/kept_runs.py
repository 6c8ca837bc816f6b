"""Runs of a program that are done, kept where ``--resume`` goes on, each in a sealed file."""

import threading
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpaudit.files.world import World
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import sealed, unsealed

FOLDER = "checkpoints/worlds"
WORLD = "world.json"  # in the folder of a run


class KeptRuns:
    """What runs have left, by their worlds; equal worlds in the order in which they ended."""

    def __init__(self, run: RunDirectory, scratch: Path) -> None:
        self._run, self._scratch = run, scratch / "kept"
        self._lock = threading.Lock()
        self._kept: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def take(self, world: World) -> Path | None:
        """The folder that a run of this world has left; None: it is to be run."""
        nth = self._taken[name := _name(world)]
        self._taken[name] += 1
        file = f"{FOLDER}/{name}-{nth}.safetensors"
        if not self._run.has(file):
            return None
        found = unsealed(self._run.read(file), f"{self._run.binding} {file}")
        if found is None:
            return None
        self._kept[name] = max(self._kept[name], nth + 1)
        out = self._scratch / f"{name}-{nth}"
        for path, content in found[0].items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(content.numpy().tobytes())
        return out

    def keep(self, out: Path) -> None:
        """What a run has left in its folder."""
        name = _name(World.model_validate_json((out / WORLD).read_text()))
        with self._lock:
            file = f"{FOLDER}/{name}-{self._kept[name]}.safetensors"
            self._kept[name] += 1
        files = [path for path in sorted(out.rglob("*")) if path.is_file()]
        content = {str(path.relative_to(out)): _bytes(path) for path in files}
        self._run.write(file, sealed(content, "", f"{self._run.binding} {file}"))


def _name(world: World) -> str:
    """By all that a world changes; where its files lie, and the tape of the first run, do not."""
    told = world.model_dump_json(exclude={"out", "tape", "sites"}) + str(world.tape is None)
    return sha256(told.encode()).hexdigest()[:32]


def _bytes(path: Path) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(path.read_bytes()), np.uint8).copy())
