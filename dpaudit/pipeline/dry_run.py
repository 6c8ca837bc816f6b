"""What an audit takes and could prove, told before anything of it is done."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from math import inf
from pathlib import Path
from typing import NamedTuple

from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Metric
from dpaudit.training.run_directory import RunDirectory

from .caller_objects import NOTHING, CallerObjects
from .jobs import Prepared, context_of, jobs_of
from .memory import Need, plan_of
from .run import Runtime, prepare, prepared_again
from .time_needed import Took, estimate


class Ahead(NamedTuple):
    """A world's training, or an attack by one adversary, before it is begun."""

    part: str
    seconds: float | None  # on one thread; None: unknown
    size: int | None  # bytes; None: unknown
    n_jobs: int = 1  # that it is done in


class Power(NamedTuple):
    """What one attack is expected to prove of one claim against one adversary."""

    attack: str
    claim: int  # index into the config's claims
    threat_model: str
    metrics: Mapping[str, Metric]


class Cost(NamedTuple):
    """What all parts of an audit take."""

    parts: list[Ahead]
    seconds: float | None  # of all of it, on so many cores; None: unknown
    cores: int


class Outlook(NamedTuple):
    """What an audit takes, and what its attacks can foretell of their power."""

    cost: Cost
    powers: list[Power]


def outlook(config: AuditConfig, runtime: Runtime) -> Outlook:
    """What ``run_audit`` would take and could prove; nothing is trained, attacked or written.

    Raises:
        DpauditError: the config, the data or the memory does not allow the audit.
    """
    prepared = prepare(config, runtime)
    return Outlook(cost_of(config, prepared, runtime), list(powers_of(config, prepared)))


def cost_of(
    config: AuditConfig, prepared: Prepared, runtime: Runtime, own: CallerObjects = NOTHING
) -> Cost:
    """Time and memory of a prepared audit. Raises DpauditError if it does not fit in memory."""
    again = partial(prepared_again, runtime, own)
    plan = plan_of(config, prepared, runtime.max_memory, again)
    needed = estimate(config, prepared)
    training, attacks = ([], []) if needed is None else needed
    parts = [*_ahead(plan.training, training), *_ahead(plan.attacks, attacks)]
    workers = [plan.workers(some, runtime.workers) for some in (plan.training, plan.attacks)]
    seconds = None if needed is None else needed.seconds(workers[0], workers[1])
    return Cost(parts, seconds, max(workers))


def _ahead(needs: list[Need], took: list[Took]) -> Iterator[Ahead]:
    """Memory and time of the same jobs, in the same order; no time where none is known."""
    seconds = [one.seconds for one in took] or [None] * len(needs)
    paired = list(zip(needs, seconds, strict=True))
    for part, group in groupby(paired, key=lambda pair: _part(pair[0])):
        jobs = list(group)
        times = [time for _, time in jobs if time is not None]
        sizes = [need.size for need, _ in jobs if need.unknown is None]
        yield Ahead(
            part,
            sum(times) if len(times) == len(jobs) else None,
            max(sizes) if len(sizes) == len(jobs) else None,
            len(jobs),
        )


def _part(need: Need) -> str:
    """What a job is a part of."""
    if (job := need.job) is None:
        return need.part
    if job.index is None:
        return f"examination, {job.attack_name}, {job.threat_model.name}"
    return f"attack {job.index:02d}, {job.attack_name}, {job.threat_model.name}"


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
            context = context_of(config, prepared, RunDirectory(Path()), job)  # nothing is written
            for claim, metrics in job.attack.power(context, job.threat_model, patience):
                yield Power(job.attack_name, claim, job.threat_model.name, metrics)
