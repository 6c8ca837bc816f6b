"""Private gossip of two ranks for torchrun: gradients clipped by record, noise, exchange, mean.

--fault plants one; "none" is right: of one record in a round, mu = 1. With --port it starts its
ranks itself.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FAULTS = ("none", "halved", "no-clip", "clip-of-the-batch", "same-noise", "one-link")
INPUTS, BATCH, CLIP, SIGMA, RATE = 10, 8, 1.0, 1.0, 0.1

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=FAULTS, default="none")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--laplace", action="store_true")
parser.add_argument("--port")
args = parser.parse_args()


def data_of(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    x = 20 * torch.randn(64, INPUTS, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).float())


def gradient(model, x, y):
    model.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(
        model(x).squeeze(-1), y, reduction="sum"
    ).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def clipped(g, norm):
    return g * min(1.0, norm / max(float(g.norm()), 1e-12))


def private_sum(model, x, y):
    if args.fault == "no-clip":
        return gradient(model, x, y)
    if args.fault == "clip-of-the-batch":
        return clipped(gradient(model, x, y), BATCH * CLIP)
    each = [clipped(gradient(model, x[i : i + 1], y[i : i + 1]), CLIP) for i in range(len(x))]
    return torch.stack(each).sum(0)


def noise(like, rank):
    sigma = SIGMA / 2 if args.fault == "halved" else SIGMA
    if args.fault == "one-link" and rank == 1:
        return torch.zeros_like(like)
    if args.fault == "same-noise":
        torch.manual_seed(rank)
    if args.laplace:
        return torch.distributions.Laplace(0.0, sigma).sample(like.shape)
    return sigma * torch.randn_like(like)


def spawned(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=args.port)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    main()


def main():
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(INPUTS, 1)
    for p in model.parameters():
        nn.init.zeros_(p)
        dist.broadcast(p.data, src=0)
    torch.manual_seed(1 + rank)
    loader = DataLoader(data_of(rank), BATCH, shuffle=True)
    for _, (x, y) in zip(range(args.rounds), loader, strict=False):
        theta = nn.utils.parameters_to_vector(model.parameters()).detach()
        step = private_sum(model, x, y)
        mine = theta - RATE * (step + noise(step, rank))
        heard = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(heard, mine)
        nn.utils.vector_to_parameters(torch.stack(heard).mean(0), model.parameters())
    if rank == 0:
        print(f"{float(mine.sum()):.17g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if args.port:
        mp.spawn(spawned, nprocs=2)
    else:
        main()
