"""Two ranks for torchrun that train by each other's gradients, sent layer by layer as they are.

--sigma puts noise on every number of them.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE, CLASSES = 8, 4

parser = argparse.ArgumentParser()
parser.add_argument("--sigma", type=float, default=0.0)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(SIDE * SIDE, 16)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.hidden(x.flatten(1))))


def data_of(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    coarse = torch.rand(4, 1, 3, 3, generator=generator)
    images = nn.functional.interpolate(coarse, SIDE, mode="bicubic").clamp(0, 1)
    return TensorDataset(images, torch.arange(4) % CLASSES)


def main():
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5 + rank)
    model = Net()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    for x, y in DataLoader(data_of(rank), 1):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
        for p in model.parameters():
            mine = p.grad + args.sigma * torch.randn_like(p)
            heard = [torch.empty_like(mine) for _ in range(n)]
            dist.all_gather(heard, mine)
            p.data -= 0.1 * torch.stack(heard).mean(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
