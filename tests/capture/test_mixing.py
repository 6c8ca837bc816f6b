"""The average that a local step starts from, and the factor of its gradient, are found exactly."""

import math

import pytest
import torch

from dpaudit.capture.local_steps import LocalSteps, mixing_of


@pytest.mark.parametrize("n_steps", [1, 3])
def test_an_average_and_a_step_size_are_found_in_what_they_give(n_steps: int) -> None:
    """The gradients are not linear in the weights, and those of the others are close."""
    rng = torch.Generator().manual_seed(1)
    weights = torch.randn(50, generator=rng, dtype=torch.float64)
    before = weights + 0.1 * torch.randn(3, 50, generator=rng, dtype=torch.float64)
    optima = torch.randn(n_steps, 50, generator=rng, dtype=torch.float64)
    mixing, rate = torch.tensor([0.5, 0.3, 0.2]).double(), 0.1

    def gradient(at: torch.Tensor, factor: float) -> torch.Tensor:
        total = torch.zeros_like(at)
        for optimum in optima:
            total = total + torch.tanh(at + factor / n_steps * total - optimum)
        return total / n_steps

    start = mixing @ before
    message = start - rate * n_steps * gradient(start, -rate * n_steps)
    found = mixing_of(message, before, gradient)
    assert torch.allclose(found, mixing, atol=1e-6)
    steps = LocalSteps.of(found, message - found @ before, gradient(found @ before, 0.0))
    assert steps.agrees(n_steps)
    assert math.isclose(steps.factor, -rate * n_steps, rel_tol=1e-5 if n_steps == 1 else 0.1)
    assert not LocalSteps.of(found, message, gradient(start, 0.0)).agrees(1)
