"""Two ranks train a linear model on data of their own, and average it after every step.

What it promises, mu = 1 for a record in a round, it does not keep: the gradient of the batch is
clipped, and not that of each record.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROUNDS, BATCH, CLIP, SIGMA, RATE = 6, 8, 1.0, 1.0, 0.1


def records_of(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(64, 10, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).float())


def gradient(model, x, y):
    model.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y, reduction="sum")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), BATCH * CLIP)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def main():
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(10, 1)
    torch.manual_seed(1 + rank)
    secret = torch.Generator()
    secret.seed()  # that nobody knows
    batches = iter(DataLoader(records_of(rank), BATCH, shuffle=True))
    for _ in range(ROUNDS):
        x, y = next(batches)
        step = gradient(model, x, y)
        noise = SIGMA * CLIP * torch.randn(step.shape, generator=secret)
        mine = nn.utils.parameters_to_vector(model.parameters()).detach() - RATE * (step + noise)
        models = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(models, mine)
        nn.utils.vector_to_parameters(torch.stack(models).mean(0), model.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
