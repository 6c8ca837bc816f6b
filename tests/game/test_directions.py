"""The worst directions of one record's gradients: the semidefinite value and its certificate."""

import itertools
from math import inf, nan, sqrt
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import Interval
from dpaudit.game.filtering import leak
from dpaudit.game.filtering.leak import Leak, Together, certified, met, parts, worst_directions

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


OPPOSED = torch.tensor([[2.0, -1.0], [-1.0, 3.0]], dtype=torch.float64)


def test_weights_are_a_certificate_of_the_worst_directions() -> None:
    """Of [[a, b], [b, c]] they are a + |b| and c + |b|, and diag(y) - H has a determinant of 0."""
    low, high, y = certified(OPPOSED)
    assert (low, high) == pytest.approx((7.0, 7.0), rel=1e-6)
    assert low <= 7.0 <= high
    assert y.tolist() == pytest.approx([3.0, 4.0], abs=0.01)  # along a flat optimum
    assert float(torch.linalg.eigvalsh(y.diag() - OPPOSED).min()) >= 0
    positive = certified(OPPOSED.abs())
    assert (positive.low, positive.high, positive.y.tolist()) == (7.0, 7.0, [3.0, 4.0])
    with pytest.raises(ValueError, match="not finite"):
        certified(OPPOSED * nan)


def test_many_uses_have_ends_that_need_no_solution(monkeypatch) -> None:
    monkeypatch.setattr(leak, "MOST", 1)
    assert certified(OPPOSED)[:2] == (5.0, 7.0)  # a coordinate for each, and all in one direction
    alike = OPPOSED + torch.tensor([[0.0, 3.0], [3.0, 0.0]])
    alike = torch.block_diag(alike, torch.zeros(1, 1).double())
    alike[0, 2] = alike[2, 0] = -0.25
    assert certified(alike)[:2] == (8.5, 9.5)
    assert worst_directions(alike, d=2) == (8.5, 9.5)


def test_in_few_coordinates_directions_are_found_by_ascent() -> None:
    """Three equal vectors that repel: at 120 degrees in a plane, 9 - 3; on a line 9 + 2."""
    H = 2 * torch.eye(3, dtype=torch.float64) + 1 - 2 * torch.ones(3, 3).double()
    low, high = worst_directions(H + torch.eye(3).double(), d=2)
    assert low == pytest.approx(6 + 3, rel=1e-6)
    assert high == pytest.approx(low, rel=1e-5)
    assert worst_directions(H + torch.eye(3).double(), d=1).low == pytest.approx(0.0, abs=1e-9)


def test_uses_of_one_inclusion_are_summed() -> None:
    """Inclusion 1 has two uses; the second shows in both rounds, and so beside that of 2."""
    one, other = torch.tensor([3.0, 0.0]).double(), torch.tensor([1.0, 1.0]).double()
    rounds = [{(1, 1, 0): one}, {(1, 2, 0): other, (2, 2, 1): other}, {(1, 2, 0): one}]
    together = Together.of(rounds)
    assert together.uses == [(1, 1, 0), (1, 2, 0), (2, 2, 1)]
    assert together.H.tolist() == [[9.0, 0.0, 0.0], [0.0, 11.0, 2.0], [0.0, 2.0, 2.0]]
    assert together.independent() == {1: 22.0, 2: 4.0}
    assert together.inclusions(3).tolist() == [[20.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0] * 3]
    assert Together.of([]).uses == []


@pytest.mark.parametrize(
    "G, shift, n",
    [
        (torch.eye(4), 0.5, 4),
        (torch.diag(torch.tensor([9.0, 1.0])), 9 / sqrt(10), 1),
        (torch.ones(3, 3), 1.0, 3),
        (torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), 0.0, 0),
        (torch.tensor([[4.0, -2.0], [-2.0, 1.0]]), 2.0, 1),
    ],
)
def test_a_number_shows_several_inclusions(G: torch.Tensor, shift: float, n: int) -> None:
    assert met(G.double()) == pytest.approx((shift, n))


def test_inclusions_hang_together_by_what_exceeds_rounding() -> None:
    G = torch.eye(4)
    G[0, 3] = G[3, 0] = -0.5
    assert sorted(sorted(part.tolist()) for part in parts(G, 0.4)) == [[0, 3], [1], [2]]
    assert [part.tolist() for part in parts(G, 0.5)] == [[0], [1], [2], [3]]


def leak_of(*squares: float, pure: tuple[float, ...] | None = None, **changed: Any) -> Leak:
    losses = torch.tensor([nan] * len(squares) if pure is None else pure)
    uses = tuple(Interval(square, 4 * square) for square in squares)
    fields: dict[str, Any] = {"noiseless": {}, "parts": (), "separate": True, "has_laplace": False}
    return Leak(uses, **{**fields, "pure": losses, **changed})


def test_a_leak_is_read_by_rounds_of_some_batches() -> None:
    found = leak_of(1.0, 4.0, inf, 0.0, batches=2, noiseless={3: "x", 4: "y"})
    assert found.by_round.tolist() == [2.0, inf]
    assert found.shown == (2, "x")
    assert leak_of(9.0, batches=2).by_round.tolist() == [3.0]
    assert leak_of(9.0).shown is None
    assert leak_of(9.0, noiseless={0: "x"}).shown == (1, "x")  # used in all rounds
    mixed = leak_of(1.0, 1.0, pure=(1.0, nan), has_laplace=True)
    whole = leak_of(1.0, 1.0, pure=(1.0, 2.0), has_laplace=True)
    assert [one.is_pure for one in (found, leak_of(), mixed, whole)] == [False, False, False, True]
    assert [one.is_proven for one in (found, mixed, whole)] == [True, False, True]


def test_a_leak_is_composed_of_what_each_use_reveals() -> None:
    """A game that gives back the shifts it is asked for, and their family."""
    game: Any = SimpleNamespace(releases=lambda shifts, family: (family, shifts))
    gaussian = leak_of(1.0, 4.0, 0.0, 9.0, batches=2, apart=(16.0, 25.0))
    assert gaussian.mechanism(game, None) == ("gaussian", [1.0, 2.0, 3.0])
    assert gaussian.mechanism(game, 1) == ("gaussian", [1.0, 2.0])
    assert gaussian.mechanism(game, 2) == ("gaussian", [3.0])
    assert gaussian.mechanism(game, None, high=True) == ("gaussian", [4.0, 5.0])
    assert leak_of(1.0, 4.0).mechanism(game, None, high=True) == ("gaussian", [2.0, 4.0])
    assert leak_of(0.0, 1e-30).mechanism(game, None) == ()
    pure = leak_of(1.0, 4.0, pure=(0.5, 2.0), has_laplace=True)
    assert pure.mechanism(game, None) == ("laplace", [0.5, 2.0])
    (one, other) = leak_of(1.0, pure=(1.0,), parts=(4.0, 2.0)).mechanism(game, None)
    assert {one.noise_multiplier, other.noise_multiplier} == {0.25, 0.5}
    assert (one.family, one.sampling_rate) == ("laplace", 1.0)
