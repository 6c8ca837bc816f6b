"""Steps of the searches of gradient inversion, by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.gradient_inversion import (
    search,
)
from dpaudit.attacks.gradient_inversion.search import (
    LBFGS,
    Adam,
    CurvaturePairs,
    Iterate,
    Problems,
)

NOTHING: Any = None


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def pairs_of(s: Any, y: Any, gamma: float) -> CurvaturePairs:
    """One problem with three slots, of which these pairs fill the first."""
    D, P = len(s[0]), torch.zeros(1, 6, len(s[0])).double()
    for i, (one, other) in enumerate(zip(s, y, strict=True)):
        P[0, i], P[0, 3 + i] = vector(*one), vector(*other)
    assert P.shape[2] == D
    return CurvaturePairs(P, P @ P.mT, vector(gamma))


def test_a_newton_step_is_that_of_bfgs() -> None:
    """H = (I - r s y') H0 (I - r y s') + r s s', with r = 1 / s'y, pair by pair."""
    s, y, g = [(1.0, 0.0), (0.5, 1.0)], [(2.0, 1.0), (0.0, 3.0)], vector(1.0, -2.0)
    gamma = 0.7
    H = gamma * torch.eye(2).double()
    for one, other in zip(s, y, strict=True):
        a, b = vector(*one), vector(*other)
        r = 1 / float(a @ b)
        left = torch.eye(2).double() - r * torch.outer(a, b)
        H = left @ H @ left.T + r * torch.outer(a, a)
    found = search._newton(pairs_of(s, y, gamma), g[None], 3)
    torch.testing.assert_close(found[0], H @ g)
    none = search._newton(pairs_of([(0.0, 0.0)], [(0.0, 0.0)], 0.0), g[None], 1)
    torch.testing.assert_close(none[0], g)


def test_pairs_are_kept_in_turn_and_forgotten() -> None:
    """What did not move is not remembered; a pair without curvature leaves an empty slot."""
    pairs = pairs_of([(1.0, 0.0)], [(2.0, 0.0)], 0.5)
    s, y = torch.tensor([[0.0, 3.0]]).double(), torch.tensor([[5.0, 1.5]]).double()
    search._remember(pairs, s, y, torch.tensor([False]), 5)  # into slot (5 - 1) % 3
    assert pairs.P[0, 1].tolist() == [0.0, 3.0]
    assert pairs.P[0, 4].tolist() == [0.0, 1.5]
    torch.testing.assert_close(pairs.Q, pairs.P @ pairs.P.mT)
    assert pairs.gamma.tolist() == [4.5 / 2.25]
    search._remember(pairs, s, -y, torch.tensor([False]), 3)
    assert not pairs.P[0, 2].any()
    assert pairs.gamma.tolist() == [2.0]
    search._remember(pairs, s, y, torch.tensor([True]), 4)
    assert not pairs.P.any()
    assert pairs.gamma.tolist() == [0.0]
    memory = LBFGS().memory(torch.zeros(2, 7))
    assert [tuple(part.shape) for part in memory] == [(2, 20, 7), (2, 20, 20), (2,)]
    assert LBFGS().memory(torch.zeros(1, 50))[0].shape[1] == 100
    assert LBFGS().memory(torch.zeros(1, 2**14))[0].shape[1] == 32


def test_coordinates_on_a_bound_are_held() -> None:
    points = torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.5, 0.0]])
    gradients = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0, 0.0]])
    assert search._free(points, gradients, (0.0, 1.0)).tolist() == [[0, 1, 1, 0, 1, 1]]


def test_a_step_is_halved_until_it_gains_enough() -> None:
    """Of x^2 / 2 from 4 along -4: the whole step lands at 0; three times it gains nothing."""
    calls: list[Any] = []

    def loss(points: Tensor, problems: Tensor) -> Tensor:
        calls.append(problems.tolist())
        return points[:, 0].square() / 2 + problems * 100

    own = Problems(loss, torch.zeros(3, 1), (-20.0, 20.0), 0.0)
    points = torch.full((3, 1), 4.0).double()
    now = Iterate(
        torch.tensor([0, 1, 2]), points, 8.0 + 100 * torch.arange(3).double(), points.clone(), ()
    )
    direction = torch.tensor([[-4.0], [-12.0], [4.0]]).double()
    after, failed = search._search(own, now, direction, torch.ones(3).double())
    assert after.points.flatten().tolist() == [0.0, -2.0, 4.0]
    assert after.losses.tolist() == [0.0, 102.0, 208.0]
    assert after.gradients.flatten().tolist() == [0.0, -2.0, 4.0]
    assert failed.tolist() == [False, False, True]
    assert calls == [[0, 1, 2], [1, 2], *[[2]] * 18]


def test_the_better_half_of_each_group_goes_on() -> None:
    losses, groups = vector(3.0, 1.0, 2.0, 5.0, 5.0, 7.0), torch.tensor([0, 0, 0, 1, 1, 2])
    assert search._better_half(losses, groups).tolist() == [False, True, True, True, False, True]
    assert search._least(losses, groups).tolist() == [1.0, 5.0, 7.0]
    own = Problems(lambda x, p: x[:, 0].log(), vector(0.0)[None], (-math.inf, 2.0), 0.0)
    assert own.width == 1.0
    assert own._replace(bounds=(-1.0, 2.0)).width == 3.0
    losses, slopes = own.slopes(torch.tensor([[-1.0], [0.0], [2.0]]), NOTHING)
    assert losses.tolist() == [math.inf, math.inf, pytest.approx(math.log(2))]  # of -inf too
    assert slopes.flatten().tolist() == [-1.0, 0.0, 0.5]


def test_adam_steps_along_half_a_cosine() -> None:
    """The second of four steps, of gradients 2 and then -1, in a box that ends at 0.3."""
    slopes = iter([torch.tensor([[-1.0]]), torch.tensor([[7.0]])])

    class Given(Problems):
        def slopes(self, points: Tensor, problems: Tensor) -> Any:
            return torch.zeros(1), next(slopes)

    own = Given(NOTHING, torch.zeros(1, 1), (-9.0, 9.0), 0.0)
    for signed, first in ((False, 2.0), (True, 1.0)):
        slopes = iter([torch.tensor([[-1.0]]), torch.tensor([[7.0]])])
        method = Adam(0.5, signed)
        start = torch.zeros(1, 1)
        now = Iterate(torch.tensor([0]), start, torch.zeros(1), torch.tensor([[2.0]]), method.memory(start))  # fmt: skip
        now = method.step(own, now, 1, 4)
        assert float(now.points) == pytest.approx(-0.5, rel=1e-6)
        now = method.step(own, now, 2, 4)
        mean = (0.09 * first - 0.1) / (1 - 0.81)
        square = (0.000999 * first**2 + 0.001) / (1 - 0.999**2)
        rate = 0.5 * (1 + math.cos(math.pi / 4)) / 2
        expected = -0.5 - rate * mean / (square**0.5 + 1e-8)
        assert float(now.points) == pytest.approx(expected, rel=1e-4)
        assert float(now.gradients) == 7.0
