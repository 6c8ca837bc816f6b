"""What readings of rounds add up to, sizes of games and of covariances, value by value."""

from dataclasses import replace
from math import inf, isnan, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from dpaudit.defense.contract import Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering import leak as leaks
from dpaudit.game.filtering.leak import EVERY_ROUND, RoundReading, leak_of
from dpaudit.game.game import Game
from dpaudit.game.matrices import NotLocal
from dpaudit.game.network.gossip import Gossip as Network
from dpaudit.game.probing import sparse_probe
from dpaudit.game.runs import play, round_shape
from dpaudit.game.runs.play import SteepLosses
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.game.step_inputs import CanaryGradient, ChosenNoise
from dpaudit.game.worst_case import layers
from dpaudit.graphs.graph import build_graph
from tests.game.test_adversary import EAVESDROPPER, curious
from tests.game.test_values_of_laws import Toy, toy

NOTHING: Any = None


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def reading(*shifts: tuple[int, torch.Tensor], **of: Any) -> RoundReading:
    """Of uses with a column each, under two draws, of which the second is of Laplace noise."""
    k = of.pop("k", 1)
    columns = {(j, k, i): shift for i, (j, shift) in enumerate(shifts)}
    about = {
        "messages": [("x", 0), ("x", 1)], "whiten": np.eye(2), "gain": np.zeros((2, 0)),
        "columns": columns, "shifts": dict(shifts), "resolved": torch.ones(2, dtype=torch.bool),
        "shown": {}, "noiseless": {}, "draws": np.eye(2),
        "laplace": torch.tensor([False, True]), "exact": True, "has_laplace": True,
    }  # fmt: skip
    return RoundReading(**{**about, **of})


def lasting(**of: Any) -> Any:
    about = {"is_lasting": True, "batches": 1, "filled": 1, "directions": 5, **of}
    return SimpleNamespace(**about)


def test_a_loss_is_pure_where_laplace_draws_alone_move() -> None:
    """Draws have the variance 1, so that a loss is sqrt(2) times what one moves by."""
    own = reading((EVERY_ROUND, vector(0.0, -0.5)))
    found = leak_of([own, own], lasting())
    assert found.pure.tolist() == pytest.approx([2 * 0.5 * sqrt(2)])
    assert found.parts == pytest.approx((0.5 * sqrt(2),) * 2)
    assert found.is_pure
    assert leak_of([own], lasting(filled=3)).pure.tolist() == pytest.approx([3 * 0.5 * sqrt(2)])
    assert len(leak_of([own], lasting(filled=3)).parts) == 3
    for other in (
        reading((EVERY_ROUND, vector(0.1, 0.5))),
        own._replace(exact=False),
        own._replace(has_laplace=False),
    ):
        mixed = leak_of([own, other], lasting())
        assert isnan(mixed.pure[0])
        assert mixed.has_laplace
    shown = leak_of([own, own._replace(noiseless={EVERY_ROUND: "x"})], lasting())
    assert (shown.pure.tolist(), shown.noiseless) == ([inf], {EVERY_ROUND: "x"})
    assert shown.by_use[0].low == inf
    rounded = leak_of([reading((EVERY_ROUND, vector(1e-13, 0.5)))], lasting())
    assert rounded.is_pure


def test_uses_of_rounds_are_apart_if_they_show_alone() -> None:
    plain = {"has_laplace": False, "laplace": torch.tensor([False, False])}

    def separate(*rounds: RoundReading, batches: int = 1) -> bool:
        return leaks._is_separate(list(rounds), lasting(batches=batches))  # type: ignore[arg-type]

    first, second = (reading((k, vector(1.0, 0.0)), k=k, **plain) for k in (1, 2))
    assert separate(first, second)
    assert not separate(second, first)
    late = reading((1, vector(0.5, 0.0)), (2, vector(0.0, 1.0)), k=2, **plain)
    assert not separate(first, late)
    faint = reading((1, vector(1e-13, 0.0)), (2, vector(0.0, 1.0)), k=2, **plain)
    assert separate(first, faint)
    apart = reading((1, vector(1.0, 0.0)), (2, vector(0.0, 1.0)), **plain)
    assert separate(apart, batches=2)
    assert not separate(apart._replace(has_laplace=True), batches=2)
    leaning = reading((1, vector(1.0, 0.0)), (2, vector(1e-3, 1.0)), **plain)
    assert not separate(leaning, batches=2)
    assert separate(reading((EVERY_ROUND, vector(1.0, 0.0)), **plain))


def test_a_round_reveals_batches_by_their_shift() -> None:
    plain = reading((1, vector(3.0, -4.0)), (2, vector(0.0, 0.0)), has_laplace=False, k=7)
    assert plain.reveals() == {7: 5.0}
    laplace = reading((1, vector(3.0, -4.0)), k=7)
    assert laplace.reveals() == {7: pytest.approx(4 * sqrt(2))}
    assert laplace._replace(noiseless={1: "x"}).reveals() == {7: inf}
    two = reading((1, vector(3.0, 0.0)), (2, vector(0.0, 2.0)), has_laplace=False)
    assert two.reveals() == {1: 3.0}


def test_a_bound_beyond_the_sum_of_sizes_is_that_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    H = torch.tensor([[2.0, -1.0], [-1.0, 2.0]]).double()  # sums: 2 and, without signs, 6
    for low, y, ends in (
        (5.0, [3.0, 2.5], (5.0, 5.5)),
        (3.0, [3.0, 2.5], (4.0, 5.5)),  # a coordinate for each use gives 4
        (5.0, [4.0, 2.5], (5.0, 6.0)),
        (5.6, [3.0, 2.5], (5.6, 5.6)),
    ):
        monkeypatch.setattr(leaks, "_by_barrier", lambda H, gap, low=low, y=y: (low, np.array(y)))
        found = leaks.certified(H)
        assert (found.low, found.high) == ends
        assert found.y.tolist() == ([3.0, 3.0] if ends[1] == 6.0 else y)
    monkeypatch.setattr(leaks, "MOST", 1)
    assert leaks.certified(H)[:2] == (4.0, 6.0)
    same = leaks.certified(H.abs())
    assert (same.low, same.high, same.y.tolist()) == (6.0, 6.0, [3.0, 3.0])
    with pytest.raises(ValueError, match="not finite"):
        leaks.certified(torch.tensor([[inf]]))


def test_few_coordinates_reach_less() -> None:
    """Three uses that repel one another: at best 120 degrees apart, in a plane."""
    H = 1.5 * torch.eye(3).double() - 0.5
    line, plane, space = (leaks.worst_directions(H, d) for d in (1, 2, 3))
    assert line.low == pytest.approx(0.0)
    assert plane.low == pytest.approx(4.5)
    assert space.low == pytest.approx(4.5)
    for found in (line, plane, space):
        assert found.high == pytest.approx(4.5)
    assert leaks.worst_directions(torch.ones(2, 2).double(), 1) == (4.0, 4.0)
    assert leaks.worst_directions(torch.zeros(0, 0).double(), 3) == (0.0, 0.0)


def test_a_game_has_points_and_own_noise() -> None:
    """A toy draws twice for each agent, and takes a gradient of each."""
    every, own = (GameShape.of(toy(4), model) for model in (EAVESDROPPER, curious(1)))
    assert (every.observed, every.draws, every.width, every.points) == (4, 8, 4, 1)
    assert own.observed == 3 + 2  # what it and its neighbours send, and its own draws
    assert (every.n_agents, every.entries) == (4, None)
    wide = GameShape.of(replace(toy(4), width=3), EAVESDROPPER)
    assert (wide.observed, wide.draws, wide.width) == (4, 8, 4)


@pytest.mark.parametrize(("gradients", "points"), [(3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_points_of_agents_are_rounded_up(monkeypatch, gradients: int, points: int) -> None:
    footprint = SimpleNamespace(of=lambda *_: SimpleNamespace(gradients=gradients))
    monkeypatch.setattr(round_shape, "Footprint", footprint)
    assert GameShape.of(toy(4), EAVESDROPPER).points == points


def test_the_largest_step_counts_of_sparse_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*sizes: int) -> Any:
        parts = [SimpleNamespace(nnz=n) for n in sizes]
        return SimpleNamespace(alone=SimpleNamespace(earlier=parts[:1], noise=parts[1:]))

    asked: list[int] = []

    def steps_of(observer: Any, n_rounds: int) -> Any:
        asked.append(n_rounds)
        return [step(1, 2), step(3, 4), step(2, 1)]

    monkeypatch.setattr(round_shape, "steps_of", steps_of)
    monkeypatch.setattr(round_shape, "SPARSE_FROM", 4)
    assert round_shape._entries(toy(4), EAVESDROPPER) == 7
    assert round_shape._entries(toy(4, n_rounds=1), EAVESDROPPER) == 7
    assert asked == [2, 1]
    assert round_shape._entries(toy(3), EAVESDROPPER) is None
    assert round_shape._entries(replace(toy(4), width=3), EAVESDROPPER) is None

    def far(*_: Any) -> Any:
        raise NotLocal("far")

    monkeypatch.setattr(round_shape, "steps_of", far)
    assert round_shape._entries(toy(4), EAVESDROPPER) is None


def test_steep_losses_are_at_models_that_the_record_reaches(monkeypatch) -> None:
    """Runs without and with the record, and three of noise alone, whose deviation is 1."""
    noise = [-1.0, 0.0, 1.0]
    beyond = 1.01 * play.REACHED
    rounds = [
        (1, [0, 1], [[0.0, 0.0], [0.5 * beyond, 0.0], *([n, 0.0] for n in noise)]),
        (2, [1, 0, 2], [[4.0, 1.0, 9.0], [4.0 + beyond, 1.0 - beyond, 9.0],
                        *([n, n, n] for n in noise)]),
        (3, [0], [[7.0], [99.0], *([n] for n in noise)]),
    ]  # fmt: skip
    models = [(k, askers, torch.tensor(m, dtype=torch.float64)) for k, askers, m in rounds]
    monkeypatch.setattr(play, "_models", lambda game, n: iter(models))
    found = SteepLosses.of(toy(4), (0, 1), 3)
    assert found.first.tolist() == [2, 2, 0, 0]
    assert found.centre.tolist() == pytest.approx([1.0 - beyond / 2, 4.0 + beyond / 2, 0.0, 0.0])
    assert found.slope.tolist() == pytest.approx([play.STEEP, play.STEEP, 0.0, 0.0])
    assert SteepLosses.of(toy(4), (1,), 3).first.tolist() == [0, 2, 0, 0]


def test_noise_that_is_partly_known_has_what_is_left() -> None:
    """Two draws that are shared by agents 0 and 1, and by 1 and 2; each has its own beside them."""
    factor = torch.tensor(
        [[1.0, 0.0, 2.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 2.0, 0.0], [0.0, -1.0, 0.0, 0.0, 3.0]]
    ).double()
    known = ({0, 1}, {1, 2}, {0}, {1}, {2})
    gossip = Network((torch.eye(3).double(),), 2, factor, tuple(map(frozenset, known)))
    torch.testing.assert_close(gossip.unknown(()), factor @ factor.mT)
    found = gossip.unknown((0,))
    expected = torch.zeros(3, 3).double()
    expected[1:, 1:] = torch.tensor([[5.0, -1.0], [-1.0, 10.0]])
    torch.testing.assert_close(found, expected)
    correlated = Network((torch.eye(3).double(),), 2, factor, tuple(frozenset() for _ in known))
    sigma = factor @ factor.mT
    left = sigma[1:, 1:] - sigma[1:, :1] @ sigma[:1, 1:] / sigma[0, 0]
    torch.testing.assert_close(correlated.unknown((0,))[1:, 1:], left)
    assert not correlated.unknown((0,))[0].any()


def test_who_hears_whom_follows_from_the_weights() -> None:
    first, second = torch.eye(3).double(), torch.eye(3).double()
    first[0, 1], second[1, 2] = 0.5, 0.5
    gossip = Network((first, second), 5, torch.eye(3).double(), (frozenset(),) * 3)
    assert [gossip.heard(t, EAVESDROPPER) for t in range(3)] == [[1], [2], [1]]
    assert [gossip.heard(t, curious(0)) for t in range(2)] == [[1], []]
    assert [gossip.heard(t, curious(1)) for t in range(2)] == [[], [2]]
    link = ThreatModel(name="link", links=((2, 1),))
    assert [gossip.heard(t, link) for t in range(2)] == [[], [2]]
    assert (gossip.n_agents, gossip.period) == (3, 2)


def test_as_many_records_as_a_canary_is_drawn() -> None:
    canary = CanaryGradient(0, 4.0, torch.tensor([1.5, 0.0]), batch_size=8)
    each = canary.per_record(torch.zeros(2, 1, 1))
    assert each.shape == (2, 1, 2, 1)
    assert each[0].flatten().tolist() == [4.0, 4.0]
    small = replace(canary, drawn=torch.tensor([0.4, 0.0])).per_record(torch.zeros(2, 1, 1))
    assert small.shape == (2, 1, 1, 1)


def test_units_may_have_an_axis_for_records() -> None:
    units = torch.ones(2, 3, 4, 1).double()
    like = torch.zeros(2, 3, 4, 1).double()
    assert torch.equal(ChosenNoise({"y": units}).gaussian("y", 2.0, like), 2 * units)
    with pytest.raises(ValueError, match="has numbers for each record"):
        ChosenNoise({"y": units[0]}).gaussian("y", 2.0, like)
    asked = ChosenNoise()
    asked.gaussian("a", 1.0, torch.zeros(1, 2, 3))
    asked.laplace("b", 1.0, torch.zeros(1, 1, 2))
    asked.laplace("none", 1.0, torch.zeros(1, 2, 0))
    assert (asked.n_draws, [*asked.draws]) == (8, ["a", "b"])
    each = asked.one_of_each(10, 1)
    assert [tuple(u.shape) for u in each.values()] == [(10, 2, 3), (10, 1, 2)]
    whole = torch.cat([u.flatten(1) for u in each.values()], 1)
    assert torch.equal(whole[1:9], torch.eye(8).double())
    assert not whole[[0, 9]].any()


def test_a_wide_model_is_played_up_to_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight links and four agents; of two draws for each of four agents and four rows sent."""
    setting = Setting(build_graph("ring", 4), (40,) * 4, 3)
    game = replace(Game.of(Toy(), setting, 1, "add-remove"), coordinates=3)
    for d, most in ((1, 12**2), (3, 36**2)):
        for entries, wide in ((most, False), (most - 1, True)):
            monkeypatch.setattr(layers, "ENTRIES", entries)
            assert layers._is_too_wide(game, d) is wide
    played: list[int] = []
    monkeypatch.setattr(layers, "_weights", lambda *given: played.append(given[2]))  # type: ignore[func-returns-value]
    for entries, is_played in ((3 * 12, True), (3 * 12 - 1, False)):
        monkeypatch.setattr(layers, "ENTRIES", entries)
        played.clear()
        assert layers._by_dimension(game, EAVESDROPPER) is None
        assert played == ([1, 3] if is_played else [])
        for other in (replace(game, coordinates=1), replace(game, held=2)):
            played.clear()
            assert layers._by_dimension(other, EAVESDROPPER) is None
            assert layers._by_coordinate(other, EAVESDROPPER) is None
            assert layers._by_mixing(other, EAVESDROPPER) is None
            assert played == []
    asked: list[int] = []
    monkeypatch.setattr(Game, "first_sent", lambda *given: (asked.append(1), {})[1])
    monkeypatch.setattr(layers, "ENTRIES", 3 * 12 - 1)
    assert layers._by_coordinate(game, EAVESDROPPER) is None
    assert asked == []
    monkeypatch.setattr(layers, "ENTRIES", 3 * 12)
    assert layers._by_coordinate(game, EAVESDROPPER) is None
    assert asked


def test_entries_of_a_matrix_are_kept_in_some_columns() -> None:
    A = sparse.csr_array(np.array([[1.0, 2.0, 0.0], [0.0, -3.0, 4.0]]))
    some = sparse_probe._with_columns(A, np.array([True, False, True]))
    assert some.toarray().tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 4.0]]
    assert some.nnz == 2
    assert A.nnz == 4
    assert sparse_probe._reached(some).tolist() == [True, False, True]
    cancels = sparse.csr_array(np.array([[1.0, 1.0], [1.0, -1.0]]))
    effects = sparse.csr_array(np.array([[1.0, 2.0], [-1.0, -2.0 + 1e-15]]))
    product = sparse_probe._product(cancels, effects)
    assert product.toarray().tolist() == [[0.0, 0.0], [2.0, pytest.approx(4.0)]]
