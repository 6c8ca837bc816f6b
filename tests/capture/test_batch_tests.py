"""Whether batches are Poisson samples: right ones, and others that look like them by their sizes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture.batch_tests import (
    LEAST_USES,
    MOST_RUNS,
    SUMS,
    _sums,
    drawn_rate,
    runs_for_rate,
)
from dpaudit.statistics.bounds import clopper_pearson

Rng = np.random.Generator
Batch = Callable[[Rng, int], np.ndarray]  # of a generator of the run and a round: who is drawn
N, RATE, ROUNDS, RUNS = 80, 0.25, 4, 100


def poisson(rng: Rng, k: int) -> np.ndarray:
    return rng.random(N) < RATE


def fixed(rng: Rng, k: int) -> np.ndarray:
    return np.isin(np.arange(N), rng.choice(N, int(N * RATE), replace=False))


def pairs(rng: Rng, k: int) -> np.ndarray:
    return np.repeat(rng.random(N // 2) < RATE, 2)


def exclusive(rng: Rng, k: int) -> np.ndarray:
    """Of each pair never both."""
    one = rng.random(N // 2) < RATE
    return np.stack([one, ~one & (rng.random(N // 2) < RATE / (1 - RATE))], axis=1).ravel()


def of_one_seed(rng: Rng, k: int) -> np.ndarray:
    return np.random.default_rng(k).random(N) < RATE


def first_of_one_seed(rng: Rng, k: int) -> np.ndarray:
    return of_one_seed(rng, k) if k == 0 else poisson(rng, k)


def often(rng: Rng, k: int) -> np.ndarray:
    """One record twice as often as others, and the next one half as often."""
    return rng.random(N) < RATE * np.concatenate([[2.0, 0.0], np.ones(N - 2)])


def more(rng: Rng, k: int) -> np.ndarray:
    return rng.random(N) < 1.2 * RATE


def together(rng: Rng, k: int) -> np.ndarray:
    """All records are drawn more often in one round than in another."""
    return rng.random(N) < RATE * (1.5 if k % 2 else 0.5)


def runs(*of_agents: Batch, seed: int = 1) -> list[Any]:
    found = []
    for r in range(RUNS):
        batches = [
            SimpleNamespace(agent=i, digests=tuple(f"{i}-{j}" for j in np.flatnonzero(drawn)))
            for i, of in enumerate(of_agents)
            for rng in [np.random.default_rng([seed, r, i])]
            for drawn in [of(rng, k) for k in range(ROUNDS)]
        ]
        found.append(SimpleNamespace(batches=batches))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_poisson_batches_are_found_to_be_so(seed: int) -> None:
    """A right program fails with probability 1e-4; the seeds are fixed."""
    why, rate = drawn_rate(runs(poisson, poisson, seed=seed), (0, 1), RATE)
    assert why == ""
    assert rate.value == RATE
    assert rate.n == 2 * RUNS * ROUNDS * N
    assert 0.95 * RATE < rate.ends[0] < RATE < rate.ends[1] < 1.05 * RATE


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (fixed, "the sizes of batches of agent 1"),
        (pairs, "the sizes of batches of agent 1"),
        (exclusive, "records come together, or apart"),
        (of_one_seed, "batches are the same in runs with other seeds"),
        (first_of_one_seed, "the uses of each record of agent 1"),
        (often, "the uses of each record of agent 1"),
        (more, "batches hold a record with probability 0.3"),
        (together, "the sizes of batches of agent 1"),
    ],
)
def test_other_batches_are_not_taken_for_poisson(of: Batch, said: str) -> None:
    why, _ = drawn_rate(runs(poisson, of), (0, 1), RATE)
    assert why.startswith(said)


def test_agents_that_draw_alike_are_seen() -> None:
    """Each agent by itself is right; who knows one agent's batch knows the other's."""
    found = runs(poisson)
    for run in found:
        again = [
            SimpleNamespace(agent=1, digests=tuple(f"1{d[1:]}" for d in batch.digests))
            for batch in run.batches
        ]
        run.batches += again
    assert drawn_rate(found, (0,), RATE)[0] == ""
    assert "records come together" in drawn_rate(found, (0, 1), RATE)[0]


def test_batches_that_may_be_empty_were_not_tried() -> None:
    """Of 72 records 1e-9 of all batches are, of 73 fewer."""
    found = runs(poisson)
    for run in found:
        for batch in run.batches:
            batch.digests = tuple(d for d in batch.digests if int(d[2:]) < 72)
    assert "a batch may hold no record" in drawn_rate(found, (0,), RATE)[0]


def test_few_batches_show_no_rate() -> None:
    few = runs(poisson, seed=2)
    assert "do not show all records" in drawn_rate(few[:5], (0,), RATE)[0]  # 0.75**20 > 1e-3
    assert "may be 10% larger" in drawn_rate(few[:7], (0,), RATE)[0]  # 280 uses
    assert "do not show all records" in drawn_rate(few, (2,), RATE)[0]  # it takes none


@pytest.mark.parametrize(
    ("size", "rounds", "rate", "expected"),
    [
        (10, 4, 0.25, LEAST_USES // 40),
        (1_000, 4, 0.25, 7),  # 24.01 batches, of which each record is in one
        (1, 1, 0.01, MOST_RUNS),
    ],
)
def test_so_many_runs_show_a_rate(size: int, rounds: int, rate: float, expected: int) -> None:
    batch = SimpleNamespace(agent=0, digests=tuple(map(str, range(size))))
    plain = SimpleNamespace(batches=[batch] * rounds)
    assert runs_for_rate(plain, (0,), rate) == expected  # type: ignore[arg-type]


def test_sums_are_of_all_but_one_or_two_axes() -> None:
    X = np.zeros((2, 2, 2))
    X[0, 0] = 1.0  # two of eight: 0.75 there, and -0.25 elsewhere
    by_axes = dict(zip(SUMS, _sums(X), strict=True))
    assert by_axes == {
        (2,): 1.5**2 + 3 * 0.5**2,
        (0, 1): 0.0,
        (1,): 2 * 0.5**2 + 2 * 0.5**2,
        (0,): 2 * 0.5**2 + 2 * 0.5**2,
        (1, 2): 2 * 1.0,
        (0, 2): 2 * 1.0,
    }


def test_the_interval_of_a_rate_is_of_both_ends() -> None:
    """Of each agent, at half of the level on each side: the lowest end and the highest one."""
    found = runs(poisson, poisson)
    _, rate = drawn_rate(found, (0, 1), RATE)
    n, ends = N * ROUNDS * RUNS, []
    for agent in (0, 1):
        k = sum(
            len(batch.digests) for run in found for batch in run.batches if batch.agent == agent
        )
        ends.append(
            (1 - float(clopper_pearson(n - k, n, 0.025)), float(clopper_pearson(k, n, 0.025)))
        )
    assert (rate.value, rate.n) == (RATE, 2 * n)
    assert rate.low == pytest.approx(min(low for low, _ in ends))
    assert rate.high == pytest.approx(max(high for _, high in ends))
