"""Which agent holds which records: even, at some alone, by class, or with Dirichlet label skew.

Every split is a function of the labels, the options and a generator; the index lists are kept, so
that a run can be repeated, resumed and audited record by record.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import DataError
from dpaudit.files.options import (
    ByClassPartition,
    DirichletPartition,
    EvenPartition,
    PartitionOptions,
    SubsetPartition,
    partition_options,
)

FEWEST = 10  # records that a Dirichlet split leaves every agent at the least
REDRAWS = 10_000  # Dirichlet draws before giving up on that

Indices = NDArray[np.int64]
Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Partition:
    """The records of every agent, as indices into the training set; no record is held twice.

    Args:
        indices: one [size] int64 array per agent.
        labels: [n_records] or [n_records, positions] int64 >= 0, of the whole training set.

    Raises:
        ValueError: an index is out of range or held twice.
    """

    indices: tuple[Indices, ...]
    labels: Indices

    def __post_init__(self) -> None:
        held = np.concatenate(self.indices)
        if held.min() < 0 or np.bincount(held, minlength=len(self.labels)).max() > 1:
            raise ValueError("agents must hold disjoint sets of records")
        if held.max() >= len(self.labels):
            raise ValueError(f"record {held.max()} is held, but there are {len(self.labels)}")

    @property
    def n_agents(self) -> int:
        return len(self.indices)

    def behind(self, n: int) -> "Partition":
        """The same parts after those of ``n`` agents that hold nothing."""
        return Partition((np.empty(0, np.int64),) * n + self.indices, self.labels)

    @cached_property
    def sizes(self) -> Indices:
        """[n_agents]: how many records every agent holds."""
        return np.array([len(held) for held in self.indices], dtype=np.int64)


def split(
    labels: ArrayLike, n_agents: int, options: str | PartitionOptions, rng: Rng, minimum: int = 1
) -> Partition:
    """Deal the records of a training set to the agents; the indices of each are ascending.

    Args:
        labels: [n_records] integers >= 0; [n_records, positions] are no classes to split by.
        n_agents: at least 1.
        options: a name stands for that partition with its default options.
        rng: all that the split depends on, beside the other arguments.
        minimum: records that every agent needs, a batch for instance. The Dirichlet split is
            redrawn until every agent has ``max(FEWEST, minimum)``.

    Raises:
        DataError: too few records, or too uneven, for that many agents; or a split by class of
            records that have no class.
        ConfigError: no partition of this name.
        ValueError: no agents.
    """
    if n_agents < 1:
        raise ValueError(f"n_agents must be positive, got {n_agents}")
    labels = np.asarray(labels, dtype=np.int64)
    options = partition_options(options) if isinstance(options, str) else options
    if labels.ndim > 1 and isinstance(options, DirichletPartition | ByClassPartition):
        raise DataError(
            "DPA030",
            f"partition {options.kind}: records have a label at each of {labels.shape[1]} "
            "positions; expected one label, which is their class",
            'set data.partition = "even", or data.text.labels = "record"',
        )
    match options:
        case EvenPartition(
            kind="even"
        ):  # equal parts of one random order; the remainder is left out
            size = len(labels) // n_agents
            order = rng.permutation(len(labels))[: n_agents * size]
            parts = list(order.reshape(n_agents, size))
        case EvenPartition():  # positions i, i + n_agents, ... of it: PartPSP's shards
            order = rng.permutation(len(labels))
            parts = [order[i::n_agents] for i in range(n_agents)]
        case ByClassPartition(shards=shards):
            parts = _by_class(labels, n_agents, shards, rng)
        case SubsetPartition(holders=holders):
            return _subset(labels, n_agents, holders, rng, minimum)
        case DirichletPartition(kind="dirichlet", alpha=alpha):
            parts = _dirichlet(labels, n_agents, alpha, rng, max(FEWEST, minimum))
        case DirichletPartition(alpha=alpha):
            parts = _dirichlet_equal(labels, n_agents, alpha, rng)
    if (fewest := min(len(part) for part in parts)) < max(minimum, 1):
        raise DataError(
            "DPA032",
            f"partition {options.kind}: an agent has {fewest} of the {len(labels)} records where "
            f"{max(minimum, 1)} are needed",
            'lower n_agents or the batch size, or take the partition "subset", in which only some '
            "agents hold records",
        )
    return Partition(tuple(np.sort(part) for part in parts), labels)


def _subset(labels: Indices, n_agents: int, holders: int, rng: Rng, minimum: int) -> Partition:
    """Equal parts at some agents, and none at the others."""
    if holders > n_agents:
        raise DataError(
            "DPA032",
            f"partition subset: holders = {holders}, of {n_agents} agents",
            "lower holders, or take more agents",
        )
    dealt = split(labels, holders, "even", rng, minimum)
    there = np.sort(rng.choice(n_agents, holders, replace=False))
    parts = [np.empty(0, np.int64)] * n_agents
    for agent, part in zip(there.tolist(), dealt.indices, strict=True):
        parts[agent] = part
    return Partition(tuple(parts), labels)


def _by_class(labels: Indices, n_agents: int, shards: int, rng: Rng) -> list[Indices]:
    """Sort by class, cut in equal shards, deal ``shards`` to each; the remainder is left out.

    Source: McMahan et al. 2017, section 3, arXiv:1602.05629.
    """
    n_shards = n_agents * shards
    size = len(labels) // n_shards
    shuffled = rng.permutation(len(labels))  # records of a class share a shard at random
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    dealt = rng.permutation(order[: n_shards * size].reshape(n_shards, size))
    return list(dealt.reshape(n_agents, shards * size))


def _dirichlet(
    labels: Indices, n_agents: int, alpha: float, rng: Rng, fewest: int
) -> list[Indices]:
    """Cut every class among the agents by shares from Dir(alpha), until all have ``fewest``."""
    classes = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    counts = np.array([len(c) for c in classes])
    for _ in range(REDRAWS):
        shares = rng.dirichlet(np.full(n_agents, alpha), size=len(classes))
        cuts = (shares.cumsum(1)[:, :-1] * counts[:, None]).astype(np.int64)
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, None]).sum(0)
        if sizes.min() >= fewest:
            dealt = [np.split(c, cut) for c, cut in zip(classes, cuts, strict=True)]
            return [np.concatenate(parts) for parts in zip(*dealt, strict=True)]
    raise DataError(
        "DPA032",
        f"partition dirichlet: none of {REDRAWS} draws with alpha={alpha} gave each of {n_agents} "
        f"agents {fewest} of the {len(labels)} records",
        "raise alpha, or lower n_agents or the batch size",
    )


def _dirichlet_equal(labels: Indices, n_agents: int, alpha: float, rng: Rng) -> list[Indices]:
    """Agents take turns in random order; each draws from its own mix of what classes are left."""
    stock = [rng.permutation(np.flatnonzero(labels == c)).tolist() for c in np.unique(labels)]
    mixes = rng.dirichlet(np.full(len(stock), alpha), size=n_agents)
    turns = np.tile(np.arange(n_agents), (len(labels) // n_agents, 1))
    parts: list[list[int]] = [[] for _ in range(n_agents)]
    for agent in rng.permuted(turns, axis=1).flat:
        left = np.array([len(records) > 0 for records in stock], dtype=np.float64)
        weights = mixes[agent] * left
        weights = weights if weights.sum() > 0 else left  # its mix has run out
        parts[agent].append(stock[rng.choice(len(stock), p=weights / weights.sum())].pop())
    return [np.array(part, dtype=np.int64) for part in parts]
