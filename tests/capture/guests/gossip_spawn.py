"""Private gossip training as it is found on the web: mp.spawn, a class for the graph, a log file."""

import argparse
import copy
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from answer_sheet import Sheet
from torch.utils.data import DataLoader, TensorDataset

OPTIONS = {"rounds": 6, "local_steps": 2, "batch_size": 8, "lr": 0.1, "clip": 1.0, "sigma": 0.5}


class Ring:
    """Who exchanges with whom, and with which weights."""

    def __init__(self, n):
        self.n = n

    def neighbours(self, i):
        return sorted({(i - 1) % self.n, (i + 1) % self.n} - {i})

    def weight(self, i):
        return 1 / (len(self.neighbours(i)) + 1)


class Worker:
    """One agent: its data, its model, and what it hears of its neighbours."""

    def __init__(self, rank, graph, options):
        self.rank, self.graph, self.options = rank, graph, options
        self.generator = torch.Generator().manual_seed(1000 + rank)
        torch.manual_seed(0)  # the same initial weights everywhere
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=options["lr"])
        x = torch.randn(64, 4, generator=self.generator)
        y = (x.sum(1) > 0).long()
        data = TensorDataset(x, y)
        self.loader = DataLoader(data, options["batch_size"], shuffle=True)
        self.batches = iter(self.loader)
        self.history, self.sheet = [], Sheet(rank)

    def batch(self):
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)

    def local_steps(self):
        for _ in range(self.options["local_steps"]):
            x, y = self.batch()
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.options["clip"])
            self.optimizer.step()
        self.history.append({"loss": loss.item(), "norm": norm.item()})

    def noisy_state(self):
        state = copy.deepcopy(self.model.state_dict())
        for value in state.values():
            scale = self.options["sigma"] * self.options["clip"]
            value.add_(torch.distributions.Laplace(0.0, scale).sample(value.shape))
        return state

    def exchange(self):
        """Send the noisy model layer by layer to every neighbour, and average what comes."""
        mine = self.noisy_state()
        neighbours = self.graph.neighbours(self.rank)
        heard = {j: {k: torch.empty_like(v) for k, v in mine.items()} for j in neighbours}
        operations = []
        for j in neighbours:
            for value in mine.values():
                operations.append(dist.P2POp(dist.isend, value, j))
            for value in heard[j].values():
                operations.append(dist.P2POp(dist.irecv, value, j))
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        for j in neighbours:
            for value in heard[j].values():
                self.sheet.got(j, value)
        weight = self.graph.weight(self.rank)
        with torch.no_grad():
            for key, value in self.model.state_dict().items():
                value.mul_(weight)
                for j in neighbours:
                    value.add_(heard[j][key], alpha=weight)


def worker(rank, world_size, options, folder):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.set_num_threads(1)
    store = os.path.join(folder, "rendezvous")
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)
    me = Worker(rank, Ring(world_size), options)
    for _ in range(options["rounds"]):
        me.local_steps()
        me.exchange()
    losses = [None] * world_size
    dist.all_gather_object(losses, me.history[-1]["loss"])  # not on the sheet
    if rank == 0:
        with open(os.path.join(folder, "losses.json"), "w") as file:
            json.dump({"losses": losses, "options": options}, file)
        print("mean loss", round(sum(losses) / world_size, 4), file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n-workers", type=int, default=3)
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    args = vars(parser.parse_args())
    n = args.pop("n_workers")
    mp.spawn(worker, args=(n, args, os.environ["SHEETS"]), nprocs=n, join=True)
