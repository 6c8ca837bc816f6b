"""What weights, or changes of them, show of gradients: the update of local steps, by a factor.

An agent averages the weights that it and others sent before, takes local steps from there, and
sends the weights that it has then. The average is public, as the graph and its weights are, and so
is the step size. What the message differs by from the average is minus the step size times the
gradient of one local step, or, of several, about that times the mean gradient of all their records
at the weights where they start.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.attack.local_steps import local_steps
from dpaudit.defense.local_simulation import LocalSimulation
from dpaudit.files.local_training import LocalTraining

AGREE = 1e-2  # relative, between a message without noise and the gradient of one step
SEVERAL = 0.9  # cosine between the update of several local steps and their mean gradient
REFITS = 50  # fits of the average, and of the gradients computed from it
REFITS_OF_RATE = 4  # fits of the step size, which converge quadratically
STEADY = 1e-9  # relative change of the average, below which both are found


class LocalSteps(NamedTuple):
    """How a message without noise is made of weights that were sent before, and of a gradient."""

    mixing: Tensor  # [m]: how much of each
    factor: float  # the update over the mean gradient
    cosine: float  # between update and mean gradient
    simulation: LocalSimulation | None = None  # None: taken for one step
    scale: float = 1.0  # the update over that of the declared training

    @classmethod
    def of(cls, mixing: Tensor, update: Tensor, gradient: Tensor) -> "LocalSteps":
        """The factor that makes an update [d] of a gradient [d] but for the angle between them."""
        lengths = float(gradient.norm()), float(update.norm())
        inner = float(update @ gradient)
        if not all(lengths):
            return cls(mixing, 0.0, 0.0)
        return cls(mixing, inner / lengths[0] ** 2, inner / (lengths[0] * lengths[1]))

    def played(
        self,
        update: Tensor,
        gradient: Callable[[float], Tensor],
        sizes: tuple[int, ...],
        clip_norm: float | None,
    ) -> "LocalSteps":
        """The same with a simulation, where several steps are those of plain SGD.

        Args:
            gradient: [d], the mean of all steps if their sum times this, by their number, is what
                they add.
        """
        exact = self
        for _ in range(REFITS_OF_RATE if len(sizes) > 1 else 0):
            exact = LocalSteps.of(self.mixing, update, gradient(-abs(exact.factor)))
        if len(sizes) == 1 or not exact.agrees(1):
            return self
        training = LocalTraining(optimizer="sgd", learning_rate=abs(exact.factor) / len(sizes))
        return exact._replace(simulation=local_steps(training, sizes, clip_norm))

    def agrees(self, n_steps: int) -> bool:
        """Whether the update is the gradient, up to a factor of either sign."""
        if n_steps > 1:
            return abs(self.cosine) >= SEVERAL
        return bool((1 - self.cosine**2) <= AGREE**2)


def mixing_of(
    message: Tensor, before: Tensor, gradient: Callable[[Tensor, float], Tensor]
) -> Tensor:
    """How much of each of the weights before [m, d] the steps of a message [d] start from.

    Args:
        gradient: [d], the mean of the gradients of all local steps that start at weights [d], if
            their sum times the second argument, by the number of steps, is what they add.

    Returns:
        [m], by least squares of the message in these weights and in that gradient, which depends on
        where the steps start and on how far they go: all are found in turns.
    """
    if not len(before):
        return torch.empty(0, dtype=message.dtype)
    basis = before.T
    found = torch.linalg.lstsq(basis, message[:, None], driver="gelsd").solution[:, 0]
    factor = 0.0
    for _ in range(REFITS):
        columns = torch.cat([basis, gradient(basis @ found, factor)[:, None]], dim=1)
        solved = torch.linalg.lstsq(columns, message[:, None], driver="gelsd").solution[:, 0]
        change = float((solved[:-1] - found).norm())
        found, factor = solved[:-1], float(solved[-1])
        if change <= STEADY * float(found.norm()):
            break
    return found


def unlike_declared(training: LocalTraining, scale: float) -> list[str]:
    """A note on differences that are not as long as declared training makes them; or none.

    One step with another rate has the same direction, and of several it differs by little. Programs
    scale differences as they like, so that only weights, which cannot be scaled, refute a rate.
    """
    if abs(scale - 1) <= AGREE:
        return []
    return [
        f"the message is {scale:.4g} times what the declared local training makes: the program "
        f"scales it, or its learning rate is about {training.learning_rate * scale:.4g}, which a "
        "difference of weights does not say; the attack divides by what is measured"
    ]


def said_of(steps: Sequence[tuple[int, LocalSteps]]) -> str:
    """What is attacked, in words; each with its number of local steps."""
    n = max(number for number, _ in steps)
    if n == 1:
        return "the gradient"
    if steps[0][1].simulation is not None:
        return f"{n} local steps, played with dummies,"
    least = min(abs(one.cosine) for _, one in steps)
    return f"the mean gradient of {n} local steps, with which the update has cosine {least:.3f},"
