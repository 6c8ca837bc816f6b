"""Runs of a program that are done, kept where ``--resume`` goes on, each in a sealed file."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpaudit.files.world import World
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import sealed, unsealed

from .program import WORLD_FILE, Program
from .runs import ProgramRun

FOLDER = "checkpoints/worlds"


class KeptRuns:
    """Plays worlds, but for those that an audit which was ended has played.

    Equal worlds are kept in the order in which they ended.
    """

    def __init__(self, program: Program, run: RunDirectory, on_run: Callable[[], None]) -> None:
        self.program, self._run, self._on_run = program, run, on_run
        self._lock = threading.Lock()
        self._kept: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()

    def loaded(self, worlds: Sequence[World]) -> list[ProgramRun]:
        """Raises RunError for the first run that fails."""
        found = [self._kept_run(world) for world in worlds]
        missing = [w for w, run in zip(worlds, found, strict=True) if run is None]
        played = iter(self.program.each(missing, self._keep, self._on_run))
        return [next(played) if run is None else run for run in found]

    def _kept_run(self, world: World) -> ProgramRun | None:
        nth = self._asked[name := _name(world)]
        self._asked[name] += 1
        file = f"{FOLDER}/{name}-{nth}.safetensors"
        if not self._run.has(file):
            return None
        found = unsealed(self._run.read(file), f"{self._run.binding} {file}")
        if found is None:
            return None
        self._kept[name] = max(self._kept[name], nth + 1)
        out = self.program.scratch / "kept" / f"{name}-{nth}"
        for path, content in found[0].items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(content.numpy().tobytes())
        self._on_run()
        return self.program.read(out, first=world.tape is None).loaded()

    def _keep(self, run: ProgramRun) -> ProgramRun:
        name = _name(World.model_validate_json((run.path / WORLD_FILE).read_text()))
        with self._lock:
            file = f"{FOLDER}/{name}-{self._kept[name]}.safetensors"
            self._kept[name] += 1
        files = [path for path in sorted(run.path.rglob("*")) if path.is_file()]
        content = {str(path.relative_to(run.path)): _bytes(path) for path in files}
        self._run.write(file, sealed(content, "", f"{self._run.binding} {file}"))
        return run.loaded()


def _name(world: World) -> str:
    """By all that a world changes; where its files lie, and the tape of the first run, do not."""
    changes = world.model_dump_json(exclude={"out", "tape", "sites"}) + str(world.tape is None)
    return sha256(changes.encode()).hexdigest()[:32]


def _bytes(path: Path) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(path.read_bytes()), np.uint8).copy())
