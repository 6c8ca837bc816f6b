"""gossip.py with the four lines that make it auditable.

Without an audit they change nothing: each call hands back what it was given.
"""

import torch
from dpaudit_recorder import tap
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

AGENTS, EPOCHS, RECORDS, FEATURES = 4, 2, 24, 10
BATCH, CLIP, SIGMA, RATE = 8, 1.0, 1.0, 0.05


def records_of(agent):
    generator = torch.Generator().manual_seed(100 + agent)
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    return x, (x.sum(1) > 0).long()


def network():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))


def clipped(gradients):
    scaled = [g * min(1.0, CLIP / (g.norm().item() + 1e-12)) for g in gradients]
    return torch.cat([g.flatten() for g in scaled])


def gradient(model, x, y):
    total = torch.zeros_like(parameters_to_vector(model.parameters()))
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        total += clipped(torch.autograd.grad(loss, list(model.parameters())))
    return total


def main():
    torch.manual_seed(1)
    data = [records_of(agent) for agent in range(AGENTS)]
    models = [network() for _ in range(AGENTS)]
    secret = torch.Generator()
    secret.seed()  # which others do not know
    for _ in range(EPOCHS):
        orders = [torch.randperm(RECORDS) for _ in range(AGENTS)]
        for start in range(0, RECORDS, BATCH):
            sent = []
            for agent, model in enumerate(models):
                batch = orders[agent][start : start + BATCH]
                x, y = data[agent][0][batch], data[agent][1][batch]
                x, y = tap.batch(agent, (x, y))
                step = gradient(model, x, y)
                noise = SIGMA * CLIP * torch.randn(len(step), generator=secret)
                noise = tap.noise(agent, "noise", noise, SIGMA * CLIP)
                with torch.no_grad():
                    message = parameters_to_vector(model.parameters()) - RATE * (step + noise)
                tap.send(agent, [(agent - 1) % AGENTS, (agent + 1) % AGENTS], "model", message)
                sent.append(message)
            for agent, model in enumerate(models):
                mean = (sent[agent - 1] + sent[agent] + sent[(agent + 1) % AGENTS]) / 3
                vector_to_parameters(mean, model.parameters())
    right = [(models[0](x).argmax(1) == y).float().mean() for x, y in data]
    print("accuracy", torch.stack(right).mean().item())


if __name__ == "__main__":
    main()
