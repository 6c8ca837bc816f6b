"""Oracles of worlds that differ in one record, and how one is searched for, by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity import synthetic_records, world_cache
from dpaudit.attacks.sensitivity.search import Candidates, ascent
from dpaudit.attacks.sensitivity.world_cache import KeptAnswers, UnsentNoise
from dpaudit.defense.contract import Gradient
from dpaudit.training.classification import Batch

NOTHING: Any = None
X = torch.tensor([[1.0, 1.0], [3.0, 4.0], [2.0, 0.0]]).double()  # models of three agents


class Times:
    """A record's gradient is its input times the model at which it is taken."""

    def clipped_sum(
        self, X: Tensor, inputs: Tensor, labels: Tensor, C: float | None, norm: int = 2,
        holders: Any = None, create_graph: bool = False,
    ) -> Tensor:  # fmt: skip
        each = inputs[holders][:, 0, None] * X
        if C is not None and inf > C:
            each = each * (C / each.norm(norm, dim=1, keepdim=True)).clamp(max=1)
        return each if create_graph else each.detach()


@dataclass(frozen=True)
class Others(Gradient):
    """Of every agent's two records: sums are twice the model, clipped ones 10."""

    batch_size: int = 4
    step: int = 0
    gradients: Any = Times()
    batch: Batch = Batch(torch.arange(6.0).view(3, 2), torch.arange(6).view(3, 2))

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return X / 2

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        asked.append((tuple(X.shape), clip_norm, norm))
        return 2 * X if clip_norm == inf else torch.full_like(X, 10.0)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        return X + 0 if own else torch.stack([X, 2 * X], dim=-2)

    def at_step(self, s: int) -> "Others":
        return Others(step=s)


asked: list[Any] = []


def two(inputs: Any = (2.0, 5.0)) -> Candidates:
    """Two worlds, in which agent 1 has a record more: 2, or 5."""
    oracle: Any = Others()
    return Candidates(oracle, 1, torch.tensor(inputs).double(), torch.tensor([7, 8]))


def test_a_candidate_is_added_at_the_victim_of_its_world() -> None:
    """Agent 1's model has the length 5 and the sum 7; others' sums are asked for once."""
    trials = X.expand(2, 3, 2)
    asked.clear()
    found = two().clipped_sum(trials, inf)
    assert found[:, [0, 2]].tolist() == (2 * X[[0, 2]]).expand(2, 2, 2).tolist()
    assert found[:, 1].tolist() == [[6 + 6, 8 + 8], [6 + 15, 8 + 20]]
    assert two()(trials)[:, 1].tolist() == [[3, 4], [5.25, 7]]
    clipped = two().clipped_sum(trials, 5.0)[:, 1]
    assert clipped.tolist() == [pytest.approx([13, 14])] * 2
    by_sizes = two().clipped_sum(trials, 7.0, norm=1)[:, 1]
    assert by_sizes.tolist() == [pytest.approx([13, 14])] * 2
    assert asked == [((3, 2), C, p) for C, p in ((inf, 2), (inf, 2), (5.0, 2), (7.0, 1))]
    apart = torch.stack([X, 2 * X])
    assert two().clipped_sum(apart, inf)[:, 1].tolist() == [[12, 16], [12 + 30, 16 + 40]]
    assert asked[-1][0] == (2, 3, 2)
    some = two().clipped_sum(trials[:, :2], inf, torch.tensor([1, 1]))
    assert some.tolist() == [[[4, 4], [12, 16]], [[2 + 5, 2 + 5], [21, 28]]]
    others = two().clipped_sum(trials[:, :2], inf, torch.tensor([0, 2]))
    assert others.tolist() == (2 * X[:2]).expand(2, 2, 2).tolist()


def test_a_candidate_stands_behind_the_records_of_its_batch() -> None:
    found = two().per_record(torch.stack([X, 2 * X]))
    assert found.shape == (2, 3, 3, 2)
    assert found[1, :, :2].tolist() == torch.stack([2 * X, 4 * X], dim=1).tolist()
    assert found[:, [0, 2], 2].abs().sum() == 0
    assert found[:, 1, 2].tolist() == [[6, 8], [30, 40]]
    own = torch.stack([X, 2 * X, 3 * X], dim=1).expand(2, 3, 3, 2)  # a model for each record
    at_own = two().per_record(own, own=True)
    assert at_own[0, :, :2].tolist() == own[0, :, :2].tolist()
    assert at_own[:, 1, 2].tolist() == [[18, 24], [45, 60]]
    none = two().per_record(own[:, :1], torch.tensor([2]), own=True)
    assert none.tolist() == own[:, :1].tolist()
    assert two().per_record(X.expand(2, 3, 2)[:, :1], torch.tensor([0])).shape == (2, 1, 2, 2)


def test_candidates_have_the_batch_of_the_first_of_them() -> None:
    batch = two().batch
    assert (float(batch.inputs[1, 0]), int(batch.labels[1, 0])) == (2.0, 7)
    assert batch.weights is None
    later: Any = two().at_step(1)
    assert (two().at_step(0).batch_size, later.step) == (4, 1)
    assert isinstance(two().at_step(0), Candidates)


def adam(slope: Callable[[float], float], z: float, low: float, high: float, n: int) -> list[float]:
    """Points of projected Adam (Kingma and Ba, Algorithm 1), in a loop."""
    m = v = 0.0
    points = [z]
    for k in range(1, n + 1):
        g = slope(z)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = 0.1 * (high - low) * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)) ** 0.5 + 1e-8)
        z = min(max(z + step, low), high)
        points.append(z)
    return points


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_ascent_is_that_of_adam_within_the_range(steps: int) -> None:
    """Of 3 z - z^2 from 0.2 and of z^3 from 5, in a range of 2 to 7 and so on."""
    start = torch.tensor([[0.2], [-0.5]]).double()

    def value(z: Tensor) -> Tensor:
        return torch.stack([3 * z[0] - z[0] ** 2, z[1] ** 3])[:, 0]

    best, values = ascent(value, start, (-1.0, 7.0), steps)
    one = adam(lambda z: 3 - 2 * z, 0.2, -1.0, 7.0, steps)
    other = adam(lambda z: 3 * z * z, -0.5, -1.0, 7.0, steps)
    expected = [max(one, key=lambda z: 3 * z - z * z), max(other)]
    assert best[:, 0].tolist() == pytest.approx(expected)
    assert values.tolist() == pytest.approx([3 * expected[0] - expected[0] ** 2, expected[1] ** 3])
    ends, _ = ascent(lambda z: 9 * z[:, 0], torch.tensor([[6.5]]).double(), (-1.0, 7.0), 2)
    assert ends.item() == 7.0
    low, _ = ascent(lambda z: -9 * z[:, 0], torch.tensor([[-0.5]]).double(), (-1.0, 7.0), 2)
    assert low.item() == -1.0
    flat, _ = ascent(
        lambda z: z[:, 0].clamp(max=1.0), torch.tensor([[0.2]]).double(), (0.0, 10.0), 3
    )
    assert flat.item() == pytest.approx(1.2)  # the first of those that are as good
    ids = torch.tensor([[3], [4]])
    same, of_ids = ascent(lambda z: z[:, 0] * 2.0, ids, (0, 9), 2)
    assert (same is ids, of_ids.tolist()) == (True, [6.0, 8.0])


def of(kind: Any, *more: Any) -> Any:
    asked.clear()
    return kind(Others(), 1, *more)


def test_a_record_more_may_be_none_or_outweigh_all_others() -> None:
    """The victim's sum is (6, 8), of length 10; of the opposed record (-12, -16) or less."""
    vacant = of(synthetic_records.VacantPlace)
    assert vacant(X).tolist() == (2 * X / 4).tolist()
    assert vacant.clipped_sum(X, 3.0, norm=1).tolist() == [[10, 10]] * 3
    assert asked[-1] == ((3, 2), 3.0, 1)
    assert vacant.batch is Others().batch
    each = vacant.per_record(X)
    assert each[:, :2].tolist() == torch.stack([X, 2 * X], 1).tolist()
    assert (each.shape, float(each[:, 2].abs().sum())) == ((3, 3, 2), 0.0)
    for norm, longest, gradient in (
        (2, inf, (-12, -16)), (2, 10.0, (-6, -8)), (1, 7.0, (-3, -4)), (2, 30.0, (-12, -16)),
    ):  # fmt: skip
        one = of(synthetic_records.Outweighing, norm, longest)
        assert one(X)[1].tolist() == pytest.approx([(6 + gradient[0]) / 4, (8 + gradient[1]) / 4])
        assert one(X)[[0, 2]].tolist() == (X[[0, 2]] / 2).tolist()
    far = of(synthetic_records.Outweighing, 2, inf)
    assert far.clipped_sum(X, 5.0)[1].tolist() == pytest.approx([10 - 3, 10 - 4])
    assert far.clipped_sum(X, 7.0, norm=1)[1].tolist() == pytest.approx([10 - 3, 10 - 4])
    assert far.per_record(X)[1].tolist() == [[3, 4], [6, 8], [-18, -24]]
    own = torch.stack([X, X, X], dim=1)
    assert far.per_record(own, own=True)[1].tolist() == [[3, 4], [3, 4], [-12, -16]]
    assert far.at_step(0) is far
    assert far.at_step(2).step == 2
    batch = far.batch
    assert batch.inputs[1].tolist() == [3.0, 3.0]  # the last record again in the first place
    assert batch.labels[1].tolist() == [3, 3]
    assert batch.inputs[0].tolist() == [0.0, 1.0]
    some = far.clipped_sum(X[:2], inf, torch.tensor([1, 0]))
    assert some.tolist() == [[2 - 4, 2 - 4], [6, 8]]


def test_a_gradient_is_given_to_the_victim_or_to_all() -> None:
    g = torch.tensor([3.0, 4.0]).double()
    given = of(synthetic_records.GivenGradient, g)
    assert given(X).tolist() == [[0.5, 0.5], [1.5 + 0.75, 2 + 1], [1, 0]]
    assert given.clipped_sum(X, 2.5)[1].tolist() == pytest.approx([11.5, 12])
    at_all = of(synthetic_records.AtSeveralAgents, g, (0, 2))
    assert at_all(X).tolist() == [[0.5 + 0.75, 1.5], [1.5, 2], [1.75, 1]]
    assert at_all(X[:2], torch.tensor([2, 1])).tolist() == [[1.25, 1.5], [1.5, 2]]


@pytest.mark.parametrize(("times", "far"), [(0.0, (0.0, 0.0)), (2.0, (6.0, 8.0))])
def test_some_records_of_the_victim_are_alike(times: float, far: tuple[float, float]) -> None:
    """One of two has the gradient (3, 4), the other so many times it; clipped to 5 and to 10."""
    alike = of(synthetic_records.RepeatedGradient, torch.tensor([3.0, 4.0]).double(), 1, times)
    assert alike(X)[1].tolist() == [(3 + far[0]) / 4, (4 + far[1]) / 4]
    assert alike(X)[[0, 2]].tolist() == (X[[0, 2]] / 2).tolist()
    clipped = alike.clipped_sum(X, 5.0)
    expected = [3.0, 4.0] if times == 0 else [6.0, 8.0]
    assert clipped[1].tolist() == pytest.approx(expected)
    assert clipped[0].tolist() == [10, 10]
    by_sizes = alike.clipped_sum(X, 7.0, norm=1)[1]
    assert by_sizes.tolist() == pytest.approx(expected)
    each = alike.per_record(X)
    assert each[1].tolist() == [[3, 4], [*far]]
    assert each[[0, 2]].tolist() == torch.stack([X, 2 * X], 1)[[0, 2]].tolist()
    assert alike.batch is Others().batch
    scaled = synthetic_records.ScaledGradients(Others(), 3.0)
    assert scaled(X).tolist() == (1.5 * X).tolist()
    assert scaled.batch is Others().batch


def sent(payload: Any, senders: Any = (0, 1, 1), rows: Any = (0, 1, 2)) -> Any:
    return SimpleNamespace(
        payload=torch.tensor(payload), senders=torch.tensor(senders), rows=torch.tensor(rows)
    )


def test_noise_that_is_kept_is_more_than_was_sent() -> None:
    """Agent 1 sends two rows of two numbers; a message that repeats itself is not new."""
    one = sent([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert world_cache._new_numbers(one, None, 3).tolist() == [2, 4, 0]
    assert world_cache._new_numbers(one, one, 3).tolist() == [0, 0, 0]
    other = sent([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])
    assert world_cache._new_numbers(other, one, 3).tolist() == [0, 4, 0]
    assert world_cache._new_numbers(sent([[1.0], [3.0], [5.0]]), one, 3).tolist() == [1, 2, 0]
    twice = sent([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (0, 1, 1, 0), (0, 1, 2, 0))  # to two
    assert world_cache._new_numbers(twice, None, 3).tolist() == [2, 4, 0]
    trials = sent([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]] * 3)
    assert world_cache._new_numbers(trials, None, 3).tolist() == [6, 12, 0]
    last = sent([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]] * 2 + [[[1.0, 2.0], [9.0, 4.0], [5.0, 6.0]]])
    assert world_cache._new_numbers(last, trials, 3).tolist() == [0, 12, 0]  # of one trial alone
    run = UnsentNoise("start", torch.zeros(3, dtype=torch.long))
    run.note("after 1", 3, {"x": one})
    assert (run.state, run.drawn, run.sent.tolist()) == ("after 1", 3, [2, 4, 0])
    run.note("after 2", 1, {"x": one, "y": one})
    assert run.sent.tolist() == [4, 8, 0]
    run.note("after 3", 0, {"x": other})
    assert (run.drawn, run.sent.tolist()) == (4, [4, 12, 0])
    assert [each.tolist() for each in run.kept] == [
        [True, False, True], [False, False, True], [False, False, True],
    ]  # fmt: skip


def test_the_victim_alone_is_asked_again_in_another_world(monkeypatch: Any) -> None:
    """Others' answers are those that worlds share; an oracle's own are 100 times the model."""

    class Own(KeptAnswers):
        pass

    own: Any = object.__new__(Own)
    shared = SimpleNamespace(clipped_sum=lambda X, C, holders, norm: C * X + norm)
    calls: list[Any] = []

    def raw(self: Any, X: Tensor, C: float, holders: Any = None, norm: int = 2) -> Tensor:
        calls.append((X.tolist(), None if holders is None else holders.tolist(), norm))
        return 100 * X

    monkeypatch.setattr(world_cache.BatchGradient, "clipped_sum", raw)
    for name, value in (("shared", shared), ("victim", 1)):
        object.__setattr__(own, name, value)
    found = own._answered(X, 3.0, None, 2)
    assert found.tolist() == [[5, 5], [300, 400], [8, 2]]
    assert calls == [([[3.0, 4.0]], [1], 2)]
    some = own._answered(X[:2], 3.0, torch.tensor([1, 0]), 1)
    assert some.tolist() == [[100, 100], [10, 13]]
    none = own._answered(X[:1], 3.0, torch.tensor([2]), 2)
    assert none.tolist() == [[5, 5]]
    assert len(calls) == 2
    assert own._answered(X[None], 3.0, None, 2).tolist() == (100 * X[None]).tolist()
    object.__setattr__(own, "victim", None)
    assert own._answered(X, 3.0, None, 2).tolist() == (3 * X + 2).tolist()
