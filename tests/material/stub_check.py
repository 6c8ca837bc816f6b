"""`dpaudit check` with audits that take a fifth of a second: everything but the audit is the real thing.

Run as the command, it checks; run with "audit" it is the process of audits.
"""

import functools
import importlib
import json
import os
import sys
import time
import types
from pathlib import Path

import dpaudit.files.config as config
from dpaudit.check import one_audit
from dpaudit.errors import RunError
from dpaudit.files.atomic_files import write_whole
from dpaudit.inputs import recorder

GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"
GOLDEN = Path(os.environ.get("STUB_LEAVES", GOLDEN))


def run_audit(
    config: dict,
    out: Path,
    runtime: object,
    text: str,
    resume: bool = False,
    *_: object,
    **__: object,
) -> None:
    """Leaves what an audit leaves, in many small steps."""
    with open(Path("runs.log"), "a") as log:
        log.write("resumed\n" if resume else "begun\n")
    if str(config.get("seed")) == os.environ.get("STUB_FAILS"):
        raise RunError("DPA070", "the stub fails", "mend the stub")
    write_whole(out / "run.json", b"{}")
    if "STUB_STEPS" in os.environ:  # as a defense does, some way into the run
        recorder.write_to(str(out / "inputs.log"), [str(out)])
        importlib.import_module("mine").step()
    write_whole(Path("seed.json"), json.dumps(config.get("seed")).encode())
    for i in range(10):
        write_whole(out / "findings" / f"{i}.json", json.dumps(list(range(1000))).encode())
        if "STUB_QUICK" not in os.environ:  # as where nobody interrupts it
            time.sleep(0.01)
    write_whole(out / "report.html", b"<!DOCTYPE html>")
    write_whole(out / "audit.json", GOLDEN.read_bytes())


class Config(dict):
    """In the place of AuditConfig, whose plug-ins import torch."""

    def model_dump(self, mode: str) -> dict:
        return dict(self)

    @classmethod
    def from_table(cls, content: dict, *_: object) -> "Config":
        return cls(content)

    from_dict = from_table


config.AuditConfig = Config
if sys.argv[1] == "audit":
    instead = {  # of modules that import torch
        "dpaudit.capture.audit": {"run_audit_of": run_audit},
        "dpaudit.pipeline.requirements": {"torch_device": lambda *_: None},
        "dpaudit.pipeline.run": {"Runtime": lambda *_, **__: None},
    }
    for name, held in instead.items():
        sys.modules[name] = types.SimpleNamespace(**held)
    one_audit.serve = functools.partial(one_audit.serve, modules=())
    sys.exit(one_audit.main())
from dpaudit.check.run import Auditor  # noqa: E402 (after what it would have imported)
from dpaudit.commands.cli import app  # noqa: E402

command = (sys.executable, __file__, "audit")
app(obj=Auditor(command, source=()))  # none of the source, which somebody may be editing
