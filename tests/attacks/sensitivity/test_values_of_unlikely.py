"""Which draws and lengths are tried beside those of the run, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity import (
    message_laws,
    rare_noise,
    side_effects,
    worst_length,
)
from dpaudit.training.classification import Batch

NOTHING: Any = None


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("shifts", "is_shift"),
    [([0.0] * 8, True), ([0.0] * 7 + [4e-9], True), ([0.0] * 7 + [6e-9], False)],
)
def test_a_shift_is_the_same_under_eight_further_draws(monkeypatch, shifts, is_shift) -> None:
    """Of a difference of length 5, to a billionth, in every row."""
    base = torch.tensor([[3.0, 4.0], [0.0, 1.0]]).double()

    def redrawn(here: Any, there: Any, purpose: str, n: int) -> Any:
        assert (purpose, n) == ("shift", 8)
        return iter((shift, None) for shift in shifts)

    monkeypatch.setattr(message_laws, "redrawn", redrawn)
    monkeypatch.setattr(
        message_laws, "_difference",
        lambda here, there, message: base + vector(here or 0.0, 0.0) * vector(0.0, 1.0)[:, None],
    )  # fmt: skip
    assert message_laws.is_shift(NOTHING, NOTHING, "x") is is_shift


@pytest.mark.parametrize("wherever", [False, True])
def test_plays_are_of_draws_of_their_own(monkeypatch, wherever: bool) -> None:
    """A hundred of each world; or twice as many, of which each is taken from the one before."""
    monkeypatch.setattr(message_laws, "replace", lambda world, streams: (world, streams))
    streams = SimpleNamespace(child=lambda *of: of)
    here: Any = SimpleNamespace(coupled=SimpleNamespace(streams=streams))
    both = list(message_laws.redrawn(here, NOTHING, "shift", 2))
    assert [one[1][2:] for pair in both for one in pair] == [
        ("both", 0), ("both", 0), ("both", 1), ("both", 1),
    ]  # fmt: skip
    apart = list(message_laws.redrawn(here, NOTHING, "shift", 2, apart=True))
    assert [one[1] for one in apart[1]] == [("law", "shift", w, 1) for w in ("here", "there")]

    def redrawn(here: Any, there: Any, purpose: str, n: int, apart: bool) -> Any:
        assert (purpose, n, apart) == ("choosing", 100 * (1 + wherever), True)
        for i in range(n):
            sizes = (1.0 * i * i, 10.0 + i)
            yield tuple(
                SimpleNamespace(noisy=SimpleNamespace(sent={"x": vector(size), "y": vector(0.0)}))
                for size in sizes
            )

    monkeypatch.setattr(message_laws, "redrawn", redrawn)
    here.coupled.own = lambda payload: payload
    sums = message_laws._sums(here, here, ["x"], wherever)
    assert list(sums) == ["x"]
    one, other = (float(x) for x in sums["x"])
    if wherever:  # sums of i^2 - (i + 1)^2 and of -1, for even i
        assert (one, other) == (-sum(2.0 * i + 1 for i in range(0, 200, 2)), -100.0)
    else:
        assert (one, other) == (sum(1.0 * i * i for i in range(100)), 1000.0 + 99 * 50)


def test_lengths_of_a_large_batch_are_tried_in_one_record(monkeypatch: Any) -> None:
    """Four records of three agents with gradients of two numbers: 24 of them."""
    assert (worst_length.SHARES[0], worst_length.SHARES[11:14], worst_length.SHARES[-1]) == (
        1e-3, (0.95, 1.05, 1.1), 100,
    )  # fmt: skip
    assert sorted(worst_length.SHARES) == list(worst_length.SHARES)
    steps = zip(worst_length.SHARES, worst_length.SHARES[1:], strict=False)
    assert max(b / a for a, b in steps) < 3.4  # so that no length is far from one that is tried
    searched: list[Any] = []

    def chosen(coupled: Any, world: Any, *of: Any) -> list[float]:
        searched.append(world)
        if world == "one record":
            raise ValueError("needs its whole batch")
        return [2.5]

    monkeypatch.setattr(worst_length, "_chosen", chosen)
    monkeypatch.setattr(worst_length, "_with_one_record", lambda world: "one record")
    monkeypatch.setattr(worst_length, "_vacant", lambda *_: "vacant")
    monkeypatch.setattr(worst_length, "_with", lambda coupled, without, gradient: gradient.tolist())
    world: Any = SimpleNamespace(oracle=SimpleNamespace(batch_size=4), state=[torch.zeros(3, 2)])
    for most, found in (
        (24, ([("vacant", [1.5, 2.0])], None)),
        (23, ([], worst_length.IN_A_SMALL_BATCH.format("ValueError"))),
    ):
        monkeypatch.setattr(worst_length, "MOST", most)
        assert worst_length.longest_moving(
            NOTHING, world, vector(3.0, 4.0), 1.0, 2, False, False
        ) == found  # fmt: skip
    assert searched == [world, "one record"]


def test_the_first_record_of_every_batch_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        worst_length, "replace", lambda one, **of: of.get("batch", of.get("oracle"))
    )
    monkeypatch.setattr(worst_length, "KeptAnswers", SimpleNamespace(of=lambda batch: batch))
    inputs, labels = torch.arange(6.0).view(2, 3), torch.arange(6).view(2, 3)
    for weights in (None, torch.arange(6.0).view(2, 3) + 10):
        world: Any = SimpleNamespace(oracle=SimpleNamespace(batch=Batch(inputs, labels, weights)))
        found: Any = worst_length._with_one_record(world)
        assert (found.inputs.tolist(), found.labels.tolist()) == ([[0], [3]], [[0], [3]])
        assert found.weights is None if weights is None else found.weights.tolist() == [[10], [13]]


@pytest.mark.parametrize(
    ("n_rounds", "looked"), [(1, [1]), (2, [1, 2]), (6, [1, 4, 6]), (50, [1, 10, 20])]
)
def test_unlikely_draws_are_tried_in_few_rounds(monkeypatch, n_rounds: int, looked: Any) -> None:
    """From the first to the last one, which is the twentieth at most."""
    asked: list[Any] = []
    drawn: set[str] = set()

    class Watched:
        def __enter__(self) -> set[str]:
            return drawn

        def __exit__(self, *_: Any) -> None:
            pass

    def in_a_round(coupled: Any, state: int, k: int, change: str) -> str | None:
        assert state == 100 + k - 1
        asked.append(k)
        return "said" if k == says else None

    monkeypatch.setattr(rare_noise, "own_draws", SimpleNamespace(watched=lambda defense: Watched()))
    monkeypatch.setattr(rare_noise, "_in_a_round", in_a_round)
    coupled: Any = SimpleNamespace(
        start=lambda: 100, defense=SimpleNamespace(n_rounds=n_rounds),
        kept_oracle=lambda k: k, play=lambda state, k, oracle: SimpleNamespace(state=state + 1),
    )  # fmt: skip
    says = 0
    assert rare_noise._in_rounds(coupled, "add-remove") is None
    assert asked == looked
    says = looked[0]
    assert rare_noise._in_rounds(coupled, "add-remove") == "said"
    drawn.add("random")
    assert rare_noise._in_rounds(coupled, "add-remove") == rare_noise.OWN
    assert asked == [*looked, looked[0]]


@pytest.mark.parametrize(("n_rounds", "lags"), [(9, [0, 1, 2, 3]), (4, [0, 1, 2]), (2, [0])])
def test_an_unlikely_draw_is_bent_near_or_far(monkeypatch, n_rounds: int, lags: Any) -> None:
    """A message is linear up to an eighth of its way out, and no further; and named by its draw."""
    tried: list[int] = []
    parts: list[float] = []

    def ratio(pair: Any, lag: int, change: str) -> None:
        tried.append(lag)

    def is_linear(world: Any, levels: Any, part: float) -> bool:
        parts.append(part)
        return part < 1

    monkeypatch.setattr(rare_noise, "PlayedWorld", lambda *of: "world")
    monkeypatch.setattr(rare_noise, "all_without_first", lambda *_: None)
    monkeypatch.setattr(rare_noise, "ratio", ratio)
    monkeypatch.setattr(rare_noise, "_is_linear", is_linear)
    monkeypatch.setattr(rare_noise, "_levels", lambda world: iter([{"a": 7.0, "b": 1.0}]))
    coupled: Any = SimpleNamespace(
        kept_batches=lambda k: None, setting=SimpleNamespace(holders=(0,)),
        defense=SimpleNamespace(n_rounds=n_rounds),
    )  # fmt: skip
    said = (
        "the noise of a round where all draws of noise are far out: a message is not linear in it"
    )
    assert rare_noise._in_a_round(coupled, NOTHING, 2, "add-remove") == said
    assert (tried, parts) == (lags, [1 / 8, 1.0])
    assert rare_noise._said({"a": -5.5}) == 'the draw "a" is -5.5 times its scale'


def test_a_draw_of_one_number_is_tried_at_any_distance(tmp_path: Any) -> None:
    """By the last axis of a draw; what a step writes is read up to ten million bytes."""
    draw = SimpleNamespace(stream="a", family="gaussian", shape=(3, 5, 1))
    world: Any = SimpleNamespace(noisy=SimpleNamespace(draws=[draw]))
    assert len(list(rare_noise._levels(world))) == 22
    draw.shape = (3, 1, 5)
    assert len(list(rare_noise._levels(world))) == 2
    path = tmp_path / "log"
    seen = side_effects.SideEffects()
    seen.note("open", (str(path), "w", 1))
    path.write_text("a line of more than ten numbers")
    assert seen.texts() == (f"{path}: b'a line of more than ten numbers'",)
