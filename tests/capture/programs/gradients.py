"""Three agents that send the gradients of their batches to agent 0, who sends the model back.

The first argument is the standard deviation of the noise on every number of a gradient.
"""

import sys

import torch
from torch import nn

from dpaudit import tap

SIGMA = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
SIDE, CLASSES, ROUNDS, RATE = 8, 4, 3, 0.1


class Net(nn.Module):
    """Softmax regression."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.last = nn.Linear(SIDE * SIDE, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x.flatten(1))


def smaller() -> Net:
    """One that no message is the gradient of."""
    return Net(CLASSES - 2)


def main() -> None:
    torch.manual_seed(3)
    model = Net()
    coarse = torch.rand(2, ROUNDS, 1, 3, 3)
    images = nn.functional.interpolate(coarse.flatten(0, 1), SIDE, mode="bicubic").clamp(0, 1)
    labels = torch.arange(2 * ROUNDS) % CLASSES
    for k in range(ROUNDS):
        weights = nn.utils.parameters_to_vector(model.parameters()).detach()
        tap.send(0, [1, 2], "model", weights)
        total = torch.zeros_like(weights)
        for agent in (1, 2):
            which = slice((agent - 1) * ROUNDS + k, (agent - 1) * ROUNDS + k + 1)
            x, y = tap.batch(agent, (images[which], labels[which]))
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            if SIGMA:
                gradient += tap.noise(agent, "noise", SIGMA * torch.randn(len(gradient)), SIGMA)
            total += tap.send(agent, 0, "gradient", -RATE * gradient)
        nn.utils.vector_to_parameters(weights + total, model.parameters())


if __name__ == "__main__":
    main()
