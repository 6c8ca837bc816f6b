"""What is left of values through layers, plays and short searches, by hand."""

from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpaudit.attack as da
from dpaudit.attacks.gradient_inversion import attack as inversion
from dpaudit.attacks.gradient_inversion.recursion import (
    _ACTIVE,
    Call,
    Signal,
    _before_activation,
    _rms,
)
from dpaudit.attacks.sensitivity import alignment, few, worlds
from dpaudit.attacks.sensitivity.examination import Examination
from dpaudit.attacks.shadow_models import scores

NOTHING: Any = None


def before(layer: nn.Module, *values: float, shape: tuple[int, ...] = (4,)) -> Signal:
    a = torch.tensor(values, dtype=torch.float64)
    call = Call(layer, torch.zeros(2, *shape), torch.zeros(2, len(values)), {}, {})
    return _before_activation(call, Signal(a, 3 * torch.ones_like(a), 2 * torch.ones_like(a)))


def test_a_rectifier_leaves_what_is_clearly_on() -> None:
    """By the largest output of either sign; the slope of what is off is nothing."""
    limit = 10 * _ACTIVE
    found = before(nn.ReLU(), -10.0, 0.9 * limit, 1.1 * limit, 2.0)
    assert found.value.tolist() == [-10.0, 0.9 * limit, 1.1 * limit, 2.0]
    assert found.slope.tolist() == [0.0, 0.0, 3.0, 3.0]
    assert found.known.tolist() == [0.0, 0.0, 2.0, 2.0]


def test_activations_are_inverted_with_their_slopes() -> None:
    found = before(nn.Sigmoid(), 0.5, 0.25, 1.0, 1.5)
    assert found.value.tolist() == pytest.approx([0.0, log(1 / 3), 0.0, 0.0])
    assert found.slope.tolist() == pytest.approx([0.75, 3 * 3 / 16, 0.0, 0.0])
    assert found.known.tolist() == pytest.approx([0.5, 2 * 3 / 16, 0.0, 0.0])
    tanh = before(nn.Tanh(), 0.0, 0.6, -0.6, 2.0)
    assert tanh.value.tolist() == pytest.approx([0.0, log(2), -log(2), 0.0])
    assert tanh.slope.tolist() == pytest.approx([3.0, 3 * 0.64, 3 * 0.64, 0.0])
    leaky = before(nn.LeakyReLU(0.5), 2.0, -2.0, 0.0, 1.0)
    assert leaky.value.tolist() == [2.0, -4.0, 0.0, 1.0]
    assert leaky.slope.tolist() == [3.0, 1.5, 1.5, 3.0]
    flat = before(nn.Flatten(), 1.0, 2.0, 3.0, 4.0, shape=(2, 2))
    assert flat.value.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert flat.slope.shape == flat.known.shape == (2, 2)
    for layer in (nn.Softplus(), nn.LeakyReLU(0.0), nn.MaxPool2d(2)):
        with pytest.raises(da.NotObservable, match=f"cannot invert {type(layer).__name__}"):
            before(layer, 1.0, 2.0)
    assert float(_rms(torch.tensor([3.0, 4.0]))) == pytest.approx((12.5) ** 0.5)
    assert float(_rms(torch.zeros(2))) == torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_payloads_are_close_by_the_larger_of_both(sign: float) -> None:
    """By 64 roundings of the largest entry, whatever its sign."""
    unit = 64 * worlds.UNIT * 1024
    a = torch.tensor([0.0, sign * 1024.0], dtype=torch.float64)
    for off, is_close in ((0.9, True), (1.1, False)):
        b = a + torch.tensor([off * unit, 0.0], dtype=torch.float64)
        assert worlds._close(a, b) is is_close
        assert worlds._close(b, a) is is_close
    small = torch.tensor([0.0, 0.0], dtype=torch.float64)
    assert not worlds._close(a, small)
    assert worlds._close(torch.zeros(0), torch.zeros(0))
    assert worlds._close(small, small)


@pytest.mark.parametrize(
    ("again", "is_constant"),
    [
        ([[4.0, 6.0]], True),
        ([[4.0, 6.0 + 1e-3]], False),
        ([[4.0 - 1e-3, 6.0]], False),
        (None, False),
    ],
)
def test_a_move_is_constant_where_another_draw_is_moved_alike(
    monkeypatch, again, is_constant
) -> None:
    """The other draw is of normal numbers, each times its own scale; 0/0 is no move."""
    scale, key = torch.tensor([[2.0, 0.5]]), (1, "z")
    draws, move = {key: SimpleNamespace(scale=scale)}, torch.tensor([[4.0, 6.0]])
    found: Any = SimpleNamespace(there=SimpleNamespace(draws=draws), moves={key: move})
    asked: list[Any] = []

    def replay(here: Any, there: Any, change: str, other: Any) -> Any:
        asked.append(other[key])
        moves = {} if again is None else {key: torch.tensor(again)}
        return SimpleNamespace(moves=moves)

    monkeypatch.setattr(alignment, "replay", replay)
    assert alignment._is_constant(NOTHING, NOTHING, key, found) is is_constant
    normal = torch.randn(1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert asked[0].tolist() == [pytest.approx((normal.float() * scale)[0].tolist())]


@pytest.mark.parametrize(
    ("n_rounds", "rounds"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 4, 6]), (9, [1, 5, 9]), (50, [1, 10, 20])],
)
def test_few_rounds_are_looked_at_from_first_to_last(monkeypatch, n_rounds: int, rounds) -> None:
    """Three at most, the middle one rounded, up to the twentieth."""
    small = SimpleNamespace(defense=SimpleNamespace(n_rounds=n_rounds), start=lambda: 100)
    monkeypatch.setattr(few, "small_problem", lambda real: small)
    looked: list[int] = []
    played: list[int] = []

    class Examined:
        def __init__(self, coupled: Any, *_: Any, aligns: bool) -> None:
            assert (coupled, aligns) == (small, False)
            self.unclear: dict[str, None] = {}

        def next_state(self, state: int, k: int) -> int:
            assert state == 100 + k - 1
            played.append(k)
            if k == broken:
                raise ValueError("the real model alone")
            return 100 + k

    def of_round(examination: Any, state: int, k: int, adjacency: str) -> Any:
        assert (state, adjacency) == (100 + k - 1, "add-remove")

        def rows() -> list[str]:
            looked.append(k)
            if k == failing:
                raise KeyError("few")
            return [f"row {k}"]

        return SimpleNamespace(rows=rows)

    monkeypatch.setattr(few, "Examination", Examined)
    monkeypatch.setattr(few, "_Round", of_round)
    broken = failing = 0
    found: Any = few.few_with_gradients(NOTHING, "add-remove")
    assert looked == rounds
    assert found[1] == [f"row {k}" for k in rounds]
    assert played == list(range(1, min(n_rounds, 20) + 1))
    failing = rounds[-1]
    found = few.few_with_gradients(NOTHING, "add-remove")
    assert found[1] == [f"row {k}" for k in rounds[:-1]]
    assert list(found[0].unclear) == [few.FAILS.format("KeyError")]
    broken, failing = rounds[-1], 0
    assert few.few_with_gradients(NOTHING, "add-remove")[1] == [f"row {k}" for k in rounds[:-1]]
    monkeypatch.setattr(few, "small_problem", lambda real: None)
    assert few.few_with_gradients(NOTHING, "add-remove") == (None, [])


def test_noise_that_reaches_messages_is_that_of_round_1(monkeypatch: pytest.MonkeyPatch) -> None:
    coupled: Any = SimpleNamespace(start=lambda: "start", kept_batches=lambda k: f"batches {k}")
    monkeypatch.setattr(
        "dpaudit.attacks.sensitivity.examination.PlayedWorld", lambda *of: of[1:]
    )  # fmt: skip
    monkeypatch.setattr("dpaudit.attacks.sensitivity.examination.reaching", lambda world: world)
    found: Any = Examination(coupled, 0, 0)._first
    assert found == ("start", 1, "batches 1")


@pytest.mark.parametrize(("n_steps", "short"), [(20, 20), (300, inversion._ORDERED_STEPS)])
def test_orders_are_told_apart_by_short_searches(monkeypatch, n_steps: int, short: int) -> None:
    """Of two victims with three orders each, searched two at a time; the least loss is taken."""
    orders = torch.arange(12).view(2, 3, 2)
    losses = torch.tensor([3.0, 1.0, 2.0, 5.0, 6.0, 4.0])
    monkeypatch.setattr(inversion, "one_pass", lambda local, b: [1, 1])
    monkeypatch.setattr(inversion, "likely_orders", lambda labels, images, sizes, loss: orders)
    monkeypatch.setattr(inversion, "of_each", lambda observed, k: f"each of {k}")
    monkeypatch.setattr(inversion, "at_once", lambda observed, n: 2)
    monkeypatch.setattr(
        inversion, "_objective", lambda observed, task, chosen, labels: (observed, labels.tolist())
    )  # fmt: skip
    asked: list[Any] = []

    def minimum(
        objective: Any, plan: Any, some: Tensor, start: Tensor, groups: Tensor, *of: Any
    ) -> Any:
        asked.append(
            (plan.n_steps, some.tolist(), start.flatten().tolist(), groups.tolist(), of[1])
        )
        assert objective == ("each of 3", orders.flatten(0, 1).tolist())
        return SimpleNamespace(losses=losses[some])

    own: Any = SimpleNamespace(_minimum=minimum)
    task: Any = SimpleNamespace(checkpoint=SimpleNamespace(stage=lambda name: name))
    chosen: Any = inversion.Plan("l1", 0.0, "adam", 1, 1, n_steps)
    observed: Any = SimpleNamespace(local="local", batch_size=2, most_joined=1)
    starts = torch.tensor([[[0.5]], [[0.25]]])
    found = inversion.GradientInversion._in_order(
        own, observed, task, chosen, torch.zeros(2, 2), NOTHING, starts
    )
    assert found.tolist() == [orders[0, 1].tolist(), orders[1, 2].tolist()]
    assert asked == [
        (short, [0, 1], [0.5, 0.5], [0, 0], "order-0"),
        (short, [2, 3], [0.5, 0.25], [0, 1], "order-1"),
        (short, [4, 5], [0.25, 0.25], [0, 0], "order-2"),
    ]


def test_a_pooled_covariance_is_shrunk_to_its_diagonal() -> None:
    """Of two statistics of four runs, with the weight 2 / 6."""
    residuals = np.array([[1.0, 2.0], [-1.0, 0.0], [2.0, 2.0]])
    least = scores.LEAST_VARIANCE * 8 / 2
    found = scores.pooled_covariance(residuals, 2, 4)
    np.testing.assert_allclose(
        found, [[3 + least, 3 * 2 / 3], [3 * 2 / 3, 4 + least]], rtol=1e-12
    )  # fmt: skip
    single = scores.pooled_covariance(residuals[:, :1], 3, 4)
    assert single.tolist() == [[pytest.approx(2 + 2 * scores.LEAST_VARIANCE)]]
    none = scores.pooled_covariance(np.zeros((3, 1)), 0, 4)
    assert none.tolist() == [[scores.LEAST_VARIANCE**2]]


def test_means_are_of_the_runs_that_are_marked() -> None:
    values = np.array([[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [9.0]]])
    which = np.array([[True, False], [True, False], [False, False]])
    assert scores._means(values, which).tolist() == [[2.0], [0.0]]
    means, scale, covariance = scores._fitted(values, which, "pooled")
    assert (means.tolist(), scale.tolist()) == ([[2.0], [0.0]], [[1.0], [1.0]])
    assert covariance.tolist() == [[pytest.approx(2 + 2 * scores.LEAST_VARIANCE)]]
    _, own, _ = scores._fitted(values, which, "own")
    assert own.tolist() == [[1.0], [pytest.approx(scores.LEAST_VARIANCE**0.5)]]
    white = scores._whitened(np.array([[[2.0]], [[4.0]]]), np.array([[4.0]]))
    assert white.tolist() == [[[1.0]], [[2.0]]]
    assert scores._offline(np.array([0.5]), 0.5).tolist() == [0.625]


@pytest.mark.parametrize(
    ("family", "owners", "is_fresh", "found"),
    [
        ("gaussian", [0, 1, 1], True, {(0, "gaussian"): 5.0, (1, "gaussian"): 2 * 2**0.5}),
        ("laplace", [0, 1, 1], True, {(0, "laplace"): 7.0, (1, "laplace"): 4.0}),
        ("gaussian", None, True, None),
        ("gaussian", [0, 1, 1], False, None),
        ("gaussian", None, False, None),
    ],
)
def test_moves_of_noise_add_up_by_agent_and_family(
    monkeypatch, family, owners, is_fresh, found
) -> None:
    """Of scale 2: rows of 6 and 8, and of 4 each, of which one agent made two."""
    draw = SimpleNamespace(family=family, scale=torch.tensor(2.0), is_fresh=is_fresh)
    moves = {(1, "z"): torch.tensor([[6.0, 8.0], [4.0, 0.0], [0.0, -4.0]])}
    replayed = SimpleNamespace(
        here=SimpleNamespace(rounds=[]), moves=moves,
        there=SimpleNamespace(rounds=[], draws={(1, "z"): draw}),
    )  # fmt: skip
    monkeypatch.setattr(alignment, "replay", lambda *_: replayed)
    monkeypatch.setattr(alignment, "_owners", lambda coupled, k, n: owners)
    monkeypatch.setattr(alignment, "_is_constant", lambda *_: True)
    here: Any = SimpleNamespace(coupled=None)
    result = alignment.alignment(here, here, True)
    if found is None:
        assert result == '"z", whose noise is not an agent\'s own'
        return
    assert result == pytest.approx(found)
    monkeypatch.setattr(alignment, "_is_constant", lambda *_: False)
    assert alignment.alignment(here, here, True) == '"z", whose noise must move by what it is,'
    assert alignment.alignment(here, here, False) == pytest.approx(found)
    moves[1, "z"] = torch.zeros(3, 2)
    assert alignment.alignment(here, here, False) == {}
