"""The worst directions of one record's gradients: the semidefinite value and its certificate."""

import itertools

import networkx as nx
import numpy as np
import pytest
import torch

from dpaudit.game.filtering.leak import worst_directions

ROUNDS = 10


def gram(graph: nx.Graph, attacker: int, victim: int) -> torch.Tensor:
    """Columns of a record used in every round, from explicit matrices: models W (x + noise).

    W = D^-1 (A + I) in the order of the graph's nodes; noise 1; the view is what the attacker's
    neighbours and itself send, and its own noise.
    """
    A = nx.to_numpy_array(graph)
    n = len(A)
    W = (A + np.eye(n)) / (A.sum(1, keepdims=True) + 1)
    L = np.zeros((ROUNDS * n, ROUNDS * n))
    for t, s in itertools.product(range(ROUNDS), repeat=2):
        if s <= t:
            power = np.linalg.matrix_power(W, t - s)
            L[t * n : (t + 1) * n, s * n : (s + 1) * n] = power
    heard = [i for i in range(n) if A[attacker, i] or i == attacker]
    rows = [t * n + i for t in range(ROUNDS) for i in heard]
    own = np.eye(ROUNDS * n)[[t * n + attacker for t in range(ROUNDS)]]
    B = np.vstack([L[rows], own])
    projector = np.linalg.pinv(B) @ B
    uses = [t * n + victim for t in range(ROUNDS)]
    return torch.from_numpy(projector[np.ix_(uses, uses)])


def test_florentine_families_one_hop_away() -> None:
    """The published bound, the sum of absolute values, is 10.911, above what all links tell (10);
    the semidefinite value is 9.3986."""
    H = gram(nx.florentine_families_graph(), attacker=0, victim=1)
    found = worst_directions(H, d=100)
    assert float(H.abs().sum()) == pytest.approx(10.911, abs=5e-4)
    assert found.low == pytest.approx(9.3986, abs=5e-5)
    assert found.high == pytest.approx(found.low, rel=1e-6)


def test_where_nothing_is_negative_one_direction_is_the_worst() -> None:
    H = torch.rand(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = worst_directions(H @ H.mT, d=1)
    assert found.low == found.high == pytest.approx(float((H @ H.mT).sum()))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_between_the_ends_and_no_less_than_the_best_signs(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    for _ in range(20):
        S = torch.randn(k, 4, dtype=torch.float64, generator=generator)
        H = S @ S.mT
        found = worst_directions(H, d=50)
        signs = torch.tensor(list(itertools.product([1.0, -1.0], repeat=k)), dtype=H.dtype)
        best = float((signs @ H * signs).sum(1).max())
        assert max(best, float(H.trace())) <= found.low * (1 + 1e-6)
        assert found.low <= found.high <= float(H.abs().sum()) + 1e-9
        assert found.high == pytest.approx(found.low, rel=1e-4)


def test_two_uses_are_solved_by_hand() -> None:
    """H = [[a, b], [b, c]] is a + c + 2 |b|, and in one coordinate by opposite signs."""
    H = torch.tensor([[2.0, -1.0], [-1.0, 3.0]], dtype=torch.float64)
    assert worst_directions(H, d=2).low == pytest.approx(7.0)
    one = worst_directions(H, d=1)
    assert one.low <= 7.0 <= one.high


def test_a_leak_without_uses_is_nothing() -> None:
    assert worst_directions(torch.zeros(0, 0, dtype=torch.float64), d=3) == (0.0, 0.0)
