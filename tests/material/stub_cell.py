"""The process of a benchmark's cells that leaves a finished audit at once, or does what it is told.

What each cell does is in acts.json of the working folder, by the graph of its config: "fail",
"die", "hang" or "leave"; of others it says in runs.log whether they were begun or resumed.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from dpaudit.benchmark.local import CellJob
from dpaudit.errors import RunError
from dpaudit.files.atomic_files import write_whole
from dpaudit.pipeline.processes import serve

GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"


def make(order: str) -> None:
    job = CellJob.model_validate_json(order)
    name = job.folder.name
    acts = json.loads(Path("acts.json").read_text()) if Path("acts.json").exists() else {}
    begun = (job.folder / "run.json").exists()
    with open("runs.log", "a") as log:
        log.write(f"{name} {'resumed' if begun else 'begun'}\n")
    write_whole(job.folder / "run.json", b"{}")
    match acts.get(job.config["graph"]["name"]):
        case "fail":
            raise RunError("DPA070", "no luck\nnone at all")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(60)
        case "leave":
            os._exit(0)
    shutil.copy(GOLDEN, job.folder / "audit.json")
    write_whole(job.folder / "report.html", b"<!DOCTYPE html>")


if __name__ == "__main__":
    sys.exit(serve(make, modules=()))
