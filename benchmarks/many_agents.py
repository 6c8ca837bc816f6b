"""What one agent, and an eavesdropper of a region, learn in a network of ten thousand agents.

    python benchmarks/many_agents.py [--agents 10000] [--rounds 10] [--region 3] [--dense 400]

On a ring, a 10-regular graph and a power law: what an adversary learns of a record of the nearest
agent that it does not hear. By "W": mu of a record that is used in every round of gossip under
Gaussian noise, from sparse rows of W (``dpaudit.game.network.local``). By "steps": mu^2 of a record
that is used in round 1 of DP-DPSGD, whose steps are probed as in an audit
(``dpaudit.game.filtering.narrow_view``). The region is all links of so many agents around one.
With ``--dense`` agents the dense algebra is beside both, and how far it is from the sparse one;
from 256 agents on, that is. Each figure is of a process of its own on one thread, whose CPU
seconds are counted.
"""

import argparse
import os
import resource
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import process_time
from typing import Any

import numpy as np
import torch

import dpaudit.game.filtering.adversary as filtering
from dpaudit.defense import Setting
from dpaudit.files.options import graph_options
from dpaudit.files.threat import Region, ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.network.accounting import network_mu
from dpaudit.game.network.local import local_mu
from dpaudit.graphs.graph import Graph, Network, build_graph
from dpaudit.registry import load_plugin

SEED = 20240611
GRAPHS: dict[str, dict[str, Any]] = {"ring": {}, "k-regular": {"k": 10}, "power-law": {"m": 3}}


class Case:
    """A graph, an adversary and a victim."""

    def __init__(self, graph: str, is_region: bool, n: int, tapped: int, rounds: int) -> None:
        self.network: Network = build_graph(
            graph_options(graph, **GRAPHS[graph]), n, np.random.default_rng(SEED)
        )
        self.rounds, agent = rounds, n // 2
        one = self.network.at(1)
        self.adversary = ThreatModel(name="an agent", kind="curious", agents=(agent,))
        read = tuple(link for link in one.links if link[1] == agent)
        if is_region:
            middle = Region(around=tuple(around(one, agent, tapped)))
            self.adversary = ThreatModel(name="a region", region=middle).within(one.links)
            read = self.adversary.links or ()
        heard = {sender for sender, _ in read}
        self.victim = next(a for a in around(one, agent, n) if a not in heard | {agent})

    def by_rows(self) -> float:
        found = local_mu(
            self.network.at(1).sparse, self.rounds, self.adversary, [self.victim], "every-round"
        )
        return float(found.high[0])

    def by_dense_matrices(self) -> float:
        found = network_mu(self.network.at(1).W, self.rounds, adversaries=[self.adversary])
        return float(found.high[0, self.victim])

    def by_steps(self) -> float:
        n = self.network.n_agents
        setting = Setting(self.network, (40,) * n, 1)
        options = {"n_rounds": self.rounds, "batch_size": 8, "noise_multiplier": 1.0}
        defense = load_plugin("defenses", "dp-dpsgd")(**options).calibrate(setting)
        game = Game.of(defense, setting, self.victim, "add-remove", "poisson")
        return Adversary(game, self.adversary, self.rounds).leak.by_use[0].low

    def by_dense_steps(self) -> float:
        filtering.SPARSE_FROM = self.network.n_agents + 1  # in this process alone
        return self.by_steps()


def around(graph: Graph, agent: int, count: int) -> list[int]:
    """So many agents, the nearest first."""
    nearest, found = [agent], {agent}
    for near in nearest:
        if len(nearest) >= count:
            break
        fresh = [other for other in graph.neighbours(near) if other not in found]
        found |= set(fresh)
        nearest += fresh
    return nearest[:count]


def measure(pipe: Connection, work: Callable[[], float]) -> None:
    torch.set_num_threads(1)
    began = process_time()
    value = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    pipe.send((value, process_time() - began, peak))


def apart(work: Callable[[], float]) -> tuple[float, float, float]:
    """What it finds, its CPU seconds and its peak memory in GiB, in a process of its own."""
    here, there = get_context("fork").Pipe()
    process = get_context("fork").Process(target=measure, args=(there, work))
    process.start()
    there.close()
    found: tuple[float, float, float] = here.recv()
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--region", type=int, default=3, help="agents whose links are read")
    parser.add_argument("--dense", type=int, default=400, help="agents of the dense algebra")
    asked = parser.parse_args()
    print(f"{asked.rounds} rounds, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'graph':>10}{'adversary':>10}{'agents':>8}{'by':>15}{'figure':>12}{'s':>8}{'GiB':>7}")
    for graph in GRAPHS:
        for is_region in (False, True):
            found: dict[str, float] = {}
            for n, is_dense in ((asked.agents, False), (asked.dense, False), (asked.dense, True)):
                case = Case(graph, is_region, n, asked.region, asked.rounds)
                rows, steps = (case.by_rows, case.by_steps)
                if is_dense:
                    rows, steps = case.by_dense_matrices, case.by_dense_steps
                for by, work in (("rows of W", rows), ("probed steps", steps)):
                    value, seconds, peak = apart(work)
                    what = f"dense {by}" if is_dense else by
                    beside = ""
                    if is_dense:
                        beside = f"  apart by {abs(value - found[by]):.0e}"
                    found[by] = value
                    print(
                        f"{graph:>10}{'region' if is_region else 'agent':>10}{n:>8}"
                        f"{what.replace('rows of ', '').replace('probed ', ''):>15}"
                        f"{value:>12.6g}{seconds:>8.1f}{peak:>7.2f}{beside}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
