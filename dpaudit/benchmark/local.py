"""Cells in processes of this machine, side by side; on CUDA devices one at a time on each."""

import os
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from dpaudit.pipeline.processes import EndedAudit, Order, Waiting, share_of_memory, side_by_side

from .one_cell import CellJob

COMMAND = (sys.executable, "-P", "-m", "dpaudit.benchmark.one_cell")
VISIBLE = "CUDA_VISIBLE_DEVICES"  # the environment variable by which CUDA knows its devices


@dataclass(frozen=True)
class LocalProcesses:
    """Runs cells; nothing here changes what they find."""

    device: str = "cpu"
    workers: int | None = None  # processes; None: one for each core, or CUDA device
    max_memory: int | None = None  # bytes of all of them together; None: what is free

    def __call__(self, jobs: Mapping[str, CellJob], waiting: Waiting) -> Generator[EndedAudit]:
        """Each cell as it ends. Cores that are left take parts of a cell."""
        places = self._environments()
        cores = max(1, len(places) // max(1, len(jobs)))
        abreast = min(len(places), len(jobs))
        share = share_of_memory(self.max_memory, abreast, self.device)

        def order(job: CellJob) -> Order:
            told = job.model_copy(update={"cores": cores, "max_memory": share})
            return Order(told.model_dump_json(), job.folder / "progress.json")

        orders = {name: order(job) for name, job in jobs.items()}
        return side_by_side(COMMAND, orders, places, waiting)

    def _environments(self) -> list[dict[str, str]]:
        """What is set for the process in each place. Raises ConfigError: no such device."""
        if self.device == "cpu":
            return [{}] * (self.workers or os.cpu_count() or 1)
        import torch

        from dpaudit.pipeline.requirements import torch_device

        torch_device(self.device, f"--device {self.device}")
        named = os.environ.get(VISIBLE)
        devices = named.split(",") if named else list(map(str, range(torch.cuda.device_count())))
        return [{VISIBLE: device} for device in devices[: self.workers]]
