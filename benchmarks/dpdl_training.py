"""What DPDL's training spends its time on, and how far that is from the limits of the machine.

    python benchmarks/dpdl_training.py [--agents 10 20 30] [--graph bipartite complete] [--rounds 3]
        [--results docs/results]

A round of Table I takes N times degree gradients: every agent's batch of 216 images of 28x28 is
differentiated at its own model and at each neighbour's, record by record, for LeNet. One thread,
CPU time. A round is played with its gradients and with zeros in their place, so that what is left
is drawn noise, mixing and messages; the operators of PyTorch that take most of it follow. Images
are random, which costs what others cost.
"""

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from limits import Limits, cpu_seconds, measured, operations
from published import TableRow, put
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Gradient
from dpaudit.defense.noise import Noise
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.caller_objects import NOTHING
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.rng import Streams

BATCH, OPERATORS = 216, 8


class Zeros(Gradient):
    """Gradients that cost nothing."""

    def __init__(self) -> None:
        self.batch_size = BATCH

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return torch.zeros_like(X)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return torch.zeros_like(X)


def images(n_agents: int) -> Dataset:
    """Random ones, a batch and a half for each agent."""
    generator, n = torch.Generator().manual_seed(0), n_agents * BATCH * 3 // 2
    x, y = torch.rand(n, 1, 28, 28, generator=generator), torch.arange(n) % 10
    return Dataset("random", x, y, x[:100], y[:100], tuple("0123456789"), (0.0, 1.0))


def config(n_agents: int, graph: str) -> AuditConfig:
    defense: dict[str, Any] = {"name": "dpdl", "n_rounds": 800, "batch_size": BATCH}
    return AuditConfig.from_dict(
        {
            "data": {"name": "digits", "n_agents": n_agents},
            "graph": {"name": graph},
            "model": {"name": "lenet"},
            "defense": {
                **defense,
                "sampling": "fixed",
                "noise_multiplier": 1.0,
                "learning_rate": 0.005,
            },
        }
    )


def measured_round(n_agents: int, graph: str, rounds: int, limits: Limits) -> tuple[str, TableRow]:
    """What is printed, and the row of published results."""
    own = replace(NOTHING, data=images(n_agents))
    prepared = prepare(config(n_agents, graph), Runtime(), own)
    defense, problem, setting = (
        prepared.defenses["defense"],
        prepared.learned.problem,
        prepared.setting,
    )
    streams, links = Streams(0), setting.network.at(1)
    state = defense.start(problem.initial(streams), setting)

    def play(oracle: Gradient) -> None:
        defense.step(state, 1, links, oracle, Noise(streams, 1))

    with torch.no_grad():
        oracle = problem.gradient(streams, 1, BATCH, defense.drawing)
        whole = cpu_seconds(lambda: play(oracle), rounds)
        rest = cpu_seconds(lambda: play(Zeros()), rounds)
        drawing = cpu_seconds(lambda: problem.gradient(streams, 1, BATCH, defense.drawing), rounds)
        products = operations(lambda: play(oracle))
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            play(oracle)
    gradients = len(links.senders) + n_agents
    a_round, a_record = f"{whole + drawing:.2f} s", f"{1e6 * whole / gradients / BATCH:.0f} us"
    speed = products / whole
    published = (
        f"{n_agents}, {graph}",
        str(gradients),
        a_round,
        a_record,
        f"{speed / 1e9:.0f}, {speed / limits.products:.0%}",
    )
    said = "\n".join(
        [
            f"{n_agents} agents, {graph}: {gradients} gradients of {BATCH} images, "
            f"{a_round} a round, {a_record} a record; "
            f"gradients {(whole - rest) / (whole + drawing):.1%}, drawing batches "
            f"{drawing / (whole + drawing):.1%}, noise, mixing and messages "
            f"{rest / (whole + drawing):.1%}",
            f"   {products / 1e9:.1f} GF a round, {speed / 1e9:.0f} GF/s; "
            + limits.shares(whole, products=products),
            f"   operators: {operators(seen)}",
        ]
    )
    return said, published


def operators(seen: profile) -> str:
    """Those that take most of the CPU time by themselves, in percent."""
    events = sorted(seen.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    shares = ((e.key.removeprefix("aten::"), e.self_cpu_time_total / total) for e in events)
    return ", ".join(f"{name} {share:.0%}" for name, share in list(shares)[:OPERATORS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[10, 20, 30])
    parser.add_argument("--graph", nargs="+", default=["bipartite", "complete"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="where training.json and .csv are")
    arguments = parser.parse_args()
    limits = measured()
    print(limits, flush=True)
    for n_agents, graph in product(arguments.agents, arguments.graph):
        said, row = measured_round(n_agents, graph, arguments.rounds, limits)
        print(said, flush=True)
        if arguments.results is not None:
            put(arguments.results, "A round of DPDL's training", [row])


if __name__ == "__main__":
    main()
