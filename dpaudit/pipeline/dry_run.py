"""What an audit takes and could prove, estimated before anything of it is done."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, main_thread
from typing import NamedTuple

from dpaudit.attack.contract import AttackContext
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Metric
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import train
from dpaudit.training.woven import global_randomness

from .costs import AuditCosts, estimate_costs
from .jobs import AttackJob, Prepared, context_of, jobs_of, recording_for
from .run import Runtime, prepare
from .workers import one_thread

ENOUGH = 0.3  # seconds of an attack that tell its time
PATIENCE = 2.0  # seconds in which it must have reported a step


class Power(NamedTuple):
    """What one attack is expected to prove of one claim against one adversary."""

    attack: str
    claim: int  # index into the config's claims
    threat_model: str
    metrics: Mapping[str, Metric]


def outlook(config: AuditConfig, runtime: Runtime) -> tuple[AuditCosts, list[Power]]:
    """What ``run_audit`` would take and could prove; no more than first steps are played.

    Raises:
        DpauditError: the config, the data or the memory does not allow the audit.
    """
    prepared = prepare(config, runtime)
    costs = costs_ahead(config, prepared, runtime.max_memory)
    return costs, list(powers_of(config, prepared))


def costs_ahead(config: AuditConfig, prepared: Prepared, max_memory: int | None) -> AuditCosts:
    """What an audit takes, with the time of each attack by its first steps.

    These are played in a folder that is thrown away. An attack that reads rounds of the training is
    timed if they are soon played, and batches of one size take as long with noise as without.
    """
    costs = estimate_costs(config, prepared, max_memory, timed=True)
    found: dict[object, float | None] = {}
    with TemporaryDirectory() as folder, one_thread(), global_randomness(0):
        run = RunDirectory(Path(folder))
        _record(prepared, run)
        for job in (part.job for part in costs.attacks if part.job is not None):
            key = job.of, job.part.batch_size
            if key not in found:
                found[key] = _seconds(job, context_of(config, prepared, run, job))
    return costs._replace(
        attacks=[
            part._replace(seconds=found[part.job.of, part.job.part.batch_size])
            if part.job is not None
            else part
            for part in costs.attacks
        ]
    )


def _record(prepared: Prepared, run: RunDirectory) -> None:
    """The rounds that attacks read, if they are soon played."""
    recording = recording_for(prepared)

    def on_round(done: int, total: int) -> None:
        if done >= max(recording.messages):
            raise _Enough

    given = prepared.learned.problem, prepared.setting, prepared.streams, recording, run, "defense"
    if recording.messages:
        with suppress(_Enough, Exception), _soon():
            train(prepared.defenses["defense"], *given, on_round)


def _seconds(job: AttackJob, context: AttackContext) -> float | None:
    """On one thread; None: it reports no step soon, or cannot be played, as the run will say."""
    began, steps = time.perf_counter(), list[tuple[float, int, int]]()

    def on_step(done: int, total: int) -> None:
        steps.append((time.perf_counter() - began, done, total))
        if len(steps) > 1 and steps[-1][0] > ENOUGH:
            raise _Enough

    try:
        with _soon():
            job.attack.measure(context, job.threat_model, on_step)
        return time.perf_counter() - began
    except _Enough:
        if not steps:
            return None
        (first, start, _), (last, done, total) = steps[0], steps[-1]
        each = last / done if done == start else (last - first) / (done - start)
        return last + each * (total - done)
    except Exception:
        return None


class _Enough(BaseException):
    """Enough steps were played: no error that anything within handles."""


@contextmanager
def _soon() -> Iterator[None]:
    """Ends what takes longer than ``PATIENCE``, where the system has alarms."""

    def late(*given: object) -> None:
        raise _Enough

    if not hasattr(signal, "setitimer") or current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def powers_of(config: AuditConfig, prepared: Prepared, patience: float = inf) -> Iterator[Power]:
    """Each attack once for each adversary, whatever the parts of its work.

    Args:
        patience: seconds that each may take, about.
    """
    seen = set()
    for job in jobs_of(config, prepared):
        key = job.index, job.threat_model.name
        if key not in seen:
            seen.add(key)
            context = context_of(config, prepared, RunDirectory(Path()), job)  # writes nothing
            for claim, metrics in job.attack.power(context, job.threat_model, patience):
                yield Power(job.attack_name, claim, job.threat_model.name, metrics)
