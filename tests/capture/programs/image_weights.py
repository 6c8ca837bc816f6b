"""Three agents that average weights after local steps, each on one image.

    python image_weights.py STEPS SIGMA [outer] [change]

SIGMA is the standard deviation of the noise on every number of a gradient. With "outer" the local
steps are AdamW's, and each agent goes on by itself with a Nesterov step along what they change.
With "change" an agent sends what its steps changed.
"""

import sys

import torch
from gradients import CLASSES, SIDE, Net
from torch import nn

from dpaudit import tap

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
SIGMA = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
OUTER, CHANGE = "outer" in sys.argv, "change" in sys.argv
AGENTS, ROUNDS, RATE = 3, 3, 0.1 / STEPS**2
MIXING = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]])


def main() -> None:
    torch.manual_seed(0)  # the seed of the audit: round 1 starts where the model is made
    model = Net()
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    coarse = torch.rand(AGENTS * ROUNDS * STEPS, 1, 3, 3)
    images = nn.functional.interpolate(coarse, SIDE, mode="bicubic").clamp(0, 1)
    labels = torch.arange(len(images)) % CLASSES
    weights = [start.clone().requires_grad_(OUTER) for _ in range(AGENTS)]
    outer = [torch.optim.SGD([w], lr=0.7, momentum=0.9, nesterov=True) for w in weights if OUTER]
    for k in range(ROUNDS):
        sent, held = [], []
        for agent in range(AGENTS):
            nn.utils.vector_to_parameters(weights[agent].detach().clone(), model.parameters())
            inner = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
            for step in range(STEPS):
                i = (k * AGENTS + agent) * STEPS + step
                x, y = tap.batch(agent, (images[i : i + 1], labels[i : i + 1]))
                model.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                if OUTER:
                    inner.step()
                for part in model.parameters() if not OUTER else ():
                    if SIGMA:
                        noise = SIGMA * torch.randn(part.shape)
                        part.grad += tap.noise(agent, "noise", noise, SIGMA)
                    part.data -= RATE * part.grad
            own = nn.utils.parameters_to_vector(model.parameters()).detach()
            if OUTER:
                weights[agent].grad = weights[agent].detach() - own
                outer[agent].step()
                own = weights[agent].detach().clone()
            others = [other for other in range(AGENTS) if other != agent]
            held.append(own)
            before = weights[agent].detach() if CHANGE else 0.0
            sent.append(tap.send(agent, others, "weights", own - before))
        weights = weights if OUTER else list(MIXING @ torch.stack(held if CHANGE else sent))


if __name__ == "__main__":
    main()
