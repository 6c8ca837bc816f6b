"""Messages that are not what the options of an attack say: what helps is named."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from dpaudit.capture.local_steps import unlike_declared
from dpaudit.capture.option_mismatches import (
    OF_GRADIENT,
    other_gradient,
    other_order,
    other_training,
)
from dpaudit.files.local_training import LocalTraining

NET = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
D = sum(part.numel() for part in NET.parameters())
GRADIENT = torch.linspace(-1.0, 2.0, D, dtype=torch.float64) ** 3
WEIGHTS = torch.linspace(3.0, 1.0, D, dtype=torch.float64)


def helps(message: Tensor, named: bool) -> str:
    sent = SimpleNamespace(message=message, weights=WEIGHTS, sizes=(1,))
    update = SimpleNamespace(message=message - WEIGHTS * named, weights=WEIGHTS, sizes=(1,))
    return other_gradient(NET, sent, update, lambda weights, factor: GRADIENT, named)


def test_weights_taken_for_gradients_are_named() -> None:
    assert "take its line out of messages.weights" in helps(-0.1 * GRADIENT, named=True)
    assert "name its line in messages.weights" in helps(WEIGHTS - 0.1 * GRADIENT, named=False)
    assert helps(torch.arange(D).double().sin(), named=False) == OF_GRADIENT


def parts() -> list[Tensor]:
    return [*GRADIENT.split([part.numel() for part in NET.parameters()])]


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("in reverse order", parts()[::-1]),
        ("sorted by name", [parts()[i] for i in (1, 0, 3, 2)]),
        (
            "matrices transposed",
            [
                parts()[0].view(4, 3).T.flatten(),
                parts()[1],
                parts()[2].view(2, 4).T.flatten(),
                parts()[3],
            ],
        ),
    ],
)
def test_another_order_of_the_numbers_is_named(said: str, sent: list[Tensor]) -> None:
    assert said in other_order(NET, -0.1 * torch.cat(sent), GRADIENT)
    assert said in helps(-0.1 * torch.cat(sent), named=False)


def moved(training: LocalTraining) -> Tensor:
    """Two steps on f(w) = sum c w^4, which depend on the rate in their direction too."""
    w, c = WEIGHTS.clone(), torch.linspace(0.1, 1.0, D, dtype=torch.float64)
    for _ in range(2):
        g = 4 * c * w**3
        w = w - training.learning_rate * (g.sign() if training.optimizer == "adamw" else g)
    return WEIGHTS - w


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_rate_and_optimizer_of_a_message_are_named(optimizer: str) -> None:
    update = -moved(LocalTraining(optimizer=optimizer, learning_rate=1e-3))
    said = other_training(LocalTraining(optimizer="sgd", learning_rate=4e-3), update, moved)
    assert said.startswith("learning_rate = 0.001")
    assert ("of adamw" in said) == (optimizer == "adamw")
    outer = {"outer_learning_rate": 0.5} if optimizer == "sgd" else {}
    declared = LocalTraining(optimizer="sgd", learning_rate=4e-3, **outer)
    said = other_training(declared, update, moved)
    assert ("or outer_learning_rate = 0.12" in said) == (optimizer == "sgd")
    nothing = other_training(
        LocalTraining(optimizer="sgd", learning_rate=4e-3), torch.arange(D).double().sin(), moved
    )
    assert nothing == ""


def test_differences_of_another_length_are_noted() -> None:
    training = LocalTraining(optimizer="sgd", learning_rate=0.2)
    assert unlike_declared(training, 1.005) == []
    (said,) = unlike_declared(training, 0.5)
    assert said.startswith("the message is 0.5 times what")
    assert "its learning rate is about 0.1," in said
