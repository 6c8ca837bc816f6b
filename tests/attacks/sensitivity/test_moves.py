"""How far noise and messages move: by hand, at, below and above each limit."""

from math import hypot, inf, nan, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import Tensor

from dpaudit.accounting.releases import Release
from dpaudit.attacks.sensitivity import (
    alignment,
    bounded_noise,
    other_agents,
    replay,
    unseen_inputs,
    worlds,
)
from dpaudit.attacks.sensitivity.declared import _is_as_much
from dpaudit.attacks.sensitivity.noise_log import DrawSizes
from dpaudit.attacks.sensitivity.noise_reach import Reach, _is_sum
from dpaudit.attacks.sensitivity.synthetic_records import (
    AtSeveralAgents,
    GivenGradient,
    Outweighing,
    RepeatedGradient,
    ScaledGradients,
    VacantPlace,
)
from dpaudit.defense import Gradient, Message


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Sums(Gradient):
    """Of agent i's batch: i + 1 in each coordinate, from records of a half and a half."""

    batch_size = 4
    batch = SimpleNamespace(labels=torch.zeros(3, 5))  # what is made of it has five records

    def __call__(self, X: Tensor, holders: Any = None) -> Tensor:
        return self.clipped_sum(X, inf, holders) / 4

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Any = None, norm: int = 2
    ) -> Tensor:
        rows = torch.arange(X.shape[-2]) if holders is None else holders
        return (rows[:, None] + 1.0).expand(X.shape).double()

    def per_record(self, X: Tensor, holders: Any = None, own: bool = False) -> Tensor:
        sums = self.clipped_sum(X[..., 0, :] if own else X, inf, holders)
        return torch.stack([sums / 2, sums / 2], dim=-2)


X = torch.zeros(3, 2).double()


@pytest.mark.parametrize(
    ("oracle", "clip_norm", "norm", "sums"),
    [
        (VacantPlace(Sums(), 1), 9.0, 2, [1, 2, 3]),
        (GivenGradient(Sums(), 1, vector(3, 3)), inf, 2, [1, 5, 3]),
        (GivenGradient(Sums(), 1, vector(3, 3)), 2 * sqrt(2), 2, [1, 4, 3]),
        (GivenGradient(Sums(), 1, vector(3, 3)), 2.0, 1, [1, 3, 3]),
        (AtSeveralAgents(Sums(), 1, vector(3, 3), (0, 2)), inf, 2, [4, 2, 6]),
        (Outweighing(Sums(), 1, 2, inf), inf, 2, [1, -2, 3]),
        (Outweighing(Sums(), 1, 2, 2 * sqrt(2)), inf, 2, [1, 0, 3]),
        (Outweighing(Sums(), 1, 1, 2.0), inf, 2, [1, 1, 3]),
        (Outweighing(Sums(), 1, 2, inf), sqrt(2), 2, [1, 1, 3]),
        (Outweighing(Sums(), 1, 2, inf, 9 * sqrt(2)), 9 * sqrt(2), 2, [1, 2 - 9, 3]),
        (Outweighing(Sums(), 1, 2, inf, 9 * sqrt(2)), inf, 2, [1, 2 - 900, 3]),
        (RepeatedGradient(Sums(), 1, vector(3, 3), 5), inf, 2, [1, 15, 3]),
        (RepeatedGradient(Sums(), 1, vector(3, 3), 5), sqrt(2), 2, [1, 5, 3]),
        (RepeatedGradient(Sums(), 1, vector(3, 3), 0), sqrt(2), 2, [1, 0, 3]),
        (RepeatedGradient(Sums(), 1, vector(3, 3), 2, 4.0), 6 * sqrt(2), 2, [1, 2 * 3 + 3 * 6, 3]),
        (ScaledGradients(Sums(), 0.5), inf, 2, [0.5, 1, 1.5]),
    ],
)
def test_one_record_more_adds_its_clipped_gradient(oracle, clip_norm, norm, sums) -> None:
    found = oracle.clipped_sum(X, clip_norm, None, norm)
    assert found.tolist() == [pytest.approx([s, s]) for s in sums]
    some = oracle.clipped_sum(X[:2], clip_norm, torch.tensor([2, 1]), norm)
    assert some[:, 0].tolist() == pytest.approx([sums[2], sums[1]])
    if clip_norm == inf:
        assert (oracle(X)[:, 0] * 4).tolist() == pytest.approx(sums if not isinstance(oracle, RepeatedGradient)
                                                              else [1, 15, 3])  # fmt: skip


@pytest.mark.parametrize(
    ("oracle", "added"),
    [
        (VacantPlace(Sums(), 1), [0, 0, 0]),
        (GivenGradient(Sums(), 1, vector(3, 3)), [0, 3, 0]),
        (AtSeveralAgents(Sums(), 1, vector(3, 3), (0, 2)), [3, 0, 3]),
        (Outweighing(Sums(), 1, 2, inf), [0, -4, 0]),
    ],
)
def test_one_record_more_is_behind_the_others(oracle, added) -> None:
    found = oracle.per_record(X)
    assert found.shape == (3, 3, 2)
    assert found[:, :2, 0].tolist() == [[0.5, 0.5], [1, 1], [1.5, 1.5]]
    assert found[:, 2, 0].tolist() == added
    own = oracle.per_record(X.unsqueeze(-2).expand(3, 3, 2), own=True)
    torch.testing.assert_close(own, found)


def test_some_records_of_a_batch_are_alike() -> None:
    found = RepeatedGradient(Sums(), 1, vector(3, 3), 1).per_record(X)
    assert found[:, :, 0].tolist() == [[0.5, 0.5], [3, 0], [1.5, 1.5]]


def coupled_of(sizes: tuple[int, ...] = (8, 8), cyclic: bool = False, **of: Any) -> Any:
    most = tuple(of.pop("most", ()))
    graph = SimpleNamespace(n_agents=len(sizes), n_edges=3, senders=torch.tensor([0, 1, 1]))
    setting = SimpleNamespace(
        sizes=sizes, holders=[i for i, n in enumerate(sizes) if n], n_agents=len(sizes),
        network=SimpleNamespace(at=lambda k: graph),
    )  # fmt: skip
    defense = SimpleNamespace(cyclic=cyclic, n_rounds=4, batch_size=2, batches_per_round=1)
    of["declared"] = lambda agent: most
    return SimpleNamespace(setting=setting, defense=defense, victim=0, **of)


def of_noise(multiplier: float, family: Any = "gaussian", count: int = 1) -> Release:
    return Release(family=family, noise_multiplier=multiplier, count=count)


@pytest.mark.parametrize(
    ("most", "family", "batches", "adjacency", "allowed"),
    [
        ([of_noise(2.0, count=3)], "gaussian", 3, "add-remove", [0.5] * 3),
        ([of_noise(2.0, count=3)], "gaussian", 3, "replace-one", [1.0] * 3),
        ([of_noise(2.0, count=4)], "gaussian", 2, "add-remove", [hypot(0.5, 0.5)] * 2),
        ([of_noise(2.0, count=3)], "gaussian", 2, "add-remove", [hypot(0.5, 0.5), 0.5]),
        ([of_noise(4.0), of_noise(1.0)], "gaussian", 2, "add-remove", [1.0, 0.25]),
        ([of_noise(2.0, "laplace", 2)], "laplace", 1, "add-remove", [1.0]),
        ([of_noise(2.0, "laplace", 2)], "gaussian", 1, "add-remove", []),
        ([of_noise(0.0)], "gaussian", 1, "add-remove", [inf]),
    ],
)
def test_a_batch_may_move_noise_by_what_is_declared(
    monkeypatch, most, family, batches, adjacency, allowed
) -> None:
    monkeypatch.setattr(alignment, "batches_of", lambda *_: batches)
    own = coupled_of(most=most)
    assert alignment._allowed(own, 0, family, adjacency) == pytest.approx(allowed)
    assert alignment._allowed(coupled_of((0, 8), most=most), 0, family, adjacency) == []


KEY = 0, "gaussian"


@pytest.mark.parametrize(
    ("moves", "cyclic", "over"),
    [
        ({}, False, 0.0),
        ({1: {KEY: 0.5}, 2: {KEY: 0.2}}, False, 0.8),
        ({1: {KEY: 0.2}, 2: {KEY: 0.5}}, False, 0.8),
        ({1: {KEY: 0.5}, 2: {KEY: 0.5}}, False, 2.0),
        ({1: {KEY: 0.5}, 2: {}, 3: {KEY: 0.0}}, False, 0.5),
        ({1: {KEY: 0.1}, 2: {KEY: 0.1}, 3: {KEY: 0.1}}, False, inf),
        ({1: {KEY: 0.1}, 2: {KEY: 0.1}, 3: {KEY: 0.1}}, True, 0.4),
        ({1: {(1, "laplace"): 0.1}}, False, inf),
    ],
)
def test_the_largest_move_meets_the_largest_release(monkeypatch, moves, cyclic, over) -> None:
    """Of agent 0 a batch may move Gaussian noise by 1, another by 1/4."""
    monkeypatch.setattr(alignment, "batches_of", lambda *_: 2)
    own = coupled_of(most=[of_noise(4.0), of_noise(1.0)], cyclic=cyclic)
    assert alignment.over_declared(own, moves, "add-remove") == pytest.approx(over)


def test_rows_of_a_draw_are_agents_or_links() -> None:
    world: Any = SimpleNamespace(coupled=coupled_of())
    assert alignment._owners(world, (), (1, "z"), 2) == [0, 1]
    assert alignment._owners(world, (), (1, "z"), 3) == [0, 1, 1]
    assert alignment._owners(world, (), (1, "z"), 4) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (vector(1.0, 1e-12), vector(1.0, 0.0), True),
        (vector(1.0, 1e-9), vector(1.0, 0.0), False),
        (vector(1.0), vector(1.0, 1.0), False),
        (vector(inf), vector(inf), True),
        (vector(inf, 1.0), vector(inf, 2.0), False),
        (vector(-inf, 1.0), vector(inf, 1.0), False),
        (vector(nan, 1.0), vector(nan, 2.0), False),
        (vector(nan), vector(nan), True),
        (vector(), vector(), True),
        (1.0, 1.0, True),
        (1.0, 1.1, False),
    ],
)
def test_numbers_are_the_same_but_for_rounding(one, other, same) -> None:
    assert replay.is_same(one, other) is same


@pytest.mark.parametrize(
    ("moves", "share"),
    [({}, 0.0), ({1: 3.0}, 0.0), ({2: 3.0}, 1.0), ({1: 3.0, 2: 4.0}, 0.8)],
)
def test_the_share_of_the_second_round_is_of_all_moves(monkeypatch, moves, share) -> None:
    found = SimpleNamespace(moves={(k, "z"): vector(size) for k, size in moves.items()})
    monkeypatch.setattr(alignment, "replay", lambda *_: found)
    here: Any = SimpleNamespace(k=1)
    assert alignment._carried(here, here) == pytest.approx(share)


def test_the_lowest_interval_of_noise_is_shown() -> None:
    drawn = {"gaussian": DrawSizes(100.0, 100), "laplace": DrawSizes(50.0, 100)}
    found = alignment.size_of_noise(drawn)
    assert found.value == pytest.approx(0.5)
    assert found.ends[0] < 0.5 < found.ends[1] < 1
    alone = alignment.size_of_noise({"laplace": drawn["laplace"]})
    assert found.ends[0] < alone.ends[0]  # of two intervals each has half of the level


def reach(scales: list[list[float]], *families: str) -> Reach:
    return Reach(torch.tensor(scales).double(), families or ("gaussian",) * len(scales[0]))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (reach([[3.0, 4.0]]), reach([[3.0, 4.0]]), True),
        (reach([[3.0, 4.0]]), reach([[4.0, 3.0]]), False),
        (reach([[3.0, 4.0]]), reach([[5.0]]), True),
        (reach([[3.0, 4.0]]), reach([[5.1]]), False),
        (reach([[3.0, 4.0]]), reach([[5.0], [5.0]]), False),
        (reach([[5.0]]), reach([[5.0]], "laplace"), False),
        (reach([[3.0, 4.0]], "laplace", "laplace"), reach([[5.0]], "laplace"), False),
    ],
)
def test_noise_of_one_law_is_as_much(one, other, same) -> None:
    assert bool(_is_as_much(one, other)) is same


def test_all_draws_at_once_add_up() -> None:
    alone, units = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 3.0, 5.0], [7.0, 1.0, 1.0]])
    assert _is_sum(alone[:, :2], units[:, :2], torch.tensor([[2.0, 6.0]]))
    assert _is_sum(alone, units, 2 * units[:1])
    assert not _is_sum(alone, units, 2 * units[:1] + 1e-3)
    assert not _is_sum(alone + torch.tensor([[0.0, 0.0, 1e-3]]), units, 2 * units[:1])


def clipped_noise(end: float, moved: float, scale: float = 2.0, n: int = 1) -> Any:
    """Messages of n numbers without and with a record, noise of a scale cut at its end."""

    def sent(level: Any) -> Any:
        values = level.numpy()[0] if isinstance(level, Tensor) else np.full(n, level)
        noise = scale * np.clip(values, -end, end)
        return np.stack([noise, noise + moved])

    return sent


@pytest.mark.parametrize(("moved", "n"), [(1.0, 1), (1.0, 3), (0.8, 2), (-1.0, 1)])
def test_a_record_is_seen_where_noise_ends(moved: float, n: int) -> None:
    """Beyond the end by a quarter of what the record moves: z > end - 3/4 moved / scale.

    It is found from below: to a step near where noise is largest, and from the end on where it is
    least.
    """
    shape, cdf = torch.Size((1, n)), ndtr
    found = bounded_noise._probability(clipped_noise(2.0, moved, n=n), shape, 0, 6.0, cdf)
    assert found is not None

    def beyond(z: float) -> float:
        return float(1 - ndtr(z) ** n)

    edge = 2.0 - 0.75 * moved / 2.0 if moved > 0 else 2.0
    assert beyond(edge + bounded_noise.FINE) <= found[0] <= beyond(edge) + 1e-9
    assert found[1] == pytest.approx(abs(moved) * sqrt(n))
    assert bounded_noise._probability(clipped_noise(1e9, moved, n=n), shape, 0, 6.0, cdf) is None
    assert bounded_noise._probability(clipped_noise(2.0, 0.0, n=n), shape, 0, 6.0, cdf) is None


def test_messages_are_moved_by_their_largest_row() -> None:
    rows = torch.tensor([[3.0, 4.0], [-6.0, 0.0]])
    assert worlds.lengths(rows, 2).item() == 6.0
    assert worlds.lengths(rows, 1).item() == 7.0
    assert worlds.lengths(rows.expand(5, 2, 2), 2).tolist() == [6.0] * 5
    assert worlds.lengths(rows[:0], 2).item() == 0.0


@pytest.mark.parametrize(
    ("b", "close"),
    [
        (vector(1.0, 100.0), True),
        (vector(1.0 + 60 * 100 * 2**-53, 100.0), True),
        (vector(1.0 + 70 * 100 * 2**-53, 100.0), False),
        (vector(1.0, -100.0), False),
    ],
)
def test_payloads_differ_by_roundings_of_the_largest(b: Tensor, close: bool) -> None:
    a = vector(1.0, 100.0)
    assert worlds._close(a, b) is worlds._close(b, a) is close
    assert worlds._close(vector(), vector())


def sent_by(values: list[float], senders: list[int]) -> Message:
    n = torch.arange(len(senders))
    return Message(torch.tensor(values)[:, None], torch.tensor(senders), n + 9, n)


def test_an_agent_is_moved_by_the_largest_of_its_messages() -> None:
    one = {"x": sent_by([1.0, 5.0, inf, 0.0], [0, 0, 1, 2])}
    other = {"x": sent_by([0.0, 2.0, 0.0, 0.0], [0, 0, 1, 2])}
    found = other_agents._by_sender(coupled_of((1, 1, 1, 1)), one, other)
    assert found["x"].tolist() == [3.0, torch.finfo(torch.float64).max, 0.0, 0.0]


@pytest.mark.parametrize(
    ("moves", "noises", "clips", "over", "chosen"),
    [
        ([9, 1, 1, 1], [1, 1, 1, 1], False, [0] * 4, [1]),
        ([9, 1, 2.1, 1], [1, 1, 1, 1], False, [0] * 4, [2]),
        ([1, 1, 2.1, 3], [1, 1, 1, 1], False, [0] * 4, [3, 2]),
        ([1, 1, 2.0, 3], [1, 1, 1, 1], False, [0] * 4, [3]),
        ([1, 1, 3, 1], [1, 0.5, 3, 1], False, [0] * 4, [1]),
        ([1, 1, 1, 1], [1, 1, 1, 1], True, [0, 0, 0, 1.1], [3]),
        ([1, 1, 1, 1], [1, 1, 1, 1], False, [0, 0, 0, 1.1], [1]),
        ([0, 0, 0, 0], [1, 1, 1, 1], False, [0] * 4, [1]),
        ([1, 1, 1, 1], [1, 1, 0, 1], False, [0] * 4, [2]),
    ],
)
def test_agents_that_move_most_beside_their_noise(
    monkeypatch, moves, noises, clips, over, chosen
) -> None:
    given = iter([{"x": vector(*moves)}, {"x": vector(*noises)}])
    monkeypatch.setattr(other_agents, "_by_sender", lambda *_: next(given))
    monkeypatch.setattr(other_agents, "_over_stated", lambda *_: vector(*over))
    coupled = coupled_of((8,) * 4)
    coupled.defense.clip_norm_in = lambda k: 1.0 if clips else None
    world: Any = SimpleNamespace(
        noisy=SimpleNamespace(sent=None), quiet=SimpleNamespace(sent=None), lag=0
    )
    assert other_agents._most_moved(coupled, 2, "add-remove", (world, world)) == chosen


def test_moves_are_held_against_l2_bounds_alone() -> None:
    coupled = coupled_of((8, 8, 8))
    stated = [{"x": (2, 2.0), "y": (2, 4.0)}, {"x": (1, 2.0)}, {"x": (2, 0.0)}]
    coupled.defense.sensitivity = lambda k, setting, adjacency, agent, sent: stated[agent]
    here: Any = SimpleNamespace(noisy=SimpleNamespace(sent=None))
    moves = {"x": vector(3, 3, 3), "y": vector(8, 8, 8)}
    assert other_agents._over_stated(coupled, 1, "add-remove", here, moves).tolist() == [
        2.0,
        0.0,
        0.0,
    ]


def test_the_pair_that_moves_each_message_furthest_is_kept(monkeypatch) -> None:
    moves = [{"x": 1.0, "y": 5.0}, {"x": 2.0}, {"x": 1.5, "y": 5.0}]
    monkeypatch.setattr(unseen_inputs, "_moves", lambda pair: moves[pair])
    assert unseen_inputs._furthest([0, 1, 2]) == [1, 2]  # type: ignore[list-item]
    assert unseen_inputs._furthest([0]) == [0]  # type: ignore[list-item]
    assert unseen_inputs._furthest([]) == []


@pytest.mark.parametrize(
    ("apart", "differ"), [(0.0, False), (0.9e-10, False), (1.1e-10, True), (1.0, True)]
)
def test_models_differ_beyond_rounding(apart: float, differ: bool) -> None:
    assert unseen_inputs._differ(vector(1.0, 0.0), vector(1.0 + apart, 0.0)) is differ
