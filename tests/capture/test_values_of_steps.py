"""What messages are made of, value by value: mixing of weights, and other training than declared."""

from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpaudit.capture import local_steps as steps
from dpaudit.capture import option_mismatches
from dpaudit.capture.local_steps import LocalSteps, mixing_of, said_of, unlike_declared
from dpaudit.files.local_training import LocalTraining


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def turns(gradients: list[float]) -> tuple[float, list[tuple[float, float]]]:
    """What is found if the gradient at turn k is (g_k, 0, 1), and what was asked for.

    The message (1000, 2, 1) is then (1000 - g_k) and 2 of the weights, and the gradient.
    """
    asked: list[tuple[float, float]] = []

    def gradient(weights: Tensor, factor: float) -> Tensor:
        asked.append((float(weights[0]), factor))
        return vector(gradients[min(len(asked), len(gradients)) - 1], 0.0, 1.0)

    found = mixing_of(vector(1000.0, 2.0, 1.0), torch.eye(3, dtype=torch.float64)[:2], gradient)
    assert found[1] == pytest.approx(2.0)
    return float(found[0]), asked


def test_weights_and_gradient_are_found_in_turns() -> None:
    """Until the weights change by 1e-9 of their length, which is 999 here."""
    found, asked = turns([1.0, 1.0 + 2e-6, 1.0 + 2.5e-6, 7.0])
    assert found == pytest.approx(999 - 2.5e-6, abs=1e-8)
    assert [one for one, _ in asked] == pytest.approx([1000, 999, 999 - 2e-6], abs=1e-8)
    assert [factor for _, factor in asked] == pytest.approx([0.0, 1.0, 1.0])
    assert len(turns([1.0])[1]) == 2


def test_turns_end_where_weights_do_not_settle() -> None:
    _, asked = turns([float((k + 1) % 2) for k in range(100)])
    assert len(asked) == steps.REFITS == 50


def test_weights_that_were_mixed_are_found_again() -> None:
    rng = torch.Generator().manual_seed(4)
    before = torch.randn(2, 7, generator=rng, dtype=torch.float64)

    def gradient(weights: Tensor, factor: float) -> Tensor:
        return weights**3 + factor

    mixed = vector(0.6, 0.4)
    start = mixed @ before
    message = start - 0.1 * gradient(start, -0.1)
    assert mixing_of(message, before, gradient).tolist() == pytest.approx([0.6, 0.4], rel=1e-6)


def test_one_step_is_not_played() -> None:
    exact = LocalSteps(vector(), -0.3, 1.0)
    update = -0.3 * vector(1.0, 0.0)
    assert exact.played(update, lambda _: vector(1.0, 0.0), (2,), None) is exact
    several = exact.played(update, lambda _: vector(1.0, 0.0), (2, 2), None)
    assert several.simulation is not None
    assert LocalSteps(vector(), 1.0, 0.0)[3:] == (None, 1.0)


def test_the_first_agent_says_what_is_attacked() -> None:
    one = LocalSteps(vector(), 1.0, 0.95)
    played = one._replace(simulation=SimpleNamespace())  # type: ignore[arg-type]
    assert said_of([(2, played), (3, one)]) == "3 local steps, played with dummies,"
    assert said_of([(2, one), (3, played)]).startswith("the mean gradient of 3 local steps")


@pytest.mark.parametrize(
    ("scale", "noted"),
    [(1.009, False), (1.011, True), (0.991, False), (0.989, True), (1.0, False)],
)
def test_lengths_that_differ_by_a_hundredth_are_noted(scale: float, noted: bool) -> None:
    training = LocalTraining(optimizer="sgd", learning_rate=0.5)
    assert bool(unlike_declared(training, scale)) is noted


NET = nn.Linear(2, 1, bias=False)


@pytest.mark.parametrize(
    ("message", "weights", "named", "close"),
    [
        ((9.0, 3.0, 3.0, 1.0), (1.0, 0.0, 0.0, 0.0), False, False),  # its cosine is 0.9
        ((9.1, 3.0, 3.0, 1.0), (1.0, 0.0, 0.0, 0.0), False, True),
        ((91.0, 30.0, 30.0, 10.0), (10.0, 0.0, 0.0, 0.0), False, True),
        ((0.089, 0.03, 0.03, 0.01), (0.1, 0.0, 0.0, 0.0), False, False),
        ((-9.1, 3.0, 3.0, 1.0), (1.0, 0.0, 0.0, 0.0), False, False),
        ((9.1, 3.0, 3.0, 1.0), (1.0, 0.0, 0.0, 0.0), True, False),
        ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0), False, False),
    ],
)
def test_a_message_close_to_weights_is_named(message, weights, named, close) -> None:
    found = option_mismatches.weights_or_update(vector(*message), vector(*weights), None, named)
    assert found.startswith("it is close to the weights" if close else "")
    assert bool(found) is close


def test_a_gradient_is_named_where_its_line_is_of_weights() -> None:
    message, gradient = vector(1.0, -2.0), vector(-3.0, 6.0)
    zero = torch.zeros(2, dtype=torch.float64)
    assert "gradient itself" in option_mismatches.weights_or_update(message, zero, gradient, True)
    assert option_mismatches.weights_or_update(message, zero, gradient, False) == ""
    assert option_mismatches.weights_or_update(message, zero, vector(-3.0, 5.0), True) == ""


def test_gradients_are_asked_for_at_both_weights() -> None:
    asked: list[tuple[float, float]] = []

    def gradient(weights: Tensor, factor: float) -> Tensor:
        asked.append((float(weights[0]), factor))
        return vector(1.0, 0.0)

    sent = SimpleNamespace(message=vector(0.0, 1.0), weights=vector(3.0, 0.0), sizes=(1,))
    update = SimpleNamespace(message=vector(0.0, 1.0), weights=vector(5.0, 0.0), sizes=(1,))
    said = option_mismatches.other_gradient(NET, sent, update, gradient, True)
    assert said == option_mismatches.OF_GRADIENT
    assert asked == [(3.0, 0.0), (5.0, 0.0)]


def of_rate(size: Any) -> tuple[Any, list[float]]:
    """Training that moves weights along (1, 0) by a function of its rate; and rates asked for."""
    asked: list[float] = []

    def moved(training: LocalTraining) -> Tensor:
        asked.append(training.learning_rate)
        return size(training.learning_rate) * vector(1.0, 0.0)

    return moved, asked


SGD = LocalTraining(optimizer="sgd", learning_rate=1.0)


@pytest.mark.parametrize(
    ("length", "rates"),
    [(1.0009, [1.0]), (0.9991, [1.0]), (1.0011, [1.0, 1.0011]), (3.0, [1.0, 3.0])],
)
def test_a_rate_is_found_to_a_thousandth(length: float, rates: list[float]) -> None:
    moved, asked = of_rate(lambda rate: rate)
    found = option_mismatches._with_rate(SGD, vector(-length, 0.0), moved)
    assert found is not None
    assert asked == pytest.approx(rates)
    assert found.learning_rate == pytest.approx(rates[-1])
    assert option_mismatches._with_rate(SGD, vector(0.0, length), moved) is None


@pytest.mark.parametrize(("size", "calls"), [(0.0, 1), (inf, 1), (2.0, 8)])
def test_a_rate_that_does_not_settle_is_none(size: float, calls: int) -> None:
    moved, asked = of_rate(lambda _: size)
    update = vector(1.0, 0.0) if size else vector(1.0, 1.0)
    assert option_mismatches._with_rate(SGD, update, moved) is None
    assert len(asked) == calls


def test_other_training_is_said_by_what_differs() -> None:
    def moved(training: LocalTraining) -> Tensor:
        turned = training.momentum or training.optimizer == "adamw"
        return training.learning_rate * vector(1.0, float(turned) * (1 + training.momentum))

    heavy = LocalTraining(optimizer="sgd", learning_rate=2.0, momentum=0.5)
    plain, adamw = vector(6.0, 0.0), vector(6.0, 6.0)
    say = option_mismatches.other_training
    assert say(heavy, plain, moved) == "learning_rate = 6 without momentum makes it"
    assert say(heavy, adamw, moved) == "learning_rate = 6 of adamw without momentum makes it"
    assert say(heavy, vector(6.0, 4.5), moved) == "learning_rate = 6 makes it"
    assert say(SGD, plain, moved) == "learning_rate = 6 makes it"
    assert say(SGD, adamw, moved) == "learning_rate = 6 of adamw makes it"
    other = LocalTraining(optimizer="adamw", learning_rate=2.0)
    assert say(other, plain, moved) == "learning_rate = 6 of sgd makes it"
    outer = LocalTraining(optimizer="sgd", learning_rate=2.0, outer_learning_rate=0.5)
    assert say(outer, plain, moved) == ("learning_rate = 6, or outer_learning_rate = 1.5, makes it")
    assert say(SGD, vector(1.0, -1.0), moved) == ""


def of_steps(monkeypatch: pytest.MonkeyPatch, message: Tensor, **at: Any) -> str:
    """What is said of a message if training moves weights (1, 1) by its rate along (1, 2)."""

    def played(training: LocalTraining, sizes: tuple[int, ...], clip_norm: float | None) -> Any:
        assert (sizes, clip_norm) == ((2, 2), 3.0)
        turn = -1.0 if training.optimizer == "adamw" else 1.0
        move = training.learning_rate * vector(1.0, 2.0 * turn)
        return SimpleNamespace(moved=lambda oracle, X: X - X + move)

    monkeypatch.setattr(option_mismatches, "local_steps", played)
    weights = vector(1.0, 1.0)
    sent = SimpleNamespace(message=at.get("sent", message), weights=weights, sizes=(2, 2))
    update = SimpleNamespace(message=message, weights=weights, sizes=(2, 2))
    options: Any = SimpleNamespace(local=SGD, clip_norm=3.0)
    oracle: Any = None
    return option_mismatches.other_steps(NET, sent, update, oracle, options, at.get("named", True))


def test_a_message_of_other_steps_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    say = option_mismatches.OF_STEPS
    assert of_steps(monkeypatch, vector(4.0, 8.0)) == "learning_rate = 4 makes it"
    assert "of adamw" in of_steps(monkeypatch, vector(4.0, -8.0))
    assert "reverse order" not in of_steps(monkeypatch, vector(4.0, 8.0))
    assert of_steps(monkeypatch, vector(3.0, sqrt(2.0))) == say
    close = of_steps(monkeypatch, vector(3.0, sqrt(2.0)), sent=vector(1.0, 1.1), named=False)
    assert close.startswith("it is close to the weights")


def test_numbers_in_another_order_are_those_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a message that is both, its rate is said: its order is right."""
    said = [("in reverse order", vector(2.0, 1.0))]
    monkeypatch.setattr(option_mismatches, "_orders", lambda module, gradient: iter(said))
    found = of_steps(monkeypatch, vector(2.0, 1.0))
    assert found == "it is that with in reverse order; expected the order of model.parameters()"
    said[:] = [("in reverse order", vector(1.0, 2.0))]
    assert of_steps(monkeypatch, vector(4.0, 8.0)) == "learning_rate = 4 makes it"
