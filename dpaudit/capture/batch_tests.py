"""Whether batches are drawn as stated: each record by itself, with one probability.

Runs with other seeds show which records their batches hold. Sums of that over rounds, runs and
records vary as of independent draws, or more or less: as of batches of one size, passes over the
data, records that come together, or batches that every run repeats. Batches of independent draws
are simulated beside them, so that no statistic needs a law of its own.
"""

from collections.abc import Sequence
from math import ceil, log, log1p

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.finding import Metric
from dpaudit.statistics.bounds import clopper_pearson

from .runs import ProgramRun

SIMULATED, SEED = 200, 31
MOST = 5.0  # standard deviations of what is simulated: by chance in one of 1e5 right programs
MOST_PAIRED = 256  # records of which pairs are compared
LEVEL = 0.05  # level of the interval of the rate
LEAST_USES, MOST_RUNS = 3_000, 200  # so many uses show a rate that is 10% too high
EMPTY = 1e-9  # the chance of a batch without records, of which none is played
NEVER = 1e-3  # the chance of a record to be in no batch, above which their number is not known
SUMS = {  # sums over [runs, rounds, records], and what they show if they are not random
    (2,): "the sizes of batches",
    (0, 1): "the uses of each record",
    (1,): "the uses of each record in a run",
    (0,): "the batches of runs with other seeds",
    (1, 2): "the numbers of records in a run",
    (0, 2): "the numbers of records in a round",
}


def runs_for_rate(plain: ProgramRun, victims: Sequence[int], rate: float) -> int:
    """How many seeds show all records of each agent, and 10% more of their rate."""
    own = [batches_of(plain, victim) for victim in victims]
    uses, rounds = min(sum(map(len, of)) for of in own), min(map(len, own))
    shown = log(NEVER) / log1p(-rate) / max(1, rounds)
    return min(MOST_RUNS, ceil(max(shown, LEAST_USES / max(1, uses))))


def batches_of(run: ProgramRun, agent: int) -> list[tuple[str, ...]]:
    """The digests of the records of each batch."""
    return [taken.digests for taken in run.batches if taken.agent == agent]


def drawn_rate(
    runs: Sequence[ProgramRun], victims: Sequence[int], rate: float
) -> tuple[str, Metric]:
    """Why batches are not known to be Poisson samples, or ""; and the rate beside the stated one.

    Args:
        runs: with seeds of their own.
    """
    held = [_held([batches_of(run, victim) for run in runs]) for victim in victims]
    if any(len(X) > 1 and X.size and (X[0] == X).all() for X in held):
        return "batches are the same in runs with other seeds", Metric(value=rate)
    found = Metric(value=rate, low=0.0, high=1.0, n=sum(X.size for X in held))
    if any(X.size == 0 or (1 - rate) ** (X.size / X.shape[2]) > NEVER for X in held):
        return "so few batches do not show all records", found
    if any((1 - rate) ** X.shape[2] > EMPTY for X in held):
        return "a batch may hold no record, and what is done then was not tried", found
    counts = [(int(X.sum()), X.size) for X in held]
    highs = [float(clopper_pearson(k, n, LEVEL / 2)) for k, n in counts]
    lows = [1 - float(clopper_pearson(n - k, n, LEVEL / 2)) for k, n in counts]
    high = max(highs)
    found = found.model_copy(update={"low": min(lows), "high": high})
    error = [MOST * (rate * (1 - rate) / n) ** 0.5 for _, n in counts]
    above = [k / n - rate > e for (k, n), e in zip(counts, error, strict=True)]
    if any(above):
        return f"batches hold a record with probability {high:.3g}", found
    if high > 1.1 * rate:
        return "so few batches that the rate may be 10% larger", found
    rng = np.random.default_rng(SEED)
    for victim, X in zip(victims, held, strict=True):
        own, drawn = _sums(X), np.array([_sums(_like(X, rng)) for _ in range(SIMULATED)])
        for what, off in zip(SUMS.values(), _apart(own, drawn), strict=True):
            if off > MOST:
                return f"{what} of agent {victim} are not those of independent draws", found
    rows = [X[:, : min(Y.shape[1] for Y in held)] for X in held]
    drawn = np.array([_paired([_like(X, rng) for X in rows]) for _ in range(SIMULATED)])
    if _apart(_paired(rows), drawn).max() > MOST:
        return "records come together, or apart, more often than independent draws", found
    return "", found


def _held(batches: Sequence[Sequence[Sequence[str]]]) -> Array:
    """Which records each batch holds, [runs, rounds, records], in rounds that all runs have."""
    n_rounds = min(map(len, batches))
    index = {d: i for i, d in enumerate(sorted({d for run in batches for b in run for d in b}))}
    X = np.zeros((len(batches), n_rounds, len(index)))
    for r, run in enumerate(batches):
        for k, batch in enumerate(run[:n_rounds]):
            X[r, k, [index[d] for d in batch]] = 1.0
    return X


def _like(X: Array, rng: np.random.Generator) -> Array:
    return (rng.random(X.shape) < X.mean()).astype(float)


def _sums(X: Array) -> Array:
    """Sums of squares of the sums of centred X over each of ``SUMS``."""
    centred = X - X.mean()
    return np.array([np.square(centred.sum(axis=axes)).sum() for axes in SUMS])


def _paired(held: Sequence[Array]) -> Array:
    """Sums of squares, and of fourth powers, of correlations of pairs of records of all agents."""
    Z = np.concatenate([X.reshape(-1, X.shape[2]) for X in held], axis=1)
    Z = Z[:, np.linspace(0, Z.shape[1] - 1, min(MOST_PAIRED, Z.shape[1])).astype(int)]
    Z = Z - Z.mean(axis=0)
    Z = Z / np.maximum(np.linalg.norm(Z, axis=0), 1e-12)
    correlations = np.square(Z.T @ Z - np.eye(Z.shape[1]))
    return np.array([correlations.sum(), np.square(correlations).sum()])


def _apart(own: Array, drawn: Array) -> Array:
    """How many standard deviations of simulated statistics lie between them and ours."""
    spread = np.maximum(drawn.std(axis=0), 1e-12 * np.abs(own) + 1e-300)
    return np.asarray(np.abs(own - drawn.mean(axis=0)) / spread)
