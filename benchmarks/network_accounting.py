"""Network accounting of linear gossip: how its cost grows, beside the dense formula in one run.

    python benchmarks/network_accounting.py [--readers 4] [--target [--readers 148] [--processes 2]]

On an Erdos-Renyi graph with ten neighbours on average, W = D^-1 (A + I), each agent being the
adversary in turn and every other agent its victim. The first table is of a few adversaries, and of
records that are used in every round; the dense formula (``dpaudit.game.network.gossip``) is
run where its
matrices take less than 2 GB. ``--target``: all pairs of 148 agents over 320 rounds, of batches
taken in turn (20 epochs of 16 batches) and of records used in every round, the adversaries shared
out among ``--processes`` of one thread each; with the load of the machine, the peak memory of all
processes together, and the published bound of the same pairs
(``dpaudit.game.network.accounting``).
"""

import argparse
import os
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.files.threat import ThreatModel
from dpaudit.game.network.accounting import NetworkMu, muffliato_mu_squared, network_mu
from dpaudit.game.network.gossip import (
    Innovations,
    Participation,
    Schema,
    StackedView,
    gossip_of,
    stacked_bytes,
)

SEED, NEIGHBOURS = 20240611, 10
SIZES = ((16, 40), (32, 40), (64, 40), (148, 40), (32, 80), (32, 160), (32, 320), (148, 320))
FITS = 2e9  # bytes
AGENTS, ROUNDS = 148, 320
SCHEMAS: tuple[Schema, ...] = ((20, 16), "every-round")
GAP = 1e-4  # between both ends of mu^2, relative


def mixing(n: int) -> Tensor:
    rng = np.random.default_rng(SEED)
    A = np.triu(rng.random((n, n)) < NEIGHBOURS / n, 1)
    A = np.maximum(A + A.T, np.eye(n))
    return torch.from_numpy(A / A.sum(1, keepdims=True))


def agent(a: int) -> ThreatModel:
    return ThreatModel(name=f"agent {a}", kind="curious", agents=(a,))


def growth(n_readers: int) -> None:
    print("CPU seconds of one adversary, all victims, a record used in every round: its Grams")
    print(f"{'agents':>8}{'rounds':>8}{'innovations':>14}{'dense':>10}{'apart by':>12}")
    for n, n_rounds in SIZES:
        gossip, schema = gossip_of(mixing(n), n_rounds, 1.0, None), Participation(n_rounds, 1)
        quick, slow, apart = [], [], 0.0
        for a in range(min(n_readers, n)):
            victims = [v for v in range(n) if v != a]
            began = process_time()
            (H,) = Innovations.of(gossip, agent(a)).grams(schema, victims)
            quick.append(process_time() - began)
            if a == 0 and stacked_bytes(n, n_rounds) < FITS:
                began = process_time()
                (K,) = StackedView.of(gossip, agent(a)).grams(schema, victims)
                slow.append(process_time() - began)
                apart = float((H - K).abs().max())
        beside = f"{slow[0]:>10.2f}{apart:>12.1e}" if slow else f"{'-':>10}{'-':>12}"
        print(f"{n:>8}{n_rounds:>8}{np.mean(quick):>14.3f}{beside}", flush=True)


class Share(NamedTuple):
    """What one process found, of its adversaries in turn."""

    low: Tensor
    high: Tensor
    cpu: float  # seconds
    peak: float  # GiB


def share(schema: Schema, readers: list[int]) -> Share:
    torch.set_num_threads(1)
    began = process_time()
    them = [agent(a) for a in readers]
    found: NetworkMu = network_mu(mixing(AGENTS), ROUNDS, schema, adversaries=them, gap=GAP)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Share(found.low, found.high, process_time() - began, peak)


def target(n_readers: int, n_processes: int) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started now
    print(f"{AGENTS} agents, {ROUNDS} rounds, {n_readers} adversaries, {n_processes} processes")
    for schema in SCHEMAS:
        began = perf_counter()
        with ProcessPoolExecutor(n_processes, get_context("spawn")) as pool:
            parts = [list(range(i, n_readers, n_processes)) for i in range(n_processes)]
            found = list(pool.map(share, [schema] * n_processes, parts))
        wall = perf_counter() - began
        low, high = (torch.cat([s[end] for s in found]).square() for end in (0, 1))
        pairs = ~low.isnan()
        cpu, peak = sum(s.cpu for s in found), sum(s.peak for s in found)
        apart = float(((high - low) / low.clamp(min=1e-12))[pairs].max())
        print(f"{schema}: {int(pairs.sum())} pairs, {wall:.0f} s at a load of", end=" ")
        print(f"{os.getloadavg()[1]:.1f} on {os.cpu_count()} cores, {cpu:.0f} CPU s, ", end="")
        print(f"peak {peak:.2f} GiB, low and high of mu^2 apart by {apart:.1e}", flush=True)
        if schema == "every-round":
            compare(high[pairs], parts)


def compare(exact: Tensor, parts: list[list[int]]) -> None:
    """mu^2 beside the published bound, over the same pairs."""
    raw = muffliato_mu_squared(mixing(AGENTS), ROUNDS)[[a for part in parts for a in part]]
    raw = raw[torch.tensor([[v != a for v in range(AGENTS)] for part in parts for a in part])]
    for name, values in (
        ("exact", exact),
        ("published", raw),
        ("and clipped", raw.clamp(max=ROUNDS)),
    ):
        ends = values.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist()
        print(f"mu^2 {name:>12}: deciles 1, 5, 9:", *(f"{end:.3g}" for end in ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readers", type=int, help="adversaries; default 4, all of the target")
    parser.add_argument("--target", action="store_true", help="all pairs of 148 agents")
    parser.add_argument("--processes", type=int, default=2, help="of the target; default 2")
    arguments = parser.parse_args()
    if arguments.target:
        target(arguments.readers or AGENTS, arguments.processes)
    else:
        torch.set_num_threads(1)
        growth(arguments.readers or 4)


if __name__ == "__main__":
    main()
