"""Cells in processes of this machine, side by side; on CUDA devices one at a time on each."""

import os
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpaudit.files.documents import read_json
from dpaudit.inputs import recorder
from dpaudit.inputs.inputs import Inputs
from dpaudit.pipeline.processes import (
    EndedAudit,
    Order,
    Waiting,
    serve,
    share_of_memory,
    side_by_side,
)
from dpaudit.strict import Strict

COMMAND = (sys.executable, "-P", "-m", "dpaudit.benchmark.local")
VISIBLE = "CUDA_VISIBLE_DEVICES"  # the environment variable by which CUDA knows its devices


class CellJob(Strict):
    """Which audit, with all defaults filled in, and where it is computed and goes."""

    config: dict[str, Any]
    text: str  # of its config.toml
    folder: Path
    device: str
    data_root: Path | None
    cores: int = 1
    max_memory: int | None = None  # bytes; None: what is free


def main() -> int:
    return serve(_make)


def _make(order: str) -> None:
    from dpaudit.files.config import AuditConfig
    from dpaudit.pipeline.requirements import torch_device
    from dpaudit.pipeline.run import Runtime, run_audit

    job = CellJob.model_validate_json(order)
    recorder.start([str(job.folder)])
    device = torch_device(job.device, f"--device {job.device}")
    runtime = Runtime(device, job.data_root, cores=job.cores, max_memory=job.max_memory)
    config, begun = AuditConfig.from_dict(job.config), _has_begun(job.folder)
    run_audit(config, job.folder, runtime, job.text, resume=begun)


def _has_begun(folder: Path) -> bool:
    """Whether a run can go on there; what cannot be read, or may not stand, is computed anew."""
    try:
        read_json(folder / "run.json")
    except (OSError, ValueError):
        return False
    return Inputs.of_log(folder).doubt() is None


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
            complete = job.model_copy(update={"cores": cores, "max_memory": share})
            return Order(complete.model_dump_json(), job.folder / "progress.json")

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


if __name__ == "__main__":
    sys.exit(main())
