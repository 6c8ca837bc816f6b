"""How often the batches of a run hold a record, counted beside the rate that is declared."""

from math import inf
from typing import NamedTuple

from dpaudit.defense.claim_accounting import AccountedClaim
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.statistics.bounds import clopper_pearson
from dpaudit.training.classification import Classification

from .jobs import Prepared

COUNTED = 100_000  # records, of which it is counted how many batches hold them
MOST_NUMBERS = 2 * 10**7  # limit for the draws that decide it
LEVEL = 0.05  # level of an interval of the rate


class Rate(NamedTuple):
    """How often batches hold a record, over how often they should."""

    value: float
    low: float
    high: float
    n: int  # records that could have been drawn


def counted_rate(prepared: Prepared) -> Rate | None:
    """By counting what the batches of the run hold; None: agents hold no records.

    Batches of a fixed size, or in turn, hold so many records of each agent exactly. Of Poisson
    batches the number is binomial; agents with other rates make it vary less (Hoeffding 1956).
    """
    problem, defense, sizes = prepared.learned.problem, prepared.defense, prepared.setting.sizes
    if not isinstance(problem, Classification):
        return None
    one = max(sizes) * len(sizes)
    trials = max(1, min(COUNTED // max(1, sum(sizes)), MOST_NUMBERS // one))
    counts, there = problem.uses(prepared.streams, 1, defense.batch_size, defense.drawing, trials)
    used, n = int(counts[:, there].sum()), trials * sum(sizes)
    expected = trials * sum(min(defense.batch_size, size) for size in sizes)
    twice = bool((counts[:, there] > 1).any())
    if defense.drawing != "poisson" or defense.batch_size >= max(sizes):
        exact = used == expected and not twice
        return Rate(1.0, 1.0, 1.0, n) if exact else Rate(used / expected, 0.0, inf, n)
    high, rest = (float(clopper_pearson(count, n, LEVEL / 2)) for count in (used, n - used))
    low = 1 - rest
    return Rate(used / expected, low * n / expected, high * n / expected, n)


def records_finding(
    index: int,
    claim: Claim,
    adversary: str,
    accounted: AccountedClaim,
    rate: Rate | None,
    at: Prepared,
) -> Finding:
    """How often a batch holds a record of the agent that is worst off, beside what is declared."""
    defense, size = at.defense, at.setting.sizes[accounted.victim]
    metrics, missing, notes = dict[str, Metric](), list[str](), tuple[str, ...]()
    if rate is None:
        notes = ("agents hold one function each, which every round uses whole",)
    else:
        drawn = min(1.0, defense.batch_size / size)
        sampled = [r for r in accounted.most or () if r.sampling != "none"]
        declared = min((release.sampling_rate for release in sampled), default=1.0)
        metrics = {
            Name.SAMPLING_RATE: Metric(
                value=min(1.0, drawn * rate.value),
                low=min(1.0, drawn * rate.low),
                high=min(1.0, drawn * rate.high),
                n=rate.n,
            ),
            Name.DECLARED_RATE: Metric(value=declared),
        }
        if declared < drawn * (1 - 1e-9):
            missing.append(
                f"a release is declared at rate {declared:.3g}, batches are drawn at {drawn:.3g}"
            )
        other = {r.sampling for r in sampled} - {defense.drawing}
        if other and drawn < 1:
            missing.append(f"releases are declared as of {min(other)} batches")
        if rate.high == inf:
            missing.append("batches do not hold as many records as they should")
    return Finding(
        role=Role.RECORDS,
        kind="control",
        title="How often batches hold a record",
        claim=index,
        threat_model=adversary,
        metrics=metrics,
        notes=notes,
        not_examined=tuple(missing),
    )
