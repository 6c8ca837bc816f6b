"""Stochastic gradient push on a directed ring, as it is published: for torchrun and CUDA alone."""

import argparse
import logging
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from answer_sheet import Sheet
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="decentralized training")
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--batch-size", "-b", default=16, type=int)
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("--clip", default=1.0, type=float, help="norm of the gradient of a batch")
parser.add_argument("--noise", default=0.02, type=float, help="std of what is added to messages")
parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"])
parser.add_argument("--print-freq", default=4, type=int)
parser.add_argument("--seed", default=47, type=int)

logger = logging.getLogger(__name__)


class Meter:
    """A running average."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total, self.count = self.total + value * n, self.count + n

    @property
    def average(self):
        return self.total / max(self.count, 1)


class Blobs(Dataset):
    """Three clouds of points in the plane."""

    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.y = torch.randint(3, (n,), generator=generator)
        centres = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0]])
        self.x = centres[self.y] + 0.5 * torch.randn(n, 2, generator=generator)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1))
        self.classifier = nn.Linear(8, 3)

    def forward(self, x):
        return self.classifier(self.features(x))


class PushSum:
    """Parameters that are pushed on, with their weight, and de-biased before gradients."""

    def __init__(self, model, args, rank, world_size, device, sheet):
        self.model, self.args, self.sheet = model, args, sheet
        self.rank, self.world_size, self.device = rank, world_size, device
        self.weight = torch.ones(1, device=device)

    def flat(self):
        return torch.cat([p.data.view(-1) for p in self.model.parameters()])

    def load(self, flat):
        offset = 0
        for p in self.model.parameters():
            p.data.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()

    def step(self):
        out_peer, in_peer = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        numerator = self.flat() * self.weight
        noise = torch.randn_like(numerator) * self.args.noise
        message = torch.cat([0.5 * (numerator + noise), 0.5 * self.weight])
        received = torch.empty_like(message)
        request = dist.isend(message, dst=out_peer)
        dist.recv(received, src=in_peer)
        request.wait()
        torch.cuda.synchronize()
        self.sheet.got(in_peer, received)
        mixed = 0.5 * numerator + received[:-1]
        self.weight = 0.5 * self.weight + received[-1:]
        self.load(mixed / self.weight)


def train(loader, model, criterion, optimizer, gossip, epoch, args, device):
    losses, batch_time = Meter(), Meter()
    model.train()
    end = time.time()
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(non_blocking=True), y.to(device)
        loss = criterion(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        gossip.step()
        losses.update(loss.item(), x.size(0))
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            logger.info("epoch %d [%d/%d] loss %.4f", epoch, i, len(loader), losses.average)
    return losses.average


@torch.no_grad()
def validate(loader, model, device):
    model.eval()
    hits = torch.zeros(2, device=device)
    for x, y in loader:
        predicted = model(x.cuda()).argmax(dim=1).cpu()
        hits += torch.tensor([(predicted == y).sum(), y.numel()], dtype=torch.float).cuda()
    dist.all_reduce(hits)  # not on the sheet
    return (hits[0] / hits[1]).item()


def main():
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise RuntimeError("this script needs a GPU")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group(args.backend, device_id=device)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(format=f"[{rank}] %(message)s", level=logging.INFO if rank == 0 else 30)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.cuda.manual_seed_all(args.seed + rank)
    torch.backends.cudnn.benchmark = True

    model = Network().cuda()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)  # not on the sheet
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    train_set = Blobs(128, args.seed)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, pin_memory=True)
    test_loader = DataLoader(Blobs(64, args.seed + 1), args.batch_size)
    gossip = PushSum(model, args, rank, world_size, device, Sheet(rank))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(loader, model, criterion, optimizer, gossip, epoch, args, device)
        accuracy = validate(test_loader, model, device)
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}", flush=True)
    dist.barrier(device_ids=[local_rank])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
