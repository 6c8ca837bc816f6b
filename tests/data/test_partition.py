import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpaudit.data.partition import Partition, split
from dpaudit.errors import ConfigError, DataError
from dpaudit.files.options import PartitionOptions, partition_options

FALSE_FAILURE = 1e-9
LABELS = np.repeat(np.arange(10), 100)[np.random.default_rng(0).permutation(1000)]
EVERY_KIND = [
    partition_options("even"),
    partition_options("interleaved"),
    partition_options("dirichlet", alpha=1.0),
    partition_options("dirichlet-equal", alpha=0.5),
    partition_options("by-class"),
]
every_kind = pytest.mark.parametrize("options", EVERY_KIND, ids=lambda options: options.kind)


def deal(options: str | PartitionOptions, n_agents: int = 7, seed: int = 1, **more) -> Partition:
    return split(LABELS, n_agents, options, np.random.default_rng(seed), **more)


def histogram(partition: Partition) -> np.ndarray:
    """[n_agents, n_classes]: how many records of every class every agent holds."""
    n_classes = int(partition.labels.max()) + 1
    return np.stack(
        [np.bincount(partition.labels[i], minlength=n_classes) for i in partition.indices]
    )


@every_kind
@settings(max_examples=20)
@given(n_agents=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_no_record_is_held_twice_and_none_is_made_up(
    options: PartitionOptions, n_agents: int, seed: int
) -> None:
    partition = deal(options, n_agents, seed)
    held = np.concatenate(partition.indices)
    assert partition.n_agents == n_agents
    assert len(set(held.tolist())) == len(held) == partition.sizes.sum()
    assert 0 <= held.min() <= held.max() < 1000
    assert all((np.diff(part) > 0).all() for part in partition.indices)


@every_kind
def test_a_partition_depends_on_its_generator_alone(options: PartitionOptions) -> None:
    first, again, other = deal(options), deal(options), deal(options, seed=2)
    same = [np.array_equal(a, b) for a, b in zip(first.indices, again.indices, strict=True)]
    assert all(same)
    assert not np.array_equal(first.indices[0], other.indices[0])


@every_kind
def test_labels_may_be_a_tensor(options: PartitionOptions) -> None:
    from_tensor = split(torch.from_numpy(LABELS), 7, options, np.random.default_rng(1))
    np.testing.assert_array_equal(from_tensor.indices[3], deal(options).indices[3])


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("even", [142] * 7),
        ("interleaved", [143] * 6 + [142]),
        ("by-class", [2 * 71] * 7),
    ],
)
def test_even_splits_have_the_sizes_of_their_definition(kind: str, sizes: list[int]) -> None:
    assert deal(kind).sizes.tolist() == sizes


def test_equal_dirichlet_parts_are_equal() -> None:
    assert deal(EVERY_KIND[3]).sizes.tolist() == [142] * 7
    assert split(LABELS, 10, EVERY_KIND[3], np.random.default_rng(0)).sizes.sum() == 1000


def test_even_and_interleaved_blocks_share_one_order() -> None:
    order = np.random.default_rng(1).permutation(1000)
    assert deal("even").indices[2].tolist() == sorted(order[2 * 142 : 3 * 142])
    assert deal("interleaved").indices[2].tolist() == sorted(order[2::7])


def test_the_dirichlet_split_holds_every_record() -> None:
    partition = deal(EVERY_KIND[2])
    assert partition.sizes.sum() == 1000
    assert (histogram(partition).sum(0) == 100).all()


def test_a_shard_by_class_holds_one_class_where_sizes_divide() -> None:
    partition = deal(partition_options("by-class", shards=2), n_agents=10)
    assert ((histogram(partition) > 0).sum(1) <= 2).all()
    assert set(histogram(partition).flatten().tolist()) <= {0, 50, 100}


def shares_of_first_agent(alpha: float, draws: int) -> np.ndarray:
    """Of every class, over draws: 10 classes of 1,000 records, 4 agents."""
    rng, labels = np.random.default_rng(20240611), np.repeat(np.arange(10), 1000)
    options = partition_options("dirichlet", alpha=alpha)
    tables = [histogram(split(labels, 4, options, rng))[0] / 1000 for _ in range(draws)]
    return np.concatenate(tables)


@pytest.mark.parametrize("alpha", [0.25, 1.0, 5.0])
def test_dirichlet_shares_have_the_moments_of_the_distribution(alpha: float) -> None:
    """Mean 1/4 and variance (1/4)(3/4) / (4 alpha + 1); cutting moves a share by 1e-3 at most.

    A redraw, for an agent below 10 of 10,000 records, happens with probability below 2e-6.
    """
    shares = shares_of_first_agent(alpha, draws=300)
    variance = (1 / 4) * (3 / 4) / (4 * alpha + 1)
    z, n = norm.isf(FALSE_FAILURE / 2), len(shares)
    assert abs(shares.mean() - 1 / 4) <= z * np.sqrt(variance / n) + 1e-3
    spread = (shares - 1 / 4) ** 2
    assert abs(spread.mean() - variance) <= z * spread.std() / np.sqrt(n) + 1e-3


def test_a_dirichlet_split_is_redrawn_until_all_have_a_batch() -> None:
    options = partition_options("dirichlet", alpha=0.3)
    assert min(deal(options, 10, seed).sizes.min() for seed in range(30)) >= 10
    assert min(deal(options, 10, seed, minimum=32).sizes.min() for seed in range(30)) >= 32


def test_equal_dirichlet_parts_are_as_uneven_as_alpha_says() -> None:
    uneven, flat = (deal(partition_options("dirichlet-equal", alpha=a)) for a in (0.1, 100.0))
    assert histogram(uneven).std(1).min() > 2 * histogram(flat).std(1).max()


@pytest.mark.parametrize("alpha", [1e-3, 1e-8])
def test_an_impossible_dirichlet_split_is_given_up(
    alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.data.partition.REDRAWS", 100)
    with pytest.raises(DataError, match=r"(?s)none of 100 draws .* raise alpha"):
        deal(partition_options("dirichlet", alpha=alpha), 30)


@pytest.mark.parametrize("kind", ["even", "interleaved", "by-class"])
def test_too_few_records_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match="lower n_agents"):
        deal(kind, 1001)
    with pytest.raises(DataError, match="has 100 of the 1000 records where 101 are needed"):
        deal(kind, 10, minimum=101)


def test_no_agents_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        deal("even", 0)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("evn", {}, "did you mean"),
        ("dirichlet", {}, "alpha: Field required"),
        ("dirichlet", {"alpha": 0}, "alpha: Input should be greater than 0"),
        ("dirichlet", {"alpha": float("inf")}, "alpha: Input should be a finite number"),
        ("even", {"alpha": 1}, "alpha: Extra inputs are not permitted"),
        ("by-class", {"shards": 0}, "shards: Input should be greater than 0"),
    ],
)
def test_a_misspelt_partition_or_option_is_refused(kind: str, options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        partition_options(kind, **options)


@pytest.mark.parametrize("indices", [[[0, 1], [1, 2]], [[0], [1000]], [[-1], [2]]])
def test_records_held_twice_or_not_there_are_refused(indices: list) -> None:
    with pytest.raises(ValueError, match=r"held|disjoint"):
        Partition(tuple(np.array(i) for i in indices), LABELS)


def test_of_a_subset_some_hold_equal_parts_and_others_nothing() -> None:
    options = partition_options("subset", holders=6)
    found = deal(options, 40)
    assert sorted(found.sizes.tolist()) == [0] * 34 + [1000 // 6] * 6
    held = np.concatenate(found.indices)
    assert len(set(held.tolist())) == len(held)
    again, other = deal(options, 40), deal(options, 40, seed=2)
    assert [a.tolist() for a in again.indices] == [a.tolist() for a in found.indices]
    assert other.sizes.tolist() != found.sizes.tolist()
    assert deal(partition_options("subset", holders=7)).sizes.tolist() == [142] * 7


@pytest.mark.parametrize(
    ("holders", "minimum", "said"),
    [(41, 1, "holders = 41, of 40 agents"), (6, 200, "166 of the 1000 records where 200")],
)
def test_a_subset_that_cannot_be_dealt_is_refused(holders: int, minimum: int, said: str) -> None:
    with pytest.raises(DataError, match=said):
        deal(partition_options("subset", holders=holders), 40, minimum=minimum)


def test_more_agents_than_records_are_told_of_the_subset() -> None:
    with pytest.raises(DataError) as error:
        deal("even", 1001)
    assert '"subset"' in error.value.problems[0].help
