"""StoredCheckpoint on disk: whole or not there, and believed only by the job that wrote them."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from dpaudit.checkpoint import Checkpoint, Progress

from .locked_folder import Folder
from .seals import sealed, unsealed

SECONDS = 10.0  # least time of work between two checkpoints
SHARE = 10.0  # times as long as it took to write the last one


@dataclass
class _Job:
    """What the stages of a job share: where they write, and when next."""

    folder: Folder
    name: str
    binding: str
    device: torch.device
    due: float = field(default_factory=lambda: time.monotonic() + SECONDS)
    finished: dict[str, Progress] = field(default_factory=dict)  # stages to be written when due

    def write(self, stage: str, now: Callable[[], Progress] | None = None) -> None:
        began = time.monotonic()
        if began < self.due:
            return
        every = {**self.finished, **({} if now is None else {stage: now()})}
        for name, (tensors, note) in every.items():
            file = self.file(name)
            content = sealed(tensors, json.dumps(note), f"{self.binding} {file}")
            self.folder.write(file, content)
        self.finished.clear()
        ended = time.monotonic()
        self.due = ended + max(SECONDS, SHARE * (ended - began))

    def file(self, stage: str) -> str:
        return f"checkpoints/{self.name}/{stage}.safetensors"


class StoredCheckpoint(Checkpoint):
    """The checkpoints of one job, a file for each of its stages."""

    def __init__(self, job: _Job, stages: tuple[str, ...] = ()) -> None:
        self._job, self._stages = job, stages

    @classmethod
    def of(cls, folder: Folder, job: str, binding: str, device: torch.device) -> "StoredCheckpoint":
        """
        Args:
            folder: of the run.
            job: its name.
            binding: what decides its numbers: config, seed, code, data, device.
            device: where tensors are wanted.
        """
        return cls(_Job(folder, job, binding, device))

    def stage(self, name: str | int) -> Checkpoint:
        return StoredCheckpoint(self._job, (*self._stages, str(name)))

    def last(self) -> Progress | None:
        job, file = self._job, self._job.file(self._name)
        if not job.folder.at(file).exists():
            return None
        found = unsealed(job.folder.read(file), f"{job.binding} {file}")
        if found is None:
            return None
        tensors, note = found
        own = {key: tensor.to(job.device) for key, tensor in tensors.items()}
        return Progress(own, json.loads(note))

    def keep(self, now: Callable[[], Progress]) -> None:
        self._job.write(self._name, now)

    def done(self, result: Progress) -> None:
        self._job.finished[self._name] = result
        self._job.write(self._name)

    @property
    def _name(self) -> str:
        return "-".join(self._stages) or "all"
