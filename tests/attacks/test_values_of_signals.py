"""What is left of values through layers, plays and short searches, by hand."""

from math import inf, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpaudit.attack as da
from dpaudit.attacks import weather
from dpaudit.attacks.canaries import records as canary_records
from dpaudit.attacks.gradient_inversion import attack as inversion
from dpaudit.attacks.gradient_inversion.recursion import (
    _ACTIVE,
    LayerCall,
    Signal,
    _before_activation,
    _rms,
)
from dpaudit.attacks.sensitivity import alignment, unseen_inputs, worlds
from dpaudit.attacks.sensitivity.examination import RoundExamination
from dpaudit.attacks.shadow_models import attack as shadow_attack
from dpaudit.attacks.shadow_models import scores
from dpaudit.attacks.shadow_models.attack import ShadowModels

NOTHING: Any = None


def before(layer: nn.Module, *values: float, shape: tuple[int, ...] = (4,)) -> Signal:
    a = torch.tensor(values, dtype=torch.float64)
    call = LayerCall(layer, torch.zeros(2, *shape), torch.zeros(2, len(values)), {}, {})
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
    monkeypatch.setattr(unseen_inputs, "small_problem", lambda real: small)
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

    monkeypatch.setattr(unseen_inputs, "RoundExamination", Examined)
    monkeypatch.setattr(unseen_inputs, "_Round", of_round)
    broken = failing = 0
    found: Any = unseen_inputs.few_with_gradients(NOTHING, "add-remove")
    assert looked == rounds
    assert found[1] == [f"row {k}" for k in rounds]
    assert played == list(range(1, min(n_rounds, 20) + 1))
    failing = rounds[-1]
    found = unseen_inputs.few_with_gradients(NOTHING, "add-remove")
    assert found[1] == [f"row {k}" for k in rounds[:-1]]
    assert list(found[0].unclear) == [unseen_inputs.FAILS.format("KeyError")]
    broken, failing = rounds[-1], 0
    assert unseen_inputs.few_with_gradients(NOTHING, "add-remove")[1] == [
        f"row {k}" for k in rounds[:-1]
    ]
    monkeypatch.setattr(unseen_inputs, "small_problem", lambda real: None)
    assert unseen_inputs.few_with_gradients(NOTHING, "add-remove") == (None, [])


def test_noise_that_reaches_messages_is_that_of_round_1(monkeypatch: pytest.MonkeyPatch) -> None:
    coupled: Any = SimpleNamespace(start=lambda: "start", kept_batches=lambda k: f"batches {k}")
    monkeypatch.setattr(
        "dpaudit.attacks.sensitivity.examination.PlayedWorld", lambda *of: of[1:]
    )  # fmt: skip
    monkeypatch.setattr("dpaudit.attacks.sensitivity.examination.reaching", lambda world: world)
    found: Any = RoundExamination(coupled, 0, 0)._first
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
    monkeypatch.setattr(alignment, "_owners", lambda *_: owners)
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


def test_a_canary_is_as_present_as_its_part_of_a_gradient() -> None:
    """By ridge regression: of two orthogonal gradients of squared lengths 4 and 16."""
    gradients: Any = SimpleNamespace(clipped_sum=clipped_inputs)
    inputs, labels = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1])
    derived: Any = SimpleNamespace(model=torch.zeros(2), gradient=torch.tensor([3.0, -1.0]))
    ridge = canary_records.RIDGE * 10
    found = canary_records._presence(inputs, labels, derived, gradients, None)
    assert found.tolist() == pytest.approx([6 / (4 + ridge), -4 / (16 + ridge)])
    clipped = canary_records._presence(inputs, labels, derived, gradients, 2.0)
    ridge = canary_records.RIDGE * 4
    assert clipped.tolist() == pytest.approx([6 / (4 + ridge), -2 / (4 + ridge)])
    assert clipped.dtype == torch.float64


def clipped_inputs(
    X: Tensor, inputs: Tensor, labels: Tensor, C: float | None, holders: Tensor
) -> Tensor:
    """Of records that each are in a batch of their own: their inputs, no longer than C."""
    assert X.shape == (len(holders), 2)
    each = inputs[holders][:, 0]
    return each if C is None else each * (C / each.norm(dim=1, keepdim=True)).clamp(max=1)


@pytest.mark.parametrize(
    ("kept", "before", "keeps", "played"),
    [
        ([], 1, False, []),
        ([[True, True]], 1, False, []),
        ([[False, True]], 2, True, []),
        ([[True, False]], 2, False, []),
        ([[False, True], [True, False]], 3, False, []),
        ([], 2, True, [1]),
        ([[False, False]], 4, True, [2, 3]),
    ],
)
def test_noise_is_kept_by_the_round_before(kept, before: int, keeps: bool, played) -> None:
    """Rounds of the run are played until then."""
    run, asked = SimpleNamespace(kept=list(kept), state="state"), list[int]()
    coupled: Any = SimpleNamespace(
        _run=lambda: run, victim=1, oracle=lambda k: k, play=lambda state, k, oracle: oracle
    )

    def note(k: int, of: int) -> None:
        assert k == of
        asked.append(k)
        run.kept.append([False, True])

    coupled.note_noise = note
    assert worlds.CoupledWorlds.keeps_noise(coupled, before) is keeps
    assert asked == played


@pytest.mark.parametrize(
    ("kind", "access", "with_gradients", "what"),
    [
        ("final-model", "white-box", True, "log odds of the label and log norm of the gradient"),
        ("final-model", "black-box", False, "log odds of the label after"),
        ("external", "white-box", False, "log odds of the label after"),
    ],
)
def test_gradients_are_scored_of_parameters_that_are_seen(
    monkeypatch, kind: Any, access: Any, with_gradients: bool, what: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        shadow_attack, "deal",
        lambda problem, n, own, rng: SimpleNamespace(dealt=(n, own), included=None),
    )  # fmt: skip
    monkeypatch.setattr(ShadowModels, "_too_few", lambda self, included: None)

    def train(context: Any, defense: Any, dealt: Any, rounds: Any, watched: Any, *of: Any) -> Any:
        asked.append((defense, dealt.dealt, of[0]))
        return SimpleNamespace(records=np.zeros((1, 1, 2, 1))) if seen else None

    monkeypatch.setattr(shadow_attack, "train_shadows", train)
    monkeypatch.setattr(ShadowModels, "_scored", lambda *_: iter([("by LiRA", {})]))
    monkeypatch.setattr(ShadowModels, "_finding", lambda self, c, t, rounds, *of: of)
    defense = SimpleNamespace(n_rounds=9, messages={"x": ""}, without_noise=lambda: "quiet")
    context: Any = SimpleNamespace(
        problem=object.__new__(da.Classification), defense=defense,
        part=SimpleNamespace(world="defense"), streams=SimpleNamespace(numpy=lambda *_: None),
    )  # fmt: skip
    view: Any = SimpleNamespace(
        has_final_model=kind == "final-model", access=access, agents=(2,), name="it"
    )
    seen = True
    attack = ShadowModels(shadows=8, targets=4)
    found: Any = attack.measure(context, view, lambda *_: None)
    assert asked == [(defense, (12, (2,)), with_gradients)]
    assert (found[0][0], found[0][2]) == ("by LiRA", {})
    assert what in found[0][1][0]
    last = "the last round" if kind == "final-model" else "2 of 9 rounds"
    assert f"after {last}" in found[0][1][0]
    seen = False
    lacking: Any = attack.measure(context, view, lambda *_: None)
    assert lacking == [("membership", ('not available: it reads no link with "x"',))]


@pytest.mark.parametrize("filled", [1, 4])
def test_a_record_in_all_layers_leaks_in_each(monkeypatch, filled: int) -> None:
    """By its largest use: of three rounds, of two victims."""
    H = torch.stack([torch.diag(torch.tensor([1.0, 4.0, 9.0])), torch.eye(3)]).double()
    noiseless: dict[int, str] = {}
    monkeypatch.setattr(
        weather, "leak_by_agent",
        lambda adversary, victims, rounds: (H, noiseless),
    )  # fmt: skip
    game = SimpleNamespace(filled=filled)
    adversary: Any = SimpleNamespace(n_rounds=3, game=game, reacts="reacts")
    once = weather.Participation(1, 3)
    assert weather._learned(adversary, once, [0, 1]) == (3.0 * filled**0.5, "reacts")
    every = weather.Participation(3, 1)
    found = weather._learned(adversary, every, [0, 1], 1)
    assert found.mu == pytest.approx((14 * filled) ** 0.5)
    noiseless[1] = "x"
    assert weather._learned(adversary, once, [0, 1]) == (inf, "reacts")
