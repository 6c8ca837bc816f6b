"""Which agent holds which records: even, interleaved, by class, or with Dirichlet label skew.

Every split is a function of the labels, the options and a generator; the index lists are kept, so
that a run can be repeated, resumed and audited record by record.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import DataError
from dpaudit.options import (
    ByClassPartition,
    DirichletPartition,
    EqualDirichletPartition,
    PartitionOptions,
    partition_options,
)

FEWEST = 10  # records that a Dirichlet split leaves every agent at the least
REDRAWS = 10_000  # Dirichlet draws before giving up on that

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """The records of every agent, as indices into the training set; no record is held twice.

    Args:
        indices: one ascending [size] int64 array per agent.
        labels: [n] int64, of the whole training set.

    Raises:
        ValueError: an index is out of range or held twice.
    """

    indices: tuple[Indices, ...]
    labels: Indices

    def __post_init__(self) -> None:
        held = np.concatenate(self.indices)
        if len(np.unique(held)) != len(held) or not (
            0 <= held.min() <= held.max() < self.n_records
        ):
            raise ValueError("agents must hold disjoint sets of records of the training set")

    @property
    def n_agents(self) -> int:
        return len(self.indices)

    @property
    def n_records(self) -> int:
        """In the training set, those that nobody holds included."""
        return len(self.labels)

    @cached_property
    def sizes(self) -> Indices:
        """[n_agents]."""
        return np.array([len(i) for i in self.indices], dtype=np.int64)

    @cached_property
    def histogram(self) -> Indices:
        """[n_agents, n_classes]: how many records of each class every agent holds."""
        n_classes = int(self.labels.max()) + 1
        return np.stack([np.bincount(self.labels[i], minlength=n_classes) for i in self.indices])

    def to_arrays(self) -> dict[str, Indices]:
        """The partition as flat arrays, for safetensors or, by ``tolist``, JSON."""
        return {"indices": np.concatenate(self.indices), "sizes": self.sizes, "labels": self.labels}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Indices]) -> "Partition":
        """The inverse of ``to_arrays``."""
        cuts = np.cumsum(arrays["sizes"])[:-1]
        return cls(tuple(np.split(arrays["indices"], cuts)), arrays["labels"])


def split(
    labels: ArrayLike,
    n_agents: int,
    options: str | PartitionOptions,
    rng: np.random.Generator,
    minimum: int = 1,
) -> Partition:
    """Deal the records of a training set to the agents.

    Args:
        labels: [n] integers >= 0.
        n_agents: at least 1.
        options: a name stands for that partition with its default options.
        rng: the only source of randomness.
        minimum: records that every agent needs, a batch for instance; the Dirichlet split redraws
            until every agent has at least ``max(FEWEST, minimum)``.

    Raises:
        DataError: too few records for that many agents.
        ConfigError: no partition of this name.
    """
    labels = np.asarray(labels, dtype=np.int64)
    options = partition_options(options) if isinstance(options, str) else options
    if n_agents < 1:
        raise DataError(f"a partition needs at least 1 agent, got {n_agents}")
    if len(labels) < n_agents * max(minimum, 1):
        raise DataError(
            f"{len(labels)} records cannot give each of {n_agents} agents {max(minimum, 1)}; "
            "lower n_agents or the batch size"
        )
    parts = _KINDS[options.kind](labels, n_agents, options, rng, minimum)
    partition = Partition(tuple(np.sort(part) for part in parts), labels)
    if partition.sizes.min() < minimum:
        raise DataError(
            f"partition {options.kind} leaves an agent with {partition.sizes.min()} records where "
            f"{minimum} are needed; lower n_agents or the batch size"
        )
    return partition


def names() -> dict[str, str]:
    """Every kind of partition, with one line about it."""
    return {kind: (deal.__doc__ or "").splitlines()[0] for kind, deal in _KINDS.items()}


def _even(
    labels: Indices, n_agents: int, options: Any, rng: np.random.Generator, minimum: int
) -> list[Indices]:
    """equal parts of one random order; the remainder is left out"""
    size = len(labels) // n_agents
    return list(rng.permutation(len(labels))[: n_agents * size].reshape(n_agents, size))


def _interleaved(
    labels: Indices, n_agents: int, options: Any, rng: np.random.Generator, minimum: int
) -> list[Indices]:
    """agent i holds positions i, i + n_agents, ... of one random order, as in PartPSP"""
    order = rng.permutation(len(labels))
    return [order[i::n_agents] for i in range(n_agents)]


def _by_class(
    labels: Indices,
    n_agents: int,
    options: ByClassPartition,
    rng: np.random.Generator,
    minimum: int,
) -> list[Indices]:
    """records in order of their class, cut in equal shards, dealt at random (arXiv:1602.05629)"""
    n_shards = n_agents * options.shards
    size = len(labels) // n_shards
    if size == 0:
        raise DataError(
            f"partition by-class: {len(labels)} records cannot be cut in {n_shards} shards; "
            "lower shards or n_agents"
        )
    shuffled = rng.permutation(len(labels))  # which records of a class go together is random
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shards = order[: n_shards * size].reshape(n_shards, size)
    return list(rng.permutation(shards).reshape(n_agents, -1))


def _dirichlet(
    labels: Indices,
    n_agents: int,
    options: DirichletPartition,
    rng: np.random.Generator,
    minimum: int,
) -> list[Indices]:
    """each class is spread over the agents by its own draw from Dir(alpha)"""
    classes = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    counts = np.array([len(c) for c in classes])
    fewest = max(FEWEST, minimum)
    for _ in range(REDRAWS):
        shares = rng.dirichlet(np.full(n_agents, options.alpha), size=len(classes))
        cuts = (shares.cumsum(1)[:, :-1] * counts[:, None]).astype(np.int64)
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, None]).sum(0)
        if sizes.min() >= fewest:
            dealt = [np.split(c, cut) for c, cut in zip(classes, cuts, strict=True)]
            return [np.concatenate(parts) for parts in zip(*dealt, strict=True)]
    raise DataError(
        f"partition dirichlet with alpha={options.alpha}: in none of {REDRAWS} draws had each of "
        f"{n_agents} agents {fewest} of the {len(labels)} records; raise alpha, or lower n_agents "
        "or the batch size"
    )


def _dirichlet_equal(
    labels: Indices,
    n_agents: int,
    options: EqualDirichletPartition,
    rng: np.random.Generator,
    minimum: int,
) -> list[Indices]:
    """each agent has its own class mix from Dir(alpha), and all hold equally many records"""
    mixes = rng.dirichlet(np.full(len(np.unique(labels)), options.alpha), size=n_agents)
    stock = [rng.permutation(np.flatnonzero(labels == c)).tolist() for c in np.unique(labels)]
    size = len(labels) // n_agents
    parts: list[list[int]] = [[] for _ in range(n_agents)]
    for taker in rng.permuted(np.tile(np.arange(n_agents), (size, 1)), axis=1).flat:
        left = np.array([len(s) > 0 for s in stock])
        weights = mixes[taker] * left
        weights = weights if weights.sum() > 0 else left.astype(float)
        parts[taker].append(stock[rng.choice(len(stock), p=weights / weights.sum())].pop())
    return [np.array(part, dtype=np.int64) for part in parts]


_KINDS: dict[str, Callable[[Indices, int, Any, np.random.Generator, int], list[Indices]]] = {
    "even": _even,
    "interleaved": _interleaved,
    "dirichlet": _dirichlet,
    "dirichlet-equal": _dirichlet_equal,
    "by-class": _by_class,
}
