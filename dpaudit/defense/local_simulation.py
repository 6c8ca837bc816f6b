"""Local training as an adversary who knows the algorithm can play it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from .contract import Gradient


class LocalSimulation(NamedTuple):
    """Local training between the model that a round starts from and the one that is sent.

    Its gradient is what the model moved by, over ``factor``: about the mean gradient of all steps.
    """

    sizes: tuple[int, ...]  # records of each step; step s takes those of ``Gradient.at_step(s)``
    factor: float  # the model's move over the gradient, if that stays the same
    # models [..., m, d] before -> what the steps without noise take from them, added up, so that it
    # has not the rounding of a difference of models
    moved: "Callable[[Gradient, Tensor], Tensor]"
    passes: int = 1  # over the records, in an order of its own each
    std: float | None = None  # noise in each coordinate of the gradient; None: unknown
    is_adaptive: bool = (
        False  # steps divide by the size of gradients: little more than signs is seen
    )

    def mean_gradient(self, gradient: "Gradient", X: Tensor) -> Tensor:
        """What is observed of agents that start from X [..., m, d], without noise."""
        return self.moved(gradient, X) / self.factor
