"""A hundred agents that train a network, and a thousand that gossip one: seconds and memory.

    python benchmarks/scale.py [--agents 100] [--batch 16] [--rounds 5] [--results docs/results]

1. DP-DPSGD on an Erdos-Renyi graph with p = 0.1 and the MNIST network of Xie, Liu and Chai (group
   normalisation), per-record clipping, 600 random records of MNIST's shape at each agent.
2. Gossip of LeNet-5 (44,426 parameters in float32) by 1,000 agents with ten neighbours each, beside
   the same product with a dense matrix.

Each part is a process of its own on one thread; memory is the peak resident size of that process,
and in brackets what it was once everything was imported and made.
"""

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
from published import TableRow, put

from dpaudit.data import partition
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import build_graph
from dpaudit.models.models import build_network as network
from dpaudit.models.models import n_parameters
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification

SEED = 20240611
RECORDS = 600  # of each agent
GOSSIPERS, NEIGHBOURS = 1_000, 10


def training(agents: int, batch: int, rounds: int) -> TableRow:
    """Part 1."""
    streams = Streams(SEED)
    x = torch.rand(agents * RECORDS, 1, 28, 28, generator=streams("records")) * 2 - 1
    y = torch.arange(len(x)) % 10
    classes = tuple("0123456789")
    dataset = Dataset("random", x, y, x[:10], y[:10], classes)
    parts = partition.split(y.numpy(), agents, "even", streams.numpy("partition"))
    problem = Classification(dataset, parts, "cnn-xie", streams.device)
    graphs = build_graph(graph_options("erdos-renyi", p=0.1), agents, streams.numpy("graph"))
    setting = Setting(graphs, tuple(parts.sizes.tolist()), problem.gradients.d)
    defense = DPDPSGD(noise_multiplier=1.0, batch_size=batch, n_rounds=rounds).calibrate(setting)
    state = defense.start(problem.initial(streams), setting)
    before, began, cpu = _peak(), perf_counter(), process_time()
    with torch.no_grad():
        for k in range(1, rounds + 1):
            gradient = problem.gradient(streams, k, batch)
            state = defense.step(state, k, graphs.at(k), gradient, Noise(streams, k)).state
    wall, cpu = (perf_counter() - began) / rounds, (process_time() - cpu) / rounds
    assert state.X.isfinite().all(), "training diverged"
    title = f"{agents} agents train cnn-xie, d = {setting.d:,}, batches of {batch}"
    print(f"1. {title}: {cpu:.2f} CPU s a round ({wall:.2f} s),", end=" ")
    print(f"peak {_peak():.2f} GiB ({before:.2f})")
    return title, round(cpu, 2), round(_peak(), 2)


def gossip(rounds: int) -> TableRow:
    """Part 2."""
    options = graph_options("k-regular", k=NEIGHBOURS)
    graph = build_graph(options, GOSSIPERS, np.random.default_rng(SEED)).at(1)
    d = n_parameters(network("lenet-5", (1, 28, 28), 10))
    X = torch.randn(GOSSIPERS, d, generator=Streams(SEED)("models"))
    before, cpu = _peak(), process_time()
    mixed = X
    for _ in range(rounds):
        mixed = graph.mix(mixed)
    sparse, peak = (process_time() - cpu) / rounds, _peak()
    W, cpu = graph.W.float(), process_time()
    dense = W @ X
    once = process_time() - cpu
    torch.testing.assert_close(graph.mix(X), dense, rtol=1e-4, atol=1e-5)
    title = f"{GOSSIPERS:,} agents gossip LeNet-5, d = {d:,}, {NEIGHBOURS} neighbours"
    print(f"2. {title}: {sparse:.2f} CPU s a round, peak {peak:.2f} GiB ({before:.2f});", end=" ")
    print(f"a dense product takes {once:.2f} s, {once / sparse:.1f} times as long")
    return title, round(sparse, 2), round(peak, 2)


def _peak() -> float:
    """Of this process, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", type=int, choices=(1, 2), help="this one in this process")
    parser.add_argument("--results", type=Path, help="where training.json and .csv are")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part is None:
        for part in ("1", "2"):
            subprocess.run([sys.executable, *sys.argv, "--part", part], check=True)
        return
    if arguments.part == 1:
        row = training(arguments.agents, arguments.batch, arguments.rounds)
    else:
        row = gossip(arguments.rounds)
    if arguments.results is not None:
        put(arguments.results, "Scale", [row])


if __name__ == "__main__":
    main()
