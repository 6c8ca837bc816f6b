"""What an audit takes and could prove, estimated before anything of it is done."""

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import NamedTuple

from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Metric
from dpaudit.training.run_directory import RunDirectory

from .costs import AuditCosts, estimate_costs
from .jobs import Prepared, context_of, jobs_of
from .run import Runtime, prepare


class Power(NamedTuple):
    """What one attack is expected to prove of one claim against one adversary."""

    attack: str
    claim: int  # index into the config's claims
    threat_model: str
    metrics: Mapping[str, Metric]


def outlook(config: AuditConfig, runtime: Runtime) -> tuple[AuditCosts, list[Power]]:
    """What ``run_audit`` would take and could prove; nothing is trained, attacked or written.

    Raises:
        DpauditError: the config, the data or the memory does not allow the audit.
    """
    prepared = prepare(config, runtime)
    costs = estimate_costs(config, prepared, runtime.max_memory, timed=True)
    return costs, list(powers_of(config, prepared))


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
