"""Network accounting of linear gossip: how its cost grows, beside the dense formula in one run.

    python benchmarks/network_accounting.py [--readers 4] [--target [--readers 148]]

On an Erdos-Renyi graph with ten neighbours on average, W = D^-1 (A + I), each agent being the
adversary in turn and every other agent its victim. The first table is of a few adversaries, and of
records that are used in every round; the dense formula (``dpaudit.game.dense``) is run where its
matrices take less than 2 GB. ``--target``: all pairs of 148 agents over 320 rounds, of batches
taken in turn (20 epochs of 16 batches), on all cores, and its peak memory; of as many adversaries
as ``--readers`` says, and what that makes for all.
"""

import argparse
import resource
from time import perf_counter, process_time

import numpy as np
import torch
from torch import Tensor

from dpaudit.files.threat import ThreatModel
from dpaudit.game import dense
from dpaudit.game.dense import Stacked
from dpaudit.game.innovations import Innovations
from dpaudit.game.linear_gossip import gossip_of
from dpaudit.game.network import network_mu
from dpaudit.game.participation import Participation

SEED, NEIGHBOURS = 20240611, 10
SIZES = ((16, 40), (32, 40), (64, 40), (148, 40), (32, 80), (32, 160), (32, 320), (148, 320))
FITS = 2e9  # bytes


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
            if a == 0 and dense.bytes_needed(n, n_rounds) < FITS:
                began = process_time()
                (K,) = Stacked.of(gossip, agent(a)).grams(schema, victims)
                slow.append(process_time() - began)
                apart = float((H - K).abs().max())
        beside = f"{slow[0]:>10.2f}{apart:>12.1e}" if slow else f"{'-':>10}{'-':>12}"
        print(f"{n:>8}{n_rounds:>8}{np.mean(quick):>14.3f}{beside}", flush=True)


def target(n_readers: int, n: int = 148, n_rounds: int = 320) -> None:
    began, cpu = perf_counter(), process_time()
    readers = [agent(a) for a in range(min(n_readers, n))]
    found = network_mu(mixing(n), n_rounds, (20, 16), readers=readers)
    wall, cpu = perf_counter() - began, process_time() - cpu
    pairs = ~found.low.isnan()
    gap = float((found.high - found.low)[pairs].max())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{n} agents, {n_rounds} rounds, {int(pairs.sum())} pairs, 20 uses every 16 rounds:")
    print(f"{cpu / len(readers):.2f} CPU s an adversary, {cpu * n / len(readers):.0f} for all;")
    print(f"{wall:.0f} s ({cpu:.0f} CPU s), peak {peak:.2f} GiB, low and high apart by {gap:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readers", type=int, help="adversaries; default 4, all of the target")
    parser.add_argument("--target", action="store_true", help="all pairs of 148 agents")
    arguments = parser.parse_args()
    if arguments.target:
        target(arguments.readers or 148)
    else:
        torch.set_num_threads(1)
        growth(arguments.readers or 4)


if __name__ == "__main__":
    main()
