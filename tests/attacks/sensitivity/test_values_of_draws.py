"""What is tried of draws that are far out and of batches of few gradients, by hand."""

from math import pi
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from dpaudit.attacks.sensitivity import bounded_noise, rare_noise, replay, unseen_inputs
from dpaudit.attacks.sensitivity import side_channels as values
from dpaudit.attacks.sensitivity.unseen_inputs import _Round
from dpaudit.training.classification import Batch

NOTHING: Any = None


@pytest.mark.parametrize(
    ("n", "numbers"),
    [
        (1, [0]),
        (12, list(range(12))),
        (13, [0, 1, 2, 3, 4, 5, 6, 7, 8, 12]),
        (40, [0, 1, 2, 3, 4, 5, 6, 18, 19, 20, 21, 22, 39]),
    ],
)
def test_few_and_half_of_the_records_have_gradients(n: int, numbers: list[int]) -> None:
    assert unseen_inputs._numbers(n) == numbers


def test_the_first_records_of_a_batch_keep_their_gradients(monkeypatch: Any) -> None:
    monkeypatch.setattr(unseen_inputs, "replace", lambda oracle, batch: batch)
    monkeypatch.setattr(unseen_inputs, "ones", lambda batch: torch.ones(2, 3))
    weights = torch.tensor([[1.0, 0.5, 1.0], [0.5, 1.0, 1.0]])
    for given, expected in (
        (weights, [[1.0, 0.5, 1.0], [0.5, 0.0, 0.0]]),
        (None, [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]),
    ):
        oracle: Any = SimpleNamespace(batch=Batch(torch.zeros(2, 3, 1), torch.zeros(2, 3), given))
        found: Any = unseen_inputs._of_first(oracle, 1, 1)
        assert found.weights.tolist() == expected
    assert weights[1].tolist() == [0.5, 1.0, 1.0]


def moving(**moved: list[float]) -> Any:
    """A pair of worlds whose messages differ by this much."""
    apart = {name: torch.tensor([x]) for name, x in moved.items()}
    coupled = SimpleNamespace(differences=lambda one, other: apart)
    world = SimpleNamespace(coupled=coupled, noisy=SimpleNamespace(sent=None))
    return world, world


def test_the_pair_that_moves_a_message_furthest_is_judged() -> None:
    pairs = [moving(x=[3.0, 4.0]), moving(x=[6.0], y=[1.0]), moving(y=[0.5], z=[0.0]), moving()]
    assert unseen_inputs._moves(pairs[0]) == {"x": 5.0}
    assert unseen_inputs._moves(pairs[2]) == {"y": 0.5}
    assert unseen_inputs._furthest(pairs) == [pairs[1]]
    assert unseen_inputs._furthest([pairs[0], pairs[2], pairs[3]]) == [pairs[0], pairs[2]]
    assert unseen_inputs._furthest([moving(x=[float("nan")]), pairs[0]])[0] is not pairs[0]
    assert unseen_inputs._furthest([]) == []


class Records:
    """A record's gradient is its input."""

    def clipped_sum(self, X: Tensor, inputs: Tensor, labels: Tensor, C: float) -> Tensor:
        return inputs[0] * 1.0


@pytest.mark.parametrize(
    ("clip_norm", "p", "expected"),
    [(None, 2, [3.0, 4.0]), (10.0, 2, [6.0, 8.0]), (14.0, 1, [6.0, 8.0]), (1.0, 2, [0.6, 0.8])],
)
def test_a_gradient_is_as_long_as_the_clip_norm(clip_norm, p: int, expected: list[float]) -> None:
    coupled = SimpleNamespace(
        victim=1, classification=SimpleNamespace(gradients=Records()),
        defense=SimpleNamespace(models=lambda state: torch.zeros(2, 2), clip_norm_in=lambda k: clip_norm),
    )  # fmt: skip
    of: Any = SimpleNamespace(coupled=coupled)
    record = SimpleNamespace(input=torch.tensor([3.0, 4.0]), label=torch.tensor(0))
    pair: Any = SimpleNamespace(natural=lambda: record, norm=p)
    found = _Round(of, NOTHING, 2, "add-remove")._gradient(pair)
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("usual", "pairs", "unclear", "rounds"),
    [
        ([1.5], {"a": [1.4], "b": [1.5]}, [], 9),
        ([1.5], {"a": [1.4], "b": [1.6]}, ["b"], 9),
        ([0.5], {"a": [1.0], "b": [0.9]}, [], 9),
        ([0.5], {"a": [1.1], "b": [1.2]}, ["a"], 9),
        ([1.5], {"a": [None], "b": [9.0]}, ["a"], 9),
        ([None, 1.0], {"a": [9.0, 1.0], "b": [9.0, 2.0]}, ["b"], 9),
        ([None, None, None, 1.0], {"a": [None, None, None, 2.0]}, ["a"], 9),
        ([None, 1.0], {"a": [9.0, 9.0]}, [], 2),  # there is no round more
    ],
)
def test_noise_hides_few_gradients_as_it_hides_usual_ones(
    monkeypatch, usual, pairs, unclear, rounds
) -> None:
    monkeypatch.setattr(unseen_inputs, "ratio", lambda pair, lag, adjacency: pair[lag])
    coupled = SimpleNamespace(defense=SimpleNamespace(n_rounds=rounds))
    examination: Any = SimpleNamespace(coupled=coupled, unclear={})
    _Round(examination, NOTHING, 2, "add-remove")._align(usual, pairs)
    assert list(examination.unclear) == unclear


@pytest.mark.parametrize(
    ("one", "other", "number", "wave"),
    [
        ([[0.0, 0.0]], [[0.0, 0.0]], False, None),
        ([[0.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [2.0, 3.0]], False, [0.0, pi / 3]),
        ([[0.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [4.0, 0.0]], False, [pi / 2, 0.0]),
        ([[1.0, 0.0]], [[1.0, 2.0]], False, [0.0, pi / 2]),
        ([[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0]], True, None),
        ([[0.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [3.0, 3.0]], False, [0.0, pi / 3]),
    ],
)
def test_gradients_turn_around_between_two_models(monkeypatch, one, other, number, wave) -> None:
    """Across the way to the models; along it where they are apart on it alone."""
    given = {False: one, True: other}
    monkeypatch.setattr(
        unseen_inputs, "replay", lambda here, there, change: SimpleNamespace(moves="moves")
    )
    monkeypatch.setattr(
        unseen_inputs, "_models",
        lambda world, moves: [torch.tensor(x).double() for x in given[moves == "moves"]],
    )  # fmt: skip
    monkeypatch.setattr(unseen_inputs, "replace", lambda world, oracle: oracle)
    coupled = SimpleNamespace(victim=1)
    worlds: Any = tuple(SimpleNamespace(oracle=f"oracle {i}", coupled=coupled) for i in (0, 1))
    examination: Any = SimpleNamespace(coupled=coupled, unclear={})
    found: Any = _Round(examination, NOTHING, 2, "add-remove")._fickle(worlds)
    assert (unseen_inputs.NUMBER in examination.unclear) is number
    if wave is None:
        assert found is None
        return
    assert [oracle.of for oracle in found] == ["oracle 0", "oracle 1"]
    for oracle in found:
        assert oracle.wave.tolist() == pytest.approx(wave)
        assert oracle.first.tolist() == one[0]


def test_gradients_are_waved_at_the_victim_alone() -> None:
    first, wave = torch.tensor([1.0, 0.0]), torch.tensor([0.0, pi])
    fickle = unseen_inputs._Fickle(NOTHING, 1, first, wave)
    X = torch.tensor([[1.0, 1.0], [5.0, 1.0], [1.0, 0.0]])
    fickle.note(X, None, 2)
    assert fickle._factors.tolist() == pytest.approx([1.0, -1.0, 1.0])
    assert fickle.changed(torch.ones(3, 2))[:, 0].tolist() == pytest.approx([1.0, -1.0, 1.0])
    each = fickle.changed(torch.ones(3, 4, 2))
    assert each[:, 3, 1].tolist() == pytest.approx([1.0, -1.0, 1.0])
    fickle.note(X, torch.tensor([1, 0, 1]), 2)
    assert fickle._factors.tolist() == pytest.approx([-1.0, 1.0, 1.0])
    fickle.note(torch.tensor([[1.0, 1 / 3]]), torch.tensor([1]), 2)
    assert fickle.changed(torch.tensor([[6.0, 2.0]])).tolist() == [pytest.approx([3.0, 1.0])]
    asked = unseen_inputs._Asked(NOTHING, 1)
    asked.note(X, None, 2)
    asked.note(X, torch.tensor([1, 0, 1]), 0)
    assert [x.tolist() for x in asked.models] == [[5.0, 1.0], [1.0, 1.0], [1.0, 0.0]]


def test_levels_are_of_each_draw_and_of_all_together() -> None:
    """A draw of one number at any distance, either way."""
    draw = lambda stream, d: SimpleNamespace(stream=stream, family="gaussian", shape=(3, d))  # noqa: E731
    world: Any = SimpleNamespace(noisy=SimpleNamespace(draws=[draw("a", 5)]))
    far = rare_noise.FAR["gaussian"]
    assert list(rare_noise._levels(world)) == [{"a": far}, {"a": -far}]
    world.noisy.draws.append(draw("b", 1))
    found = list(rare_noise._levels(world))
    single = [level["b"] for level in found if list(level) == ["b"]]
    steps = rare_noise.STEPS
    assert single[::2] == pytest.approx([far * (1 - i / steps) for i in range(steps)])
    assert single[1::2] == pytest.approx([-x for x in single[::2]])
    assert found[:2] == [{"a": far}, {"a": -far}]
    assert found[-2:] == [{"a": far, "b": far}, {"a": -far, "b": -far}]
    assert len(found) == 2 + 2 * steps + 2


@pytest.mark.parametrize(
    ("ratios", "far", "linear", "said"),
    [
        ([1.5], 1.5, True, None),
        ([1.5], 1.6, True, 'where the draw "a" is 7 times its scale'),
        ([0.5], 1.0, True, None),
        ([0.5], 1.1, True, "how far a record moves messages in a round"),
        ([1.5], None, True, "how far a record moves messages in a round"),
        ([None, 2.0], 2.0, True, None),
        ([None, None, None, None], 9.0, True, None),
        ([None, None, None, None], 9.0, False, "a message is not linear in it"),
    ],
)
def test_far_draws_hide_a_record_as_usual_ones_do(monkeypatch, ratios, far, linear, said) -> None:
    """Where no usual draw is moved to hide it, messages must be as linear far out as near."""
    oracle = SimpleNamespace()
    coupled: Any = SimpleNamespace(
        kept_batches=lambda k: oracle, setting=SimpleNamespace(holders=(0,)),
        defense=SimpleNamespace(n_rounds=9),
    )  # fmt: skip
    monkeypatch.setattr(rare_noise, "PlayedWorld", lambda *of: SimpleNamespace(levels=None))
    monkeypatch.setattr(rare_noise, "all_without_first", lambda *_: None)
    monkeypatch.setattr(rare_noise, "replace", lambda world, levels: SimpleNamespace(levels=levels))
    lags: list[int] = []

    def ratio(pair: Any, lag: int, adjacency: str) -> Any:
        if pair[0].levels is None:
            return ratios[lag]
        lags.append(lag)
        return far

    monkeypatch.setattr(rare_noise, "ratio", ratio)
    monkeypatch.setattr(rare_noise, "_levels", lambda world: iter([{"a": 7.0}]))
    monkeypatch.setattr(rare_noise, "_is_linear", lambda world, levels, part: linear or part < 1)
    found = rare_noise._in_a_round(coupled, NOTHING, 2, "add-remove")
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert said in found
    shown = next((lag for lag, x in enumerate(ratios) if x is not None), None)
    assert lags == ([] if shown is None else [shown])


@pytest.mark.parametrize(
    ("payloads", "is_linear"),
    [
        ([[1.0, -4.0], [2.0, -6.0], [3.0, -8.0]], True),
        ([[1.0, -4.0], [2.0, -6.0], [3.1, -8.0]], False),
        ([[1.0, -4.0], [2.0, -6.0], [3.0, -7.9]], False),
        ([[], [], []], True),
    ],
)
def test_messages_go_on_as_they_begin(monkeypatch, payloads: Any, is_linear: bool) -> None:
    asked: list[Any] = []

    def played(world: Any, levels: Any) -> Any:
        asked.append(levels)
        i = len(asked) - 1
        sent = {"x": SimpleNamespace(payload=torch.tensor(payloads[i], dtype=torch.float64))}
        return SimpleNamespace(noisy=SimpleNamespace(sent=sent))

    monkeypatch.setattr(rare_noise, "replace", played)
    assert rare_noise._is_linear(NOTHING, {"a": 8.0, "b": -4.0}, 0.5) is is_linear
    assert asked == [{"a": 0.0, "b": 0.0}, {"a": 2.0, "b": -1.0}, {"a": 4.0, "b": -2.0}]


def bounded(record: float, low: float = -1.0, high: float = 1.0) -> Any:
    """Messages of both worlds where noise is added and cut: without a record, and with one."""

    def sent(value: float | Tensor) -> np.ndarray:
        noise = np.full(1, value) if isinstance(value, float) else value.numpy()[0, 1, :]
        return np.stack([np.clip(noise, low, high), np.clip(noise, low, high) + record])

    return sent


def test_a_record_beyond_the_end_of_noise_is_found() -> None:
    """Noise is cut at 1, and a record moves by 1/2, of which an eighth beyond the end is slack.

    Finer values begin 1.1 coarse steps of 1/3 before the end, so that no more is counted.
    """
    shape = torch.Size((1, 3, 1))
    probability, moved = bounded_noise._probability(bounded(0.5), shape, 1, 4.0, norm.cdf)  # type: ignore[misc]
    assert moved == pytest.approx(0.5)
    assert probability < norm.sf(1 + 1 / 8 - 1 / 2)
    assert probability == pytest.approx(norm.sf(1 - 1.1 / 3), abs=1e-3)
    assert bounded_noise._probability(bounded(0.0), shape, 1, 4.0, norm.cdf) is None
    open_ended = bounded(0.5, -1e9, 1e9)
    assert bounded_noise._probability(open_ended, shape, 1, 4.0, norm.cdf) is None


def draw(stream: str, scale: float = 1.0) -> Any:
    return (stream, "gaussian", (2, 3), scale)


def world(*draws: Any) -> Any:
    return SimpleNamespace(noisy=SimpleNamespace(draws=draws))


def test_pairs_that_draw_the_same_noise_are_kept() -> None:
    one, same, other = world(draw("a")), world(draw("a", 2.0)), world(draw("b"))
    assert values.same_draws(one.noisy, same.noisy)
    assert not values.same_draws(one.noisy, other.noisy)
    assert not values.same_draws(one.noisy, world(draw("a"), draw("a")).noisy)
    found = values.with_same_draws({"x": [(one, same), (one, other)], "y": [(other, one)]})
    assert found == {"x": [(one, same)]}


@pytest.mark.parametrize(
    ("found", "again", "beside", "moved", "expected", "unclear"),
    [
        ({}, {}, (1, 1), 0.0, {}, False),
        ({"x": True}, {}, (1, 1), 1.0, {}, False),  # noise is moved to explain it
        ({"x": True}, {"x": True}, (1, 1), 1.0, {"x": True}, False),
        ({"x": True}, {}, (1, 1), 1.1, {"x": True}, False),  # by more than is declared
        ({}, {}, (1, 2), 0.0, {}, True),
        ({}, {}, (1, 3), 0.0, {}, False),  # the same once noise is moved
    ],
)
def test_what_depends_on_noisy_values_alone_is_explained(
    monkeypatch, found, again, beside, moved, expected, unclear
) -> None:
    monkeypatch.setattr(
        values, "dependent", lambda one, other, rounding=0.0: dict(again if rounding else found)
    )
    after = SimpleNamespace(beside=1), SimpleNamespace(beside=2 if beside == (1, 2) else 1)
    replayed = SimpleNamespace(
        here=SimpleNamespace(played=after[0]), there=SimpleNamespace(played=after[1]), moved=moved
    )
    monkeypatch.setattr(values, "replay", lambda *_: replayed)
    one, other = (SimpleNamespace(noisy=SimpleNamespace(beside=b)) for b in beside)
    depends, open_ = values.compare(one, other, "add-remove")  # type: ignore[arg-type]
    assert depends == expected
    assert open_ == ([values.BESIDE] if unclear else [])


def test_a_draw_is_looked_at_in_one_sum_or_its_last() -> None:
    key, other = (1, "z"), (1, "w")
    watched: Any = SimpleNamespace(values={key: ["a", "b", "c"], other: ["d"]})
    found: Any = [replay._values(watched, n) for n in range(4)]
    assert [x[key] for x in found] == ["a", "b", "c", "c"]
    assert [x[other] for x in found] == ["d"] * 4
