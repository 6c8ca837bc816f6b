"""Cells one after the other, each into its run directory: a process that a benchmark starts."""

import sys
from pathlib import Path
from typing import Any

from dpaudit.files.documents import read_json
from dpaudit.inputs import recorder
from dpaudit.inputs.inputs import Inputs
from dpaudit.pipeline.orders import serve
from dpaudit.strict import Strict


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


if __name__ == "__main__":
    sys.exit(main())
