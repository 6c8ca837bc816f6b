"""What methods of gradient tracking share: their states, and the schedules of those that gather."""

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from pydantic import PositiveFloat
from torch import Tensor

from .contract import Gradient, Setting
from .laplace import Decay, ScaledDefense


class Tracking(NamedTuple):
    """Models, trackers of the mean gradient, and the gradients that trackers hold by now."""

    X: Tensor  # [..., n_agents, d]
    Y: Tensor  # [..., n_agents, d], Y = grad F(X) at the start; its mean is that of G
    G: Tensor  # [..., n_agents, d], the gradient at X

    @classmethod
    def before(cls, X: Tensor) -> "Tracking":
        """The state before round 1, which sets Y and G."""
        return cls(X, torch.zeros_like(X), torch.zeros_like(X))

    def begun(self, k: int, gradient: Gradient) -> "Tracking":
        """This state; in round 1 with the first gradient."""
        if k > 1:
            return self
        G = gradient(self.X)
        return Tracking(self.X, G, G)


class Gathering(NamedTuple):
    """Models, and the gradients that an agent has gathered, each times its step size."""

    X: Tensor  # [..., n_agents, d]
    S: Tensor  # [..., n_agents, d], 0 at the start


class GatheringDefense(ScaledDefense, ABC):
    """Robust gradient tracking: models and gathered gradients are sent under Laplace noise.

    Steps alpha_k = gamma q1^(k-1) and noise nu_k = nu_1 q2^(k-1).
    """

    claims: ClassVar[str] = "pure epsilon-DP over any number of rounds, function"
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "grad f_i at the true model, which s gathers in the round",
    }

    step_size: PositiveFloat = 0.001  # gamma
    step_decay: Decay = 0.97  # q1
    noise_decay: Decay = 0.99  # q2

    def alpha(self, k: int) -> float:
        """The step size of round k."""
        return self.step_size * self.step_decay ** (k - 1)

    def shape(self, k: int) -> float:
        return self.noise_decay ** (k - 1)

    def start(self, X: Tensor, setting: Setting) -> Gathering:
        return Gathering(X, torch.zeros_like(X))
