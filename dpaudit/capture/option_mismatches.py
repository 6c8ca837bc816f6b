"""What a message without noise is, where it is not what the options of an attack say."""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from dpaudit.attack.local_steps import DummyGradient, local_steps
from dpaudit.files.captured_file import GradientInversionOptions
from dpaudit.files.local_training import LocalTraining

from .local_steps import LocalSteps

WEIGHTS = 0.9  # cosine with the weights before, above which a message is those and a step
REFITS = 8  # fits of the learning rate
STEADY = 1e-3  # relative change of the rate, below which it is found
OF_GRADIENT = (
    "is it at these weights, of the cross-entropy, clipped as clip_norm says, and does "
    "messages.weights name the lines that send weights?"
)
OF_STEPS = "are the optimizer and its options the program's?"


class Sent(Protocol):
    """A message and where it starts from."""

    @property
    def message(self) -> Tensor: ...  # [d]

    @property
    def weights(self) -> Tensor: ...  # [d]

    @property
    def sizes(self) -> tuple[int, ...]: ...  # records of each local step


def other_gradient(
    module: nn.Module,
    sent: Sent,
    update: Sent,
    gradient: Callable[[Tensor, float], Tensor],
    named: bool,
) -> str:
    """What helps where a message is not the gradient, or questions.

    Args:
        update: what its agent added to weights, if it sent those.
        gradient: [d], at weights [d].
        named: whether messages.weights names the line.
    """
    at_weights = gradient(sent.weights, 0.0)
    return (
        weights_or_update(sent.message, sent.weights, at_weights, named)
        or other_order(module, update.message, gradient(update.weights, 0.0))
        or OF_GRADIENT
    )


def other_steps(
    module: nn.Module,
    sent: Sent,
    update: Sent,
    oracle: DummyGradient,
    options: GradientInversionOptions,
    named: bool,
) -> str:
    """The same of a message that is not what declared local training makes."""
    assert options.local is not None

    def moved(training: LocalTraining) -> Tensor:
        steps = local_steps(training, sent.sizes, options.clip_norm)
        with torch.no_grad():
            found: Tensor = steps.moved(oracle, update.weights[None])[0]
        return found

    of_declared = moved(options.local)
    swapped = weights_or_update(sent.message, sent.weights, None, named)
    if not agree(update.message, of_declared):
        swapped = swapped or other_order(module, update.message, of_declared)
    return swapped or other_training(options.local, update.message, moved) or OF_STEPS


def agree(update: Tensor, gradient: Tensor) -> bool:
    """Whether one [d] is the other, up to a factor."""
    return LocalSteps.of(torch.empty(0), update, gradient).agrees(1)


def weights_or_update(
    message: Tensor, weights: Tensor, gradient: Tensor | None, named: bool
) -> str:
    """What helps where weights were taken for an update, or an update for weights; or "".

    Args:
        message: [d], as it was sent.
        weights: [d], those before it.
        gradient: [d], at these weights; None: not asked.
        named: whether messages.weights names the line.
    """
    if named and gradient is not None and agree(message, gradient):
        return "it is the gradient itself: take its line out of messages.weights"
    lengths = float(message.norm() * weights.norm())
    if not named and lengths and float(message @ weights) > WEIGHTS * lengths:
        return "it is close to the weights before it: name its line in messages.weights"
    return ""


def other_order(module: nn.Module, update: Tensor, gradient: Tensor) -> str:
    """What helps where the numbers of an update are not in the order of the model; or ""."""
    for said, other in _orders(module, gradient):
        if agree(update, other):
            return f"it is that with {said}; expected the order of model.parameters()"
    return ""


def _orders(module: nn.Module, gradient: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A gradient [d] of the model's parameters as programs may send it."""
    named = dict(module.named_parameters())
    sizes = [part.numel() for part in named.values()]
    parts = dict(zip(named, gradient.split(sizes), strict=True))
    across = [
        part.view(named[name].shape).T.flatten() if named[name].ndim == 2 else part
        for name, part in parts.items()
    ]
    yield "its tensors in reverse order", torch.cat([*parts.values()][::-1])
    yield "its tensors sorted by name", torch.cat([parts[name] for name in sorted(parts)])
    yield "its matrices transposed", torch.cat(across)


def other_training(
    training: LocalTraining, update: Tensor, moved: Callable[[LocalTraining], Tensor]
) -> str:
    """What helps where another rate or optimizer makes an update [d]; or "".

    Args:
        moved: [d], by how much such training moves the weights.
    """
    kept = {"weight_decay", "epochs", "learning_rate", "shuffled"}
    plain = training.model_dump(include=kept)
    names = ("sgd", "adamw")
    others = [training, *(LocalTraining(optimizer=name, **plain) for name in names)]
    for other in others:
        found = _with_rate(other, update, moved)
        if found is not None:
            what = "" if found.optimizer == training.optimizer else f" of {found.optimizer}"
            momentum = " without momentum" if found.momentum != training.momentum else ""
            said = f"learning_rate = {found.learning_rate:.4g}{what}{momentum}"
            if found.has_outer_step:
                longer = found.learning_rate / training.learning_rate
                outer = training.outer_learning_rate * longer
                said += f", or outer_learning_rate = {outer:.4g},"
            return f"{said} makes it"
    return ""


def _with_rate(
    training: LocalTraining, update: Tensor, moved: Callable[[LocalTraining], Tensor]
) -> LocalTraining | None:
    """The training with the rate that makes an update as long as it is, if that makes it."""
    for _ in range(REFITS):
        one = moved(training)
        ratio = float(update.norm() / one.norm())
        if not 0 < ratio < float("inf"):
            return None
        if abs(ratio - 1) < STEADY:
            return training if agree(update, one) else None
        rate = training.learning_rate * ratio
        training = training.model_copy(update={"learning_rate": rate})
    return None
