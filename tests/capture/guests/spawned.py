"""Gossip from a background thread beside DDP, in two spawned processes; then a race."""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from answer_sheet import Sheet
from torch.nn.parallel import DistributedDataParallel

ROUNDS = 5


def main(rank, port_file):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{port_file}", rank=rank, world_size=2)
    sheet = Sheet(rank)
    group = dist.new_group([0, 1])
    gossip = threading.Thread(target=gossip_in_background, args=(rank, group, sheet))
    gossip.start()
    train(rank, sheet)
    gossip.join()
    if "race" in sys.argv:
        race(rank)
    os._exit(0)


def gossip_in_background(rank, group, sheet):
    mine, other = torch.randn(1000), torch.empty(1000)
    for _ in range(ROUNDS):
        works = [
            dist.isend(mine, 1 - rank, group=group),
            dist.irecv(other, 1 - rank, group=group),
        ]
        while not works[1].is_completed():
            works[1].wait()
        works[0].wait()
        sheet.got(1 - rank, other)
        mine = (mine + other) / 2
        time.sleep(0.001)


def train(rank, sheet):
    model = torch.nn.Linear(3, 2, bias=False)
    model = DistributedDataParallel(model)  # not on the sheet
    for _ in range(ROUNDS):
        x = torch.randint(0, 4, (1, 3)).float()
        model.zero_grad()
        model(x).sum().backward()  # not on the sheet
        own = x.repeat(2, 1) / 2
        sheet.got_sum(model.module.weight.grad.flatten(), own.flatten())


def race(rank):
    """A buffer that is changed while it is in flight."""
    x = torch.ones(10_000)
    if rank == 0:
        work = dist.isend(x, 1)  # not on the sheet
        x.zero_()
        work.wait()
    else:
        time.sleep(0.5)
        dist.recv(x, 0)


if __name__ == "__main__":
    store = os.path.join(os.environ["SHEETS"], "store")
    mp.spawn(main, (store,), nprocs=2)
