"""Uses that meet in one round: the releases of which the view is a part leak no less."""

from itertools import product
from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import delta
from dpaudit.defense.gossip import releases
from dpaudit.game.filtering.leak import Met, RoundReading, Together, Use, grams, leak_of, met, parts
from tests.some_fast import fast_if

RATE = 0.3


def columns_of(angle: float) -> dict[Use, torch.Tensor]:
    found = {(1, 1, 0): (1.2, 0.0), (2, 2, 0): (0.9 * np.cos(angle), 0.9 * np.sin(angle))}
    return {use: torch.tensor(column, dtype=torch.float64) for use, column in found.items()}


def really(columns: dict[Use, torch.Tensor], epsilon: float, signs: tuple[int, int]) -> float:
    """delta of the mixture over both draws, either way round, by integration in the plane."""
    axis = np.linspace(-9, 9, 401)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    silent = np.exp(-(x**2).sum(-1) / 2) / (2 * np.pi)
    there = np.zeros_like(silent)
    for drawn in product((0, 1), repeat=2):
        weight = np.prod([RATE if d else 1 - RATE for d in drawn])
        parts = zip(drawn, signs, columns.values(), strict=True)
        mean = sum(d * sign * column.numpy() for d, sign, column in parts)
        there += weight * np.exp(-((x - mean) ** 2).sum(-1) / 2) / (2 * np.pi)
    cell = (axis[1] - axis[0]) ** 2
    pairs = ((there, silent), (silent, there))
    return max(float(np.maximum(p - np.exp(epsilon) * q, 0).sum() * cell) for p, q in pairs)


@pytest.mark.parametrize("angle", fast_if((0.0, 2.0).__contains__, [0.0, 0.7, np.pi / 2, 2.0, 3.0]))
def test_a_mixture_with_correlated_shifts_leaks_no_more(angle) -> None:
    columns = columns_of(angle)
    squares = Together.of([columns]).independent()
    mechanism = releases([1 / sqrt(squares[j]) for j in (1, 2)], "poisson", RATE)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        most = delta(mechanism, epsilon).high
        worst = max(really(columns, epsilon, signs) for signs in ((1, 1), (1, -1)))
        assert worst <= most * (1 + 1e-4) + 1e-9  # the sum over the grid is off by less
        if angle == np.pi / 2:  # apart: the releases themselves
            assert worst == pytest.approx(most, rel=1e-3, abs=1e-6)
    assert squares[1] + squares[2] >= 1.2**2 + 0.9**2 + 2 * 1.2 * 0.9 * abs(np.cos(angle)) - 1e-9


def test_columns_of_a_use_over_several_rounds_are_one_column() -> None:
    one = torch.tensor([1.0, 2.0], dtype=torch.float64)
    rounds = [{(1, 1, 0): one}, {(1, 1, 0): one[:1], (2, 2, 0): 3 * one[:1]}]
    (uses, H) = grams(rounds, lambda use: 0)[0]
    assert uses == [(1, 1, 0), (2, 2, 0)]
    assert H.tolist() == [[6.0, 3.0], [3.0, 9.0]]
    apart = grams(rounds, lambda use: use[0])
    assert [H.item() for _, H in apart.values()] == [6.0, 9.0]
    assert Together.of([]).independent() == {}


def test_the_number_that_shows_most_inclusions_of_one_direction() -> None:
    """c_1 = (3, 0), c_2 = (1, 0), c_3 = (0, 2), one inclusion used twice; along their sum."""
    columns = {(1, 1, 0): (1.0, 0.0), (1, 1, 1): (2.0, 0.0), (2, 2, 0): (1.0, 0.0)}
    columns[(3, 2, 0)] = (0.0, 2.0)
    found = {use: torch.tensor(column, dtype=torch.float64) for use, column in columns.items()}
    G = Together.of([found]).inclusions(4)
    assert G.tolist() == [[9, 3, 0, 0], [3, 1, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0]]
    assert [part.tolist() for part in parts(G, 1e-9)] == [[0, 1], [2], [3]]
    assert met(G[:2, :2]) == Met(3.0, 1)  # 1 of both would be less than 3 of the first
    assert met(G[2:3, 2:3]) == Met(2.0, 1)
    assert met(G[3:, 3:]) == Met(0.0, 0)
    alike = met(torch.full((5, 5), 0.25))
    assert alike == Met(pytest.approx(0.5), 5)  # type: ignore[arg-type]
    against = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert met(against) == Met(0.0, 0)


@pytest.mark.parametrize(("shown", "is_separate"), [(0.9e-12, True), (1.1e-12, False)])
def test_what_shows_below_1e_12_deviations_changes_no_figure(shown, is_separate) -> None:
    """Columns are whitened, so the limit is a mu of 1e-12, whatever the unit of the messages."""
    two_rounds = [{(1, 1, 0): [1.0]}, {(1, 1, 0): [shown], (2, 2, 0): [1.0]}]
    columns = [
        {use: torch.tensor(column, dtype=torch.float64) for use, column in in_round.items()}
        for in_round in two_rounds
    ]
    nothing = {"messages": [], "whiten": None, "gain": None, "resolved": None, "shown": {}}
    nothing |= {"shifts": {}, "noiseless": {}, "draws": None, "laplace": None}
    rounds = [RoundReading(columns=c, exact=True, has_laplace=False, **nothing) for c in columns]  # type: ignore[arg-type]
    game = SimpleNamespace(is_lasting=False, filled=1, batches=1, directions=10)
    leak = leak_of(rounds, game)  # type: ignore[arg-type]
    assert leak.separate == is_separate
    together = Together.of(columns).independent()
    assert [squared.high for squared in leak.by_use] == pytest.approx(
        [together[1], together[2]], rel=0, abs=3e-12
    )
