"""A simulation in one process, as people write them: three agents, logistic regression, gossip.

The first argument plants a fault; "none" is right. The last three lines before the mean, and the
import, are what an audit asks for.
"""

import sys

import torch

from dpaudit import tap

FAULT = sys.argv[1] if len(sys.argv) > 1 else "none"
AGENTS, INPUTS, ROUNDS, BATCH = 3, 10, 3, 8
CLIP, SIGMA, RATE = 1.0, 1.0, 0.1

if FAULT != "unseeded":
    torch.manual_seed(3)
X = torch.randn(AGENTS, ROUNDS * BATCH, INPUTS)
Y = torch.randint(0, 2, (AGENTS, ROUNDS * BATCH))
theta = torch.zeros(AGENTS, INPUTS)


def private_sum(x: torch.Tensor, y: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Of gradients, each clipped."""
    gradients = (torch.sigmoid(x @ model) - y.float())[:, None] * x
    if FAULT == "no-clip":
        return gradients.sum(0)
    if FAULT == "clip-of-the-batch":
        total = gradients.sum(0)
        return total * min(1.0, BATCH * CLIP / float(total.norm()))
    norms = gradients.norm(dim=1)
    return (gradients * torch.clamp(CLIP / norms, max=1.0)[:, None]).sum(0)


for k in range(ROUNDS):
    sent = []
    for i in range(AGENTS):
        others = [j for j in range(AGENTS) if j != i]
        batch = slice(k * BATCH, (k + 1) * BATCH)
        x, y = tap.batch(i, (X[i, batch], Y[i, batch]))
        sigma = SIGMA / 2 if FAULT == "halved" else SIGMA
        if FAULT == "same-noise":
            torch.manual_seed(100 + i)
        drawn = sigma * torch.randn(INPUTS)
        if FAULT == "reveals-too-much":
            drawn = drawn / 2
        noise = tap.noise(i, "noise", drawn, sigma)
        step = private_sum(x, y, theta[i])
        if FAULT == "one-link":
            tap.send(i, others[:1], "x", theta[i] - RATE * (step + noise))
            sent.append(tap.send(i, others[1:], "bare", theta[i] - RATE * step))
        elif FAULT == "difference":
            tap.send(i, others[:1], "x", theta[i] - RATE * (step + noise))
            sent.append(tap.send(i, others[1:], "twice", theta[i] - RATE * (2 * step + noise)))
        else:
            sent.append(tap.send(i, others, "x", theta[i] - RATE * (step + noise)))
    theta = torch.stack(sent).mean(0).repeat(AGENTS, 1)

print(f"{float(theta.sum()):.17g}")
