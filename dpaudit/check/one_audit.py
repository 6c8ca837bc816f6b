"""Audits one after the other, into the cache: a process that a check starts, and may stop.

Reads an AuditJob as one line of JSON, and leaves its entry in the cache.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from dpaudit.inputs import recorder
from dpaudit.inputs.inputs import Inputs
from dpaudit.pipeline.content import bound_files
from dpaudit.pipeline.processes import serve
from dpaudit.strict import Strict

from .cache import AuditCache, Seal


class AuditJob(Strict):
    """Which audit, with all defaults filled in, and where it goes."""

    config: dict[str, Any]
    cache: Path
    key: str
    seal: str  # the key of the cache's seals
    device: str
    data_root: Path | None
    cores: int
    max_memory: int | None = None  # bytes; None: what is free
    import_from: Path | None
    root: Path  # the folder of the claims file, to which paths of inputs are relative


def main() -> int:
    return serve(_make)


def _make(order: str) -> None:
    job = AuditJob.model_validate_json(order)
    recorder.start(map(str, (job.cache, *bound_files(job.config, job.data_root))))
    if job.import_from is not None:
        sys.path.insert(0, str(job.import_from))
    from dpaudit.capture.audit import run_audit_of
    from dpaudit.files.kinds import audit_kind
    from dpaudit.pipeline.requirements import torch_device
    from dpaudit.pipeline.run import Runtime

    device = torch_device(job.device, f"--device {job.device}")
    cache = AuditCache(job.cache, Seal(job.seal), job.root)
    with cache.locked(job.key):
        if cache.find(job.key) is not None:
            return  # made by another check while this one waited
        partial = cache.partial(job.key)
        begun = (partial / "run.json").exists() and Inputs.of_log(partial).doubt() is None
        if not begun:
            shutil.rmtree(partial, ignore_errors=True)
        runtime = Runtime(device, job.data_root, cores=job.cores, max_memory=job.max_memory)
        config = audit_kind(job.config).from_dict(job.config)
        run_audit_of(config, partial, runtime, "", resume=begun)
        cache.keep(job.key)


if __name__ == "__main__":
    sys.exit(main())
