"""One audit in parts that are done wherever there is room: its run directory goes with them.

Parts leave what they found in files of the run directory. Whoever has the files of all parts has
the audit: nothing else is shared.
"""

from pathlib import Path
from typing import NamedTuple

from dpaudit.files.config import AuditConfig
from dpaudit.training.run_directory import RunDirectory

from .caller_objects import NOTHING
from .costs import estimate_costs
from .jobs import WORLDS, names_of_attacks
from .run import Runtime, fingerprint_of, prepare, run_audit, worker
from .workers import one_thread


class Parts(NamedTuple):
    """The names of what is to be done: first all that trains, then all that attacks."""

    training: tuple[str, ...]
    attacks: tuple[str, ...]


def begin(config: AuditConfig, out: Path, runtime: Runtime, text: str, resume: bool) -> Parts:
    """Begin a run, or go on with one, and say what is to be done. Raises as ``run_audit``."""
    prepared = prepare(config, runtime)
    estimate_costs(config, prepared, runtime.max_memory)
    fingerprint = fingerprint_of(config, prepared, runtime)
    with RunDirectory(out).begun(text, fingerprint, resume):
        return Parts(WORLDS, tuple(names_of_attacks(config, prepared)))


def do_part(config: AuditConfig, out: Path, runtime: Runtime, name: str) -> None:
    """Do one part, if it is not done. An attack needs the files of all that trains."""
    with RunDirectory(out).held() as run, one_thread():
        run.recorded()
        work = worker(config, run, run.binding, runtime, NOTHING)
        work(name, lambda what, done, total: None)


def finish(config: AuditConfig, out: Path, runtime: Runtime, text: str) -> None:
    """Judge what all parts found, and do what is missing of them."""
    run_audit(config, out, runtime, text, resume=True)
